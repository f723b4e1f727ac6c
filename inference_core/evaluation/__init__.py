"""Conversations with questions about them, for evaluation and for the demonstration."""
