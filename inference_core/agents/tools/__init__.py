"""The tools that an agent has for its memory, under the import paths that the CoALA document gives them."""

from inference_core.agents.tools.arguments import generate_memory_tools_system_instructions
from inference_core.agents.tools.memory_tools import (
    DeleteMemoryStoreTool,
    ListMemoryStoreTool,
    RecallMemoryStoreTool,
    SaveMemoryStoreTool,
    UpdateMemoryStoreTool,
    get_memory_tools,
)

__all__ = [
    "DeleteMemoryStoreTool",
    "ListMemoryStoreTool",
    "RecallMemoryStoreTool",
    "SaveMemoryStoreTool",
    "UpdateMemoryStoreTool",
    "generate_memory_tools_system_instructions",
    "get_memory_tools",
]
