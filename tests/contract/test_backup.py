"""Backups: the same from every store to every other, whole beside writers, and damage is named."""

from __future__ import annotations

import random
import re
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from backup_support import NOW, WRITERS, fill, keep_writing, made
from databases import database
from langgraph.store.memory import InMemoryStore
from processes import CONTEXT, Forked

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import ConfigurationError, InvalidInput, StoreUnavailable
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import ERASED
from inference_core.stores.backend import Expiry, PageRequest, Remove, Row
from inference_core.stores.backends.foreign import ForeignBackend
from inference_core.stores.factory import open_backend
from inference_core.transfer.backup import back_up, drill, read_manifest, restore, verify
from inference_core.transfer.json_lines import export_store

KEY = "a" * 64


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        fill(store)
        back_up(store, tmp_path / "backup")
    return tmp_path / "backup"


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "file"])
def test_a_backup_beside_writers_is_a_state_between_two_commits(kind: str, tmp_path: Path, full: bool) -> None:
    """Of each writer it holds a prefix of the commits, none of them in part, and whatever these commits knew of."""
    stop = CONTEXT.Event() if full else threading.Event()
    done = CONTEXT.Array("q", WRITERS) if full else [0] * WRITERS
    with database(kind, tmp_path) as url, closing(open_backend(url)) as store:
        start = Forked if full else in_thread
        writers = [start(keep_writing, url, one, done, partial(stop.wait, 0.02)) for one in range(WRITERS)]
        try:
            while not all(done[:]):  # a server gives each of them a connection first
                stop.wait(0.01)
            for at in range(8 if full else 2):
                before = done[:]
                back_up(store, tmp_path / f"backup{at}")
                after = done[:]
                held = commits_in(tmp_path / f"backup{at}", "file" if kind == "file" else "sqlite")
                assert all(least <= count for least, count in zip(before, held, strict=True))
                assert all(count <= most + 1 for count, most in zip(held, after, strict=True))
        finally:
            stop.set()
            for writer in writers:
                writer.end()


def in_thread(target: Any, *arguments: Any) -> Any:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.end = thread.join  # pyright: ignore[reportAttributeAccessIssue] - as a process has it
    return thread


def commits_in(folder: Path, kind: str) -> list[int]:
    """How many commits of each writer a backup holds, of which it holds all rows."""
    url = f"{kind}:///{folder}-restored"
    restore(folder, url)
    held: list[int] = []
    with closing(open_backend(url)) as store:
        known: list[list[int]] = []
        for writer in range(WRITERS):
            (last,) = store.get([((f"one{writer}", "seen"), "last")])
            assert last
            held.append(last.value["at"])
            known.append(last.value["seen"])
            for user in ("one", "two"):
                rows = store.page(PageRequest([(f"{user}{writer}", "semantic")], limit=10**6))
                assert sorted(int(row.key[1:]) for row in rows) == list(range(1, held[-1] + 1))
    assert all(seen <= count for one in known for seen, count in zip(one, held, strict=True))
    return held


@pytest.mark.parametrize("kind", ["sqlite", "file", "memory"])
def test_each_flipped_byte_is_named(kind: str, tmp_path: Path, full: bool) -> None:
    """Also one that only turns a space of the manifest into a line break."""
    with database(kind, tmp_path) as url, closing(open_backend(url)) as store:
        fill(store)
        back_up(store, tmp_path / "backup")
    chance = random.Random(0)
    files = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    places = [(chance.choice(files), chance.random(), chance.randrange(1, 256)) for _ in range(1_000 if full else 25)]
    places.append((tmp_path / "backup" / "manifest.json", 2.5 / len(files[0].read_bytes()), ord(" ") ^ ord("\n")))
    for path, share, bits in places:
        before = path.read_bytes()
        content = bytearray(before)
        content[int(share * len(content))] ^= bits
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=re.escape(path.name)):
            verify(tmp_path / "backup")
        path.write_bytes(before)
    verify(tmp_path / "backup")


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
    with pytest.raises(InvalidInput, match="is not a backup"):
        verify(tmp_path / "nowhere")


def test_a_manifest_that_says_otherwise_is_refused(saved: Path) -> None:
    (saved / "manifest.json").write_bytes(replace(read_manifest(saved), contents={}).encoded())
    with pytest.raises(InvalidInput, match="does not match the manifest for 'ada'"):
        verify(saved)


