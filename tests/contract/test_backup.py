"""Backups: the same from every store to every other, whole beside writers, and damage is named."""

from __future__ import annotations

import json
import random
import shutil
import stat
import threading
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from databases import database
from retrieval_support import packed

from inference_core.errors import ConfigurationError, InvalidInput, StoreUnavailable
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import ERASED
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import EMBEDDING_META, Backend, Delete, Expiry, Put
from inference_core.stores.opening import open_backend
from inference_core.transfer.backup import back_up, drill, read_manifest, restore, verify
from inference_core.transfer.json_lines import export_store

KINDS = ("sqlite", "postgres", "redis", "file", "memory")
NOW = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
KEY = "a" * 64


def made(number: int, label: str, text: str = "likes tea", **changes: Any) -> Put:
    situation = DocumentMetadata(f"s{number % 3}", happened_at=number * 1.5, importance=0.25)
    document = Document.of(f"{text} {number} \u00fc", situation)
    document = document._replace(model="m", vector=packed((number % 100, 1)), tokens=b"1")
    fields: dict[str, Any] = {
        "namespace": (label, "semantic"),
        "key": f"k{number}",
        "value": json.dumps({"content": f"{text} {number} \u00fc", "n": [None, 1.5, {"x": "y"}]}),
        "document": document,
        "kind": "general",
        "created_at": NOW - timedelta(days=number),
        "updated_at": NOW + timedelta(microseconds=number),
    }
    return Put(**fields | changes)


def fill(store: Backend, count: int = 5) -> None:
    end = datetime.now(UTC) + timedelta(days=9)
    puts = [made(number, label) for number in range(count) for label in ("ada", "~bob~40example", "~outbox")]
    puts += [
        made(99, "ada", expiry=Expiry(end, timedelta(days=9))),
        made(3, "ada", "drinks coffee"),
        made(98, "ada", document=None),
    ]
    store.apply([[put] for put in puts])
    store.apply([[Delete(namespace=("ada", "semantic"), key="k0")]])
    store.set_meta(EMBEDDING_META, "m")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Backend]:
    with database(request.param, tmp_path) as url, closing(open_backend(url)) as store:
        fill(store)
        yield store


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        fill(store)
        back_up(store, tmp_path / "backup")
    return tmp_path / "backup"


def test_each_store_is_restored_into_each_other(store: Backend, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    before = back_up(store, folder)
    assert (before.rows, before.users) == (16, 2)
    assert [path for path in folder.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) != 0o600] == []
    with pytest.raises(InvalidInput, match="is there already"):
        back_up(store, folder)
    assert verify(folder) == before
    for number, kind in enumerate(KINDS):
        if kind == "memory":
            continue
        (tmp_path / f"{number}").mkdir()
        with database(kind, tmp_path / f"{number}") as url:
            restored, erased = restore(folder, url)
            assert (restored, erased) == (before, [])
            with closing(open_backend(url)) as target:
                again = back_up(target, tmp_path / f"again{number}")
                assert again.contents == before.contents
                assert target.get_meta(EMBEDDING_META) == "m"
                assert [row.version for row in target.get([(("ada", "semantic"), "k3")]) if row] == [2]
            with pytest.raises(InvalidInput, match="into a new store alone"):
                restore(folder, url)
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "file"])
def test_a_backup_beside_writers_is_of_one_moment(kind: str, tmp_path: Path, full: bool) -> None:
    """Each batch writes one row to each of two users: a backup in between would have more of one."""
    with database(kind, tmp_path) as url:
        stop = threading.Event()

        def write(writer: int) -> None:
            with closing(open_backend(url)) as own:
                at = 0
                while not stop.wait(0.005):  # else the store grows faster than it is saved
                    at += 1
                    own.apply([[made(at, f"{label}{writer}") for label in ("one", "two")]])

        writers = [threading.Thread(target=write, args=(one,)) for one in range(4)]
        with closing(open_backend(url)) as store:
            for thread in writers:
                thread.start()
            try:
                for at in range(8 if full else 2):
                    time.sleep(0.05)
                    found = back_up(store, tmp_path / f"backup{at}").contents
                    for writer in range(4):
                        one, two = found.get(f"one{writer}"), found.get(f"two{writer}")
                        assert (one and one.rows) == (two and two.rows)
            finally:
                stop.set()
                for thread in writers:
                    thread.join()


def test_each_flipped_byte_is_named(saved: Path, full: bool) -> None:
    chance = random.Random(0)
    files = [path for path in saved.rglob("*") if path.is_file()]
    assert len(files) == 2
    for _ in range(1_000 if full else 40):
        path = chance.choice(files)
        content = bytearray(path.read_bytes())
        at = chance.randrange(len(content))
        content[at] ^= 1 << chance.randrange(8)
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=path.name):
            verify(saved)
        path.write_bytes(before)
    verify(saved)


