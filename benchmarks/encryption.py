"""What a key for each user costs on SQLite: a save, the cold index of 10,000 memories, a warm recall, the file."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import ours
from corpus import ASKER, SEED, queries, turns
from report import Row, publish
from timing import milliseconds, quantile, scratch, watched

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.stores.indexing.indexes import IndexCache

SIZE: Final = 10_000
SAVES: Final = 600
COLD: Final = 9
RECALLS: Final = 200
SAVE_BAR, COLD_BAR = 1.1, 1.5
_MASTER: Final = bytes(32)


def _opened(folder: Path, name: str) -> MemoryStore:
    given: dict[str, Any] = (
        {"keys": f"sqlite:///{folder}/keys.db", "encryption_key": _MASTER} if name == "keyed" else {}
    )
    return open_store(f"sqlite:///{folder}/{name}.db", embeddings=ours.HASHING, late_interaction=False, **given)


def _in_turns(calls: dict[str, Callable[[int], object]], count: int, what: str, bar: float | None = None) -> list[Row]:
    """Medians of calls that take turns, and the median of the ratios of neighbours, which have met the same load."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for at in watched(range(count), what):
        for name in (*calls,) if at % 2 else (*calls,)[::-1]:
            taken[name].append(milliseconds(calls[name], at))
    share = quantile([keyed / plain for keyed, plain in zip(taken["keyed"], taken["plain"], strict=True)])
    return [
        (f"{what}, without keys", f"{quantile(taken['plain']):.2f} ms", "", None),
        (
            f"{what}, with keys",
            f"{quantile(taken['keyed']):.2f} ms ({share:.2f} times)",
            f"≤ {bar} times" if bar else "",
            share <= bar if bar else None,
        ),
    ]


def rows() -> list[Row]:
    """All that is measured, with and without in turns."""
    with scratch() as folder, ExitStack() as opened:
        stores = {name: opened.enter_context(_opened(folder, name)) for name in ("plain", "keyed")}
        for store in stores.values():
            ours.fill(store, turns(SIZE), SIZE)
        new = [turn.text for turn in turns(SAVES, seed=SEED + 3)]
        services = {name: AgentMemoryStoreService(store).sync for name, store in stores.items()}
        saves: dict[str, Callable[[int], object]] = {
            name: lambda at, service=service: service.save_memory("other", new[at])
            for name, service in services.items()
        }
        namespaces = stores["plain"].engine.backend.namespaces((ASKER,))

        def indexed(store: MemoryStore) -> int:
            gc.collect()
            cache = IndexCache(store.engine.backend, store.engine.embedder.fingerprint, 2**30, lambda _: None)  # pyright: ignore[reportOptionalMemberAccess]
            return len(cache.views(namespaces))

        colds: dict[str, Callable[[int], object]] = {
            name: lambda _, store=store: indexed(store) for name, store in stores.items()
        }
        asked = queries(RECALLS)
        recalls: dict[str, Callable[[int], object]] = {
            name: lambda at, service=service: service.recall_memories(ASKER, asked[at])
            for name, service in services.items()
        }
        made = [
            *_in_turns(saves, SAVES, "a save alone", SAVE_BAR),
            *_in_turns(colds, COLD, f"cold index of {SIZE:,} memories", COLD_BAR),
            *_in_turns(recalls, RECALLS, f"warm recall among {SIZE:,}"),
        ]
        sizes = {name: ours.disk_bytes(folder / f"{name}.db") for name in stores}
    share = sizes["keyed"] / sizes["plain"]
    return [*made, ("bytes on disk, with keys", f"{sizes['keyed'] / 1e6:.1f} MB ({share:.2f} times)", "", None)]


if __name__ == "__main__":
    sys.exit(not publish("encryption", rows()))
