"""For tests of agents that use the memory: a chat model that follows a script, and a clock that stands still."""

from inference_core.testing.chat import ScriptedChatModel, Turn, call_tool
from inference_core.testing.clock import FrozenClock

__all__ = ["FrozenClock", "ScriptedChatModel", "Turn", "call_tool"]