def test_what_is_missing_or_too_much_is_named(saved: Path, tmp_path: Path) -> None:
    (saved / "more").write_text("x")
    with pytest.raises(InvalidInput, match="more is not part of it"):
        verify(saved)
    (saved / "more").unlink()
    (saved / "store").rename(tmp_path / "store")
    with pytest.raises(InvalidInput, match="store is missing"):
        verify(saved)
    for content in ("x", "[]", '{"sha256": 1}', '{"format": "inference-core-backup", "version": 1, "sha256": "x"}'):
        (saved / "manifest.json").write_text(content)
        with pytest.raises(InvalidInput, match=r"manifest\.json"):
            verify(saved)
    with pytest.raises(InvalidInput, match="is no backup"):
        verify(tmp_path / "nowhere")


def test_a_manifest_that_says_otherwise_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = read_manifest(saved)
    wrong = replace(known, contents={})
    monkeypatch.setattr("inference_core.transfer.backup.read_manifest", Mock(return_value=wrong))
    with pytest.raises(InvalidInput, match="does not hold what the manifest says of 'ada'"):
        verify(saved)


def test_a_restore_that_was_interrupted_is_continued(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database("redis", tmp_path) as url:
        left = 1

        def failing(self: Any, batches: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailable("killed")
            return apply(self, batches)

        from inference_core.stores.backends.redis import RedisBackend

        apply = RedisBackend.apply
        with monkeypatch.context() as patched:
            patched.setattr(RedisBackend, "apply", failing)
            patched.setattr("inference_core.transfer.backup._PORTION", 4)
            with pytest.raises(StoreUnavailable):
                restore(saved, url)
        assert restore(saved, url)[0].rows == 16
        with pytest.raises(InvalidInput, match="not empty"):
            restore(saved, url)


def test_nothing_is_left_of_what_failed(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise StoreUnavailable("killed")

    before = sorted(tmp_path.iterdir())
    for kind in ("sqlite", "file"):
        with monkeypatch.context() as patched:
            patched.setattr("inference_core.transfer.backup._compare", failing)
            with pytest.raises(StoreUnavailable):
                restore(saved, f"{kind}:///{tmp_path / 'new'}")
        assert sorted(tmp_path.iterdir()) == before
    with monkeypatch.context() as patched, closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        patched.setattr("inference_core.transfer.backup._contents", failing)
        with pytest.raises(StoreUnavailable):
            back_up(store, tmp_path / "second")
    assert [path.name for path in tmp_path.iterdir() if "second" in path.name] == []


def test_an_old_backup_is_erased_again_and_exports_hold_no_fences(saved: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        assert erase([store], "ada", ledger).left == 0
        export_store(store, tmp_path / "export.jsonl")
        later = back_up(store, tmp_path / "later")
    assert ERASED not in (tmp_path / "export.jsonl").read_text()
    assert ERASED in later.contents, "a backup knows of the erasures before it"
    for folder, again in ((saved, 1), (tmp_path / "later", 0)):
        url = f"sqlite:///{tmp_path / f'from-{folder.name}'}"
        _, receipts = restore(folder, url, ledger)
        assert len(receipts) == again
        with closing(open_backend(url)) as store:
            assert {row.namespace[0] for row in store.inspect()} == {"~bob~40example", "~outbox", ERASED}  # pyright: ignore[reportOptionalSubscript]


def test_a_drill_leaves_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = sorted(tmp_path.iterdir())
    seen: list[tuple[int, int]] = []
    assert drill(saved, lambda done, total: seen.append((done, total))).rows == 16
    assert sorted(tmp_path.iterdir()) == before
    shutil.copy(saved / "manifest.json", saved / "store")
    with pytest.raises(InvalidInput, match="store is damaged"):
        drill(saved)


def test_an_encrypted_store_stays_encrypted_in_its_backup(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"keys": f"sqlite:///{tmp_path / 'keys.db'}", "encryption_key": KEY}
    cases: list[tuple[str, dict[str, Any]]] = [("sealed", keys), ("files", {"encryption_key": KEY})]
    for name, options in cases:
        kind = "file" if name == "files" else "sqlite"
        with closing(open_backend(f"{kind}:///{tmp_path / name}", **options)) as store:
            fill(store)
            before = back_up(store, tmp_path / f"{name}-backup")
        for path in (tmp_path / f"{name}-backup").rglob("*"):
            assert path.is_dir() or b"likes tea" not in path.read_bytes()
        drill(tmp_path / f"{name}-backup", **options)
        restore(tmp_path / f"{name}-backup", f"{kind}:///{tmp_path / name}2", **options)
        with closing(open_backend(f"{kind}:///{tmp_path / name}2", **options)) as store:
            assert back_up(store, tmp_path / f"{name}-again").contents == before.contents
            (row,) = store.get([(("ada", "semantic"), "k3")])
            assert row
            assert row.value["content"] == "drinks coffee 3 ü"
    with pytest.raises(ConfigurationError, match="is encrypted"):
        verify(tmp_path / "files-backup")


def test_a_drill_of_many_rows_is_quick(tmp_path: Path, full: bool) -> None:
    count = 100_000 if full else 600
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}", durable=False)) as store:
        for start in range(0, count, 1_000):
            numbers = range(start, min(count, start + 1_000))
            store.apply([[made(number, "ada") for number in numbers]])
        back_up(store, tmp_path / "backup")
    began = time.monotonic()
    assert drill(tmp_path / "backup").rows == count
    assert time.monotonic() - began < 60
