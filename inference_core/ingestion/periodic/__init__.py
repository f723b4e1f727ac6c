"""Periodic work of the worker: summaries of sessions, and insights."""
