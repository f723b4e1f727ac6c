"""Rows as a user finds them: snapshots of a scope, the cache of their indexes, search, and links."""
