"""Settings that can be changed while workers and servers run: all of them read the changes from the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from inference_core.errors import InvalidInput
from inference_core.settings import MemorySettings
from inference_core.stores.backend import Backend
from inference_core.stores.engine import StoreEngine

TUNABLE: Final = frozenset(
    {"batch_messages", "batch_tokens", "worker_interval", "max_tokens", "model_temperature", "model_tokens"}
)
"""Names of those `MemorySettings` that change neither what is stored nor where anything is sent."""
TUNED_META: Final = "tuned_"


async def tuned(engine: StoreEngine, settings: MemorySettings) -> MemorySettings:
    """``settings`` with the changes that the store keeps. Raises StoreUnavailable."""

    def read(backend: Backend) -> dict[str, Any]:
        kept = {name: backend.get_meta(TUNED_META + name) for name in TUNABLE}
        return {name: json.loads(text) for name, text in kept.items() if text}

    return settings.model_copy(update=await engine.ask(read))


async def tune(engine: StoreEngine, changes: Mapping[str, object]) -> None:
    """Stores ``changes`` of `TUNABLE` settings for all processes, from now on; None: back to the environment's value.

    The caller checks that the names are in `TUNABLE`. Raises InvalidInput if a value is invalid, and then changes
    nothing; StoreUnavailable, ReadOnlyStore.
    """
    checks, blank = MemorySettings.__pydantic_validator__, MemorySettings.model_construct()
    for name, value in changes.items():
        if value is None:
            continue
        try:
            checks.validate_assignment(blank.model_copy(), name, value, strict=True)
        except ValidationError as error:
            raise InvalidInput(f"{name}: {error.errors()[0]['msg']}") from error

    def write(backend: Backend) -> None:
        for name, value in changes.items():
            backend.set_meta(TUNED_META + name, "" if value is None else json.dumps(value))

    await engine.ask(write)
