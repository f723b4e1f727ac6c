"""Encryption: a key for each user in a key store of its own, and databases whose rows are encrypted with them."""
