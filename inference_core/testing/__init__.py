"""For tests: a scripted chat model, a frozen clock, a conformance suite for LangGraph stores.

The names are imported when they are used; `StoreConformance` needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_core.lazy import lazy_exports

if TYPE_CHECKING:
    from inference_core.testing.conformance.suite import StoreConformance
    from inference_core.testing.fakes import FrozenClock, ScriptedChatModel, Turn, call_tool

_HOMES = {
    "FrozenClock": "inference_core.testing.fakes",
    "ScriptedChatModel": "inference_core.testing.fakes",
    "StoreConformance": "inference_core.testing.conformance.suite",
    "Turn": "inference_core.testing.fakes",
    "call_tool": "inference_core.testing.fakes",
}
__all__ = ["FrozenClock", "ScriptedChatModel", "StoreConformance", "Turn", "call_tool"]

__getattr__ = lazy_exports(__name__, _HOMES)
