"""A real backend with a fault injected in front of it."""

from __future__ import annotations

import threading
from typing import Any

from inference_core.errors import StoreUnavailable
from inference_core.stores.backends.memory import InMemoryBackend

CALLS = ("apply", "get", "newest", "count", "namespaces", "heads", "changes", "pending")


class FlakyBackend(InMemoryBackend):
    """Works until ``fault`` is set: "down" raises at every call, "hang" waits until it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: str | None = None
        self.healed = threading.Event()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._guarded(found) if name in CALLS else found

    def _guarded(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.fault == "down":
                raise StoreUnavailable("the database is down")
            if self.fault == "hang":
                self.healed.wait(30)
            return method(*args, **kwargs)

        return call

    def heal(self) -> None:
        """Ends the fault."""
        self.fault = None
        self.healed.set()
