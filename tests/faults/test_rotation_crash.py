"""Kill -9 while a store is sealed with new keys: at any time everything can be read, and the next run finishes it."""

from __future__ import annotations

import random
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from databases import database
from processes import Forked
from rotation_process import opened, seal_anew, void
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.lifecycle.repairs import Rotation, key_status, rotate
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import PageRequest, Put
from inference_core.stores.encryption.encrypted import EncryptedBackend
from inference_core.transfer.copying import copy_store

USERS = ("ada", "bob")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def told(backend: EncryptedBackend) -> Any:
    """All rows and texts, without their numbers, which a rotation changes."""
    namespaces = backend.namespaces()
    rows = {
        (row.namespace, row.key): (row.value, row.version) for row in backend.page(PageRequest(namespaces, limit=10**5))
    }
    return rows, {
        (namespace, one.key): one.document for namespace in namespaces for one in backend.changes(namespace, 0)
    }


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_rotation_that_is_killed_is_finished_by_the_next(kind: str, tmp_path: Path, full: bool) -> None:
    size, kills = (10_000, 12) if full else (700, 2)
    chance, keys = random.Random(7), f"{kind}:///{tmp_path / 'keys'}"
    with open_store("memory://", embeddings=HashingEmbeddings()) as plain, database(kind, tmp_path) as url:
        service = AgentMemoryStoreService(plain).sync
        for at in range(50):
            for user in USERS:
                service.save_memory(user, f"Drinks tea at {at}")
        assert plain.wait_ready(10)
        with closing(opened(url, keys)) as backend:
            copy_store(plain.engine.backend, backend)
            rows = plain.engine.backend.changes(("ada", "semantic"), 0)
            document = next(iter(rows)).document
            fill(backend, size, document)
            before = told(backend)
        for _ in range(kills):
            process = Forked(seal_anew, url, keys)
            for _ in range(chance.randint(1, size // 200)):
                process.said.readline()
            process.kill()
            process.end()
            with closing(opened(url, keys)) as backend:
                assert told(backend) == before
        with closing(opened(url, keys)) as backend:
            old = {label: backend.keyring.get(label)[-1] for label in USERS}
            while (done := rotate(backend, wait=void)).is_resumed:
                assert done.labels
            assert done.rows == len(before[0])
            assert told(backend) == before
            for label in USERS:
                newest, *others = backend.keyring.get(label)
                assert newest.secret
                assert (old[label].id, None) in others
                assert not any(key.secret for key in others)
            assert (key_status(backend).users, key_status(backend).rotating) == (2, 0)


def fill(backend: EncryptedBackend, size: int, document: Any) -> None:
    puts = [
        Put(namespace=("ada", "semantic"), key=f"k{one}", value=f'{{"n":{one}}}', document=document, updated_at=NOW)
        for one in range(size)
    ]
    backend.apply([puts])


def test_what_is_written_meanwhile_is_sealed_with_the_new_keys(tmp_path: Path) -> None:
    """Rows that were written with the old key after the first pass could not be read any more."""
    keys = f"sqlite:///{tmp_path / 'keys.db'}"
    with closing(opened("memory://", keys)) as backend:
        fill(backend, 3, None)
        old = backend.keyring.get("ada")
        ring_get = backend.keyring.get
        waited: list[float] = []

        def late_write(seconds: float) -> None:
            """Another process, which has not seen the new key yet."""
            waited.append(seconds)
            backend.keyring.get = lambda label, *, makes=False: old if label == "ada" else ring_get(label, makes=makes)
            fill(backend, 5, None)
            backend.keyring.get = ring_get

        assert rotate(backend, ["ada"], wait=late_write) == Rotation(1, 3 + 5, is_resumed=False)
        assert 50 < waited[0] <= 60
        assert len(backend.page(PageRequest([("ada", "semantic")], limit=9))) == 5
        assert rotate(backend, ["nobody"], wait=late_write) == Rotation(0, 0, is_resumed=False)


def test_regression_a_text_that_is_changed_meanwhile_stays_changed(database_url: str, tmp_path: Path) -> None:
    """It got its former text back: queries found the row by what it had said before, and not by what it says."""
    keys = f"sqlite:///{tmp_path / 'keys.db'}"
    with closing(opened(database_url, keys)) as backend:
        fill(backend, 250, Document.of("tea"))
        backend.keyring.rotate("ada")
        milk = Document.of("milk")
        batches = [[Put(namespace=("ada", "semantic"), key="k249", value="{}", document=milk, updated_at=NOW)]]
        backend.encrypt_anew("ada", lambda _: void(backend.apply([batches.pop()] if batches else [])))
        texts = {one.key: one.document and one.document.text for one in backend.changes(("ada", "semantic"), 0)}
        assert (texts["k0"], texts["k249"]) == ("tea", "milk")
