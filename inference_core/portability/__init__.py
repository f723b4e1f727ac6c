"""Moving memories between stores: to and from JSON Lines, and from one database to another."""
