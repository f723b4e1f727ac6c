"""The SQL databases: SQLite and PostgreSQL, and what they share."""
