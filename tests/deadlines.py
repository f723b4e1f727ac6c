"""The deadlines that tests run with: a busy machine must not change what they see."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from inference_core.agents import tools
from inference_core.agents.middleware import capture, memory, review, short_term
from inference_core.services import context_builder
from inference_core.services.operations.prompt_context import TurnOptions
from inference_core.settings import MemorySettings
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing import embedding
from inference_core.stores.indexing.search import Search

PATIENCE_S = 60.0
"""No machine misses it."""
_CONSTANTS = (
    (short_term, "RECALL_TIMEOUT_S"),
    (tools, "READ_TIMEOUT_S"),
    (tools, "WRITE_TIMEOUT_S"),
    (capture, "_TIMEOUT_S"),
    (capture.CaptureMiddleware, "start_timeout"),
    (capture.CaptureMiddleware, "call_timeout"),
    (review, "_TIMEOUT_S"),
    (context_builder, "_WAIT_S"),
    (embedding, "EMBED_TIMEOUT_S"),
)
_ARGUMENTS = (
    (memory.MemoryMiddleware.__init__, "recall_timeout"),
    (Search.__init__, "wait_seconds"),
    (TurnOptions.__init__, "wait_seconds"),
    (StoreEngine.read, "wait_seconds"),
)
_SETTINGS = ("recall_timeout",)
"""Settings of `MemoryMiddleware` whose default counts as `PATIENCE_S`; any other value stays."""


@contextmanager
def patient() -> Generator[dict[str, float]]:
    """Raises the default deadlines of agents and stores in this process to `PATIENCE_S`; yields what they were.

    A test of a deadline sets its own.
    """
    defaults: dict[str, float] = {}
    with pytest.MonkeyPatch.context() as patched:
        for place, name in _CONSTANTS:
            defaults[name] = getattr(place, name)
            patched.setattr(place, name, PATIENCE_S)
        for function, name in _ARGUMENTS:
            keywords = function.__kwdefaults__
            assert keywords is not None
            defaults[name] = keywords[name]
            patched.setitem(keywords, name, PATIENCE_S)
        from_settings: Any = memory.MemoryMiddleware.from_settings

        def patiently(_: type, settings: MemorySettings, *service: Any, **options: Any) -> memory.MemoryMiddleware:
            for name in _SETTINGS:
                if getattr(settings, name) == MemorySettings.model_fields[name].default:
                    options.setdefault(name, PATIENCE_S)
            return from_settings(settings, *service, **options)

        patched.setattr(memory.MemoryMiddleware, "from_settings", classmethod(patiently))
        yield defaults
