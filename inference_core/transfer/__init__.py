"""Moving memories between stores: copies, backups, exports, imports, and migration from other layouts."""