def test_nothing_is_left_of_what_failed(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise StoreUnavailable("killed")

    before = sorted(tmp_path.iterdir())
    for kind in ("sqlite", "file"):
        with monkeypatch.context() as patched:
            patched.setattr("inference_core.transfer.backup.Manifest.compare", failing)
            with pytest.raises(StoreUnavailable):
                restore(saved, f"{kind}:///{tmp_path / 'new'}")
        assert sorted(tmp_path.iterdir()) == before
    with monkeypatch.context() as patched, closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        patched.setattr("inference_core.transfer.backup._contents", failing)
        with pytest.raises(StoreUnavailable):
            back_up(store, tmp_path / "second")
    assert [path.name for path in tmp_path.iterdir() if "second" in path.name] == []


def test_a_backup_knows_of_erasures_before_it_and_exports_hold_no_fences(saved: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        assert erase([store], "ada", ledger).left == 0
        export_store(store, tmp_path / "export.jsonl")
        assert ERASED in back_up(store, tmp_path / "later").contents
    assert ERASED not in (tmp_path / "export.jsonl").read_text()
    assert restore(tmp_path / "later", f"sqlite:///{tmp_path / 'new'}", ledger)[1] == []
    assert "ada" in read_manifest(saved).contents


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


def test_regression_a_row_that_changes_between_two_reads_is_backed_up_whole(tmp_path: Path) -> None:
    """Its text was of one version and its value of the next, so that recall found what is not there any more."""
    with database("memory", tmp_path) as url, closing(open_backend(url)) as store:
        fill(store)
        inner: Any = store
        get, meanwhile = inner.get, [[made(3, "ada", "moved")], [Remove(namespace=("ada", "semantic"), key="k4")]]

        def late(keys: Any) -> Any:
            store.apply(meanwhile)
            meanwhile.clear()
            return get(keys)

        inner.get = late
        back_up(store, tmp_path / "backup")
    restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new'}")
    with closing(open_backend(f"sqlite:///{tmp_path / 'new'}")) as new:
        (row, gone) = new.get([(("ada", "semantic"), key) for key in ("k3", "k4")])
        texts = {change.key: change.document.text for change in new.changes(("ada", "semantic"), 0) if change.document}
    assert row
    assert (row.value["content"], texts["k3"], gone) == ("moved 3 ü", "moved 3 ü", None)


def test_regression_a_held_row_whose_time_has_come_is_backed_up(tmp_path: Path) -> None:
    """It was lost when a backup was restored into another kind of store."""
    ended = Expiry(NOW, timedelta(days=1))
    put = made(1, "ada", "evidence", expiry=ended)
    with closing(open_backend(f"sqlite:///{tmp_path / 'm.db'}")) as store:
        store.apply([[put]])
        back_up(store, tmp_path / "backup")
    for kind in ("sqlite", "file"):
        restore(tmp_path / "backup", f"{kind}:///{tmp_path / kind}")
        with closing(open_backend(f"{kind}:///{tmp_path / kind}")) as new:
            assert [row.value["content"] for row in new.inspect("ada") if isinstance(row, Row)] == ["evidence 1 ü"]
            assert new.get([(put.namespace, put.key)]) == [None]


@pytest.mark.parametrize(
    "texts",
    [
        ["The user said hello"] * 25,
        ["!!!", "…", "the"],
        [f"{'Dear diary, ' * 60} number {at}" for at in range(25)],
        [f"User: ok\nAssistant: ok {at % 2}" for at in range(60)],
    ],
    ids=["equal", "without words", "alike at the beginning", "short chats"],
)
def test_regression_a_drill_accepts_a_sound_backup_whatever_its_texts(texts: list[str], tmp_path: Path) -> None:
    """It expected each text among the first that its own words find."""
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for at, text in enumerate(texts):
            service.save_memory("ada", text, "interaction", memory_id=f"m{at}")
        back_up(store.engine.backend, tmp_path / "backup")
    drill(tmp_path / "backup")


def test_regression_a_store_of_another_library_is_backed_up_with_its_rows(tmp_path: Path) -> None:
    """Its backup was empty unless the store had been searched before."""
    store = InMemoryStore()
    AgentMemoryStoreService(store).sync.save_memory("ada", "Lives in Lisbon", memory_id="home")
    back_up(ForeignBackend(store), tmp_path / "backup")
    restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new'}")
    with open_store(f"sqlite:///{tmp_path / 'new'}", embeddings=None) as new:
        assert [one.content for one in AgentMemoryStoreService(new).sync.recall_memories("ada", "Lisbon")] == [
            "Lives in Lisbon"
        ]
