"""The memory tools under the name that the documents import them by."""

from inference_core.agents.tools import generate_memory_tools_system_instructions, get_memory_tools

__all__ = ["generate_memory_tools_system_instructions", "get_memory_tools"]
