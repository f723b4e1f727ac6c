"""Middleware for `langchain.agents.create_agent`."""

from inference_core.agents.middleware.memory import (
    MemoryMiddleware,
    MemoryState,
    MemoryStatus,
    create_memory_middleware,
)

__all__ = ["MemoryMiddleware", "MemoryState", "MemoryStatus", "create_memory_middleware"]
