"""Memories on the move: copies, exports, imports, and migration from other layouts."""
