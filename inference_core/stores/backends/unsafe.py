"""Stores of other libraries that mix users up, by the versions that do."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from langgraph.store.base import BaseStore

from inference_core.errors import ConfigurationError

_FIRST_SAFE: Final = {
    "langgraph.store.sqlite": ("langgraph-checkpoint-sqlite", (3, 1, 1)),
    "langgraph.store.postgres": ("langgraph-checkpoint-postgres", (3, 1, 1)),
}
"""Earlier versions give a user's items to others whose ids are like it (CVE-2026-71433)."""
_REDIS: Final = "langgraph.store.redis"


def check_safe(store: BaseStore) -> None:
    """Raises ConfigurationError if ``store`` gives one user's items to another."""
    modules = [kind.__module__ for kind in type(store).__mro__]
    if any(_is_in(module, _REDIS) for module in modules):
        raise ConfigurationError(
            "LangGraph's RedisStore looks namespaces up as words, so that users with similar ids read and delete each "
            "other's items; use open_store('redis://...')"
        )
    for package, (distribution, first_safe) in _FIRST_SAFE.items():
        if not any(_is_in(module, package) for module in modules):
            continue
        with suppress(PackageNotFoundError):  # of a version that nobody knows nothing is known to be wrong
            found = tuple(int(part) for part in version(distribution).split(".")[:3] if part.isdigit())
            if found < first_safe:
                raise ConfigurationError(
                    f"{distribution} {version(distribution)} gives items to users with similar ids (CVE-2026-71433): "
                    f"pip install '{distribution}>={'.'.join(map(str, first_safe))}'"
                )


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
