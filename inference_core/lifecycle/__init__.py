"""The life of stored memories: forgetting and restoring them, retention, the erasure of users, and repairs."""
