"""Stores to be backed up: rows of every shape, and what a service leaves of a user."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any

from retrieval_support import packed
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.services.operations.tuning import tune
from inference_core.stores.backend import EMBEDDING_META, Backend, Expiry, Put, Remove
from inference_core.stores.factory import open_backend
from inference_core.stores.rules.audit_log import Sealer

NOW = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
WRITERS = 4


def made(number: int, label: str, text: str = "likes tea", **changes: Any) -> Put:
    situation = DocumentMetadata(f"s{number % 3}", happened_at=number * 1.5, importance=0.25)
    document = Document.of(f"{text} {number} ü", situation)
    document = document._replace(model="m", vector=packed((number % 100, 1)), tokens=b"1")
    fields: dict[str, Any] = {
        "namespace": (label, "semantic"),
        "key": f"k{number}",
        "value": json.dumps({"content": f"{text} {number} ü", "n": [None, 1.5, {"x": "y"}]}),
        "document": document,
        "kind": "general",
        "created_at": NOW - timedelta(days=number),
        "updated_at": NOW + timedelta(microseconds=number),
    }
    return Put(**fields | changes)


def fill(store: Backend, count: int = 5) -> None:
    """Rows of three labels: updated, deleted, without a text, and one that ends in nine days."""
    end = datetime.now(UTC) + timedelta(days=9)
    puts = [made(number, label) for number in range(count) for label in ("ada", "~bob~40example", "~outbox")]
    puts += [
        made(99, "ada", expiry=Expiry(end, timedelta(days=9))),
        made(3, "ada", "drinks coffee"),
        made(98, "ada", document=None),
    ]
    store.apply([[put] for put in puts])
    store.apply([[Remove(namespace=("ada", "semantic"), key="k0")]])
    store.set_meta(EMBEDDING_META, "m")


def live(place: Any, user: str) -> None:
    """What a user leaves: memories with vectors, earlier versions, one in the archive, counts, events, messages."""
    with open_store(place, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store).sync
        for at in range(3):
            service.save_memory(user, f"{user} likes tea number {at}", memory_id=f"{user}-{at}", session_id="s")
        service.update_memory(user, f"{user}-0", f"{user} likes coffee")
        service.delete_memory(user, f"{user}-1")
        service.recall_memories(user, "tea")
        service.add_messages(user, [f"{user} said something"], session_id="s")
        assert store.wait_ready(10)
        store.engine.flush()
        Sealer(store.engine.audit_log).seal(user)
        run(tune(store.engine, {"batch_messages": 7}))


def keep_writing(url: str, writer: int, done: list[int] | SynchronizedArray[int], stopped: Callable[[], bool]) -> None:
    """Commits of two users' rows and what it knew of the other writers' commits; ``done`` counts what is committed."""
    one, two = f"one{writer}", f"two{writer}"
    with closing(open_backend(url)) as store:
        at = 0
        while not stopped():
            at += 1
            seen = json.dumps({"at": at, "seen": done[:]})
            news = made(0, one, namespace=(one, "seen"), key="last", value=seen, document=None)
            (outcome,) = store.apply([[made(at, one), news, made(at, two)]])
            assert isinstance(outcome, list)
            done[writer] = at
