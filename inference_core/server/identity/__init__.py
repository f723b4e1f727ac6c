"""Who sends a request, and what that may do."""
