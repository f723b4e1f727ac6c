"""The memory tools of an agent, imported when they are used: their schemas take time to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_core.lazy import lazy_exports

if TYPE_CHECKING:
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
_TOOLS = "inference_core.agents.tools.memory_tools"
__getattr__ = lazy_exports(
    __name__,
    dict.fromkeys(__all__, _TOOLS)
    | {"generate_memory_tools_system_instructions": "inference_core.agents.tools.instructions"},
)
