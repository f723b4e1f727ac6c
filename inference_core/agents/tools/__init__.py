"""The memory tools of an agent."""

from inference_core.agents.tools.instructions import generate_memory_tools_system_instructions
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
