"""What the tests of erasures share: two users, a row in every place of one, and looking for what is left."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from outbox_support import Scripted, word_for_word

from inference_core import AgentMemoryStoreService
from inference_core.effects import run
from inference_core.ingestion.worker import Pipeline
from inference_core.memory.namespaces import PLACES, encode_label
from inference_core.outbox.outbox import DEAD_LIST, Outbox
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import Backend, Put, Row, apart
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import any_engine_of
from inference_core.stores.locks import read_at
from inference_core.testing import FrozenClock

ADA, BOB = "ada.lovelace@example.com", "bob@example.com"
CANARY = "zqcanary7 of Ada"


def put_everywhere(engine: StoreEngine, user: str, text: str) -> int:
    """A row in each place of a user, one that has ended, an item of an application, and a listing; how many."""
    label, clock = encode_label(user), FrozenClock()
    rows = [(label, place, "agent") for place in PLACES] + [(label, "of-an-application")]
    value = json.dumps({"content": text, "session_id": f"session of {user}"})
    document = Document.of(text, DocumentMetadata(session=f"session of {user}"))
    listed = json.dumps({"user": user, "agent": None, "scoped": True, "text": text})
    writes = [
        Put(namespace=row, key=f"key of {user}", value=value, document=document, updated_at=clock.now()) for row in rows
    ]
    writes.append(Put(namespace=DEAD_LIST, key=f"dead {user}", value=listed, updated_at=clock.now()))
    for batch in apart(engine.backend, writes):
        run(engine.write(batch))
    return len(writes)


def pipeline_on(store: Any, outbox_in: Any, script: Any = word_for_word) -> Pipeline:
    scope = AgentMemoryStoreService(store, timeout=None).scope
    return Pipeline(scope, Scripted(script), outbox=Outbox(any_engine_of(outbox_in), scope.clock))


def digest(backend: Backend, user: str) -> str:
    """Of all rows of a user, but for their versions."""
    rows = [row for row in backend.inspect(encode_label(user)) if isinstance(row, Row)]
    text = sorted(json.dumps([row.namespace, row.key, row.value, str(row.created_at)], sort_keys=True) for row in rows)
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def content_of(path: Path) -> bytes:
    """The bytes of a file that may be a database which this process has open; none if it has just gone."""
    with suppress(FileNotFoundError):
        return read_at(path, 0, path.stat().st_size)
    return b""


def hits(backend: Backend, *needles: str) -> int:
    return sum(content_of(path).count(needle.encode()) for path in backend.files() for needle in needles)


def left_of(backend: Backend, *needles: str) -> list[Row]:
    return [row for row in backend.inspect() if any(one in f"{row}" for one in needles) and isinstance(row, Row)]
