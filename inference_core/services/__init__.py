"""The memory service: operations as plans, and their async and sync faces."""
