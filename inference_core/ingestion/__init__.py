"""How conversations become memories: by a worker that empties the outbox, or word for word from files."""

from __future__ import annotations

from typing import Final

FORMATS: Final = ("locomo", "beam", "messages", "chatgpt", "claude", "openai", "whatsapp", "langgraph")
"""Names of the formats that can be ingested."""
