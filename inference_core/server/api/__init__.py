"""The routes of the HTTP API, what they carry, and how they refuse."""
