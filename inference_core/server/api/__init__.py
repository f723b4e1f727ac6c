"""The routes of the HTTP API, their requests and responses, and jobs."""
