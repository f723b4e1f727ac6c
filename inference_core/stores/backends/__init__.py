"""One module for each database that can hold memories: thin, behind the Backend protocol."""
