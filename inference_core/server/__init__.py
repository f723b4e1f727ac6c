"""Memory for other programs: the HTTP API, the MCP server and the inspector. Its modules need extras."""
