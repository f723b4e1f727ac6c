"""What was said elsewhere becomes memory: conversations from files, word for word."""

from __future__ import annotations

from typing import Final

FORMATS: Final = ("locomo", "beam", "messages", "chatgpt", "claude", "openai", "whatsapp", "langgraph")
"""Names of the formats that can be ingested."""
