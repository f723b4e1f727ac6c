"""erase(): nothing of a user is left on any read path or in any file, nothing comes back, others lose nothing."""

from __future__ import annotations

import ast
import json
import random
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from databases import CLUSTER, database
from erasing_support import ADA, BOB, CANARY, digest, hits, left_of, pipeline_on, put_everywhere
from langgraph.store.memory import InMemoryStore
from outbox_support import said, word_for_word
from postgres_server import PARTITIONED
from support import HashingEmbeddings

import inference_core
from inference_core import AgentMemoryStoreService, Space, open_store
from inference_core.effects import Operation, run
from inference_core.errors import ConfigurationError, InvalidId, StoreUnavailable, UserErased, VersionConflict
from inference_core.ingestion.worker import BatchOutcome
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import ErasureReceipt, Ledger
from inference_core.lifecycle.repairs import replay
from inference_core.memory.namespaces import ERASED, ITEMS, LISTED, PLACES, QUEUE_ROOT, ROOTS, encode_label
from inference_core.outbox.outbox import OUTBOX, Partition
from inference_core.retrieval.documents import Document
from inference_core.server.identity.auth import Permission, create_key
from inference_core.stores.backend import Backend, Check, Put, beside
from inference_core.stores.backends.foreign import ForeignBackend
from inference_core.stores.backends.memory import MappingBackend
from inference_core.stores.backends.sql.base import SqlBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.rules.erasure_epoch import fences_of
from inference_core.stores.store import MemoryStore
from inference_core.testing import FrozenClock
from inference_core.transfer.json_lines import export_store

KINDS = ("sqlite", "postgres", PARTITIONED, "redis", CLUSTER, "file", "memory")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger" / "erasures.jsonl")


def live(store: MemoryStore, user: str, text: str) -> None:
    """What an application does: saves, updates, recalls, deletes, hands over messages, a dead letter, a job."""
    service = AgentMemoryStoreService(store).sync
    for at in range(3):
        service.save_memory(user, f"{text} {at}", memory_id=f"{user}-{at}", session_id=f"session of {user}")
    service.update_memory(user, f"{user}-0", f"{text} again")
    service.delete_memory(user, f"{user}-1")
    service.recall_memories(user, text)
    service.add_messages(user, [f"{text} said"], session_id=f"session of {user}")
    pipeline = pipeline_on(store, store)
    outbox = pipeline.outbox
    run(outbox.put(Partition(user), [said(f"{text} dies")]))
    run(pipeline.process(Partition(user)))
    store.engine.flush()


def test_nothing_is_left_in_any_place_and_others_lose_nothing(url: str, ledger: Ledger) -> None:
    """SQLite left copies of rows that it had moved between pages, depending on the ids, which are random."""
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        store.wait_ready(10)
        backend = store.engine.backend
        live(store, ADA, CANARY)
        live(store, BOB, "bob likes tea")
        several = put_everywhere(store.engine, ADA, CANARY)
        put_everywhere(store.engine, BOB, "bob drinks coffee")
        of_bob = digest(backend, BOB)
        looked = erase([backend], ADA, ledger, dry_run=True)
        assert left_of(backend, CANARY)
        receipt = erase([backend], ADA, ledger, by="admin", reason="asked")
        assert looked.found == looked.left == receipt.found > several
        assert (receipt.left, receipt.by, receipt.reason) == (0, "admin", "asked")
        assert set(receipt.places[backend.name]) == {*PLACES.values(), ITEMS, LISTED}
        assert left_of(backend, CANARY, ADA, encode_label(ADA)) == []
        assert hits(backend, CANARY, ADA, encode_label(ADA), f"session of {ADA}") == 0
        assert digest(backend, BOB) == of_bob
        service = AgentMemoryStoreService(store).sync
        assert not service.recall_memories(ADA, CANARY)
        assert [
            row for row in run(store.engine.namespaces()) if row[0] not in ROOTS and row[0] != encode_label(BOB)
        ] == []
        service.save_memory(ADA, "back again")
        assert [one.content for one in service.list_memories(ADA)[0]] == ["back again"], "who comes back is remembered"
    if not url.startswith("memory"):
        with open_store(url, embeddings=None) as again:
            assert left_of(again.engine.backend, CANARY) == []


def test_regression_a_worker_in_mid_extraction_brings_nothing_back(url: str, ledger: Ledger, tmp_path: Path) -> None:
    """The memories were written although the user was erased while the model was asked, the outbox being elsewhere."""
    with (
        open_store(url, embeddings=None) as store,
        open_store(f"sqlite:///{tmp_path / 'outbox.db'}", embeddings=None) as other,
    ):
        for outbox_in in (store, other):
            backends = list(dict.fromkeys([store.engine.backend, outbox_in.engine.backend]))
            worker = pipeline_on(store, outbox_in, partial(erased_meanwhile, backends, ledger))
            run(worker.outbox.put(Partition(ADA), [said(CANARY)]))
            report = run(worker.process(Partition(ADA)))
            assert report.outcome is BatchOutcome.LATER
            for backend in backends:
                assert left_of(backend, CANARY, ADA) == []
                assert hits(backend, CANARY, ADA) == 0
            again = pipeline_on(store, outbox_in)
            run(again.outbox.put(Partition(ADA), [said("new")]))
            assert run(again.process(Partition(ADA))).outcome is BatchOutcome.DONE, "who comes back is remembered"
            erase(backends, ADA, ledger)


def erased_meanwhile(backends: list[Backend], ledger: Ledger, messages: Any, offered: Any) -> Any:
    assert erase(backends, ADA, ledger).left == 0
    return word_for_word(messages, offered)


def test_what_began_before_is_refused_also_in_another_process(url: str, ledger: Ledger, tmp_path: Path) -> None:
    """A save that waited for its vectors, notes that waited for their second, an import under way, a warm index."""
    if url.startswith("memory"):
        pytest.skip("of one process")
    with open_store(url, embeddings=None) as store, open_store(url, embeddings=None) as elsewhere:
        memory = elsewhere.memory(ADA)
        memory.add(CANARY, "preferences")
        assert memory.search("zqcanary7")
        exported = tmp_path / "export.jsonl"
        export_store(elsewhere.engine.backend, exported)
        save = AgentMemoryStoreService(elsewhere).scope
        put = Put(
            namespace=(encode_label(ADA), "semantic"),
            key="late",
            value='{"content": "late"}',
            updated_at=save.clock.now(),
        )
        began = elsewhere.engine.write([put])
        first = began.send(None)
        elsewhere.engine.later.put(put)
        assert erase([store.engine.backend], ADA, ledger).left == 0
        with pytest.raises(UserErased, match="nothing was written"):
            resumed(began, first)
        elsewhere.engine.later.flush()
        elsewhere.engine.accesses.flush()
        assert memory.search("zqcanary7") == memory.all() == []
        assert left_of(store.engine.backend, ADA, CANARY) == []
        # The first scope that is made anew counts from 1 again: an index of before must not take it for its own.
        store.memory(ADA).add("likes zebras", "preferences")
        assert [one.content for one in memory.search("zqcanary7 zebras")] == ["likes zebras"]
        memory.add("and now from here", "preferences")


def resumed(began: Operation[Any], first: Any) -> Any:
    """Drives an operation on from its first effect."""

    async def rest() -> Any:
        effect = first
        while True:
            try:
                answer = await effect
            except Exception as error:  # noqa: BLE001 - belongs to the operation
                effect = began.throw(error)
            else:
                effect = began.send(answer)

    try:
        return run(rest())
    except (RuntimeError, StopIteration) as error:
        return error


def test_regression_a_refused_write_leaves_no_name_of_its_user(url: str) -> None:
    """The namespace of a refused write stayed in the tables if another write of the same transaction was accepted."""
    with open_store(url, embeddings=None) as store:
        backend, now = store.engine.backend, FrozenClock().now()

        def batch(user: str, expected: int) -> list[Put | Check]:
            place = (encode_label(user), "semantic")
            check = Check(namespace=beside(backend, (ERASED,), place[0]), key="key", expected=expected)
            return [check, Put(namespace=place, key="k", value="{}", updated_at=now)]

        outcomes = backend.apply([batch(BOB, 0), batch(ADA, 7)])
        assert isinstance(outcomes[1], VersionConflict)
        assert backend.apply([batch(BOB, 0)]) == [[0, 2]]
        assert hits(backend, ADA, encode_label(ADA)) == 0
        tables = backend
        if isinstance(tables, SqlBackend):
            assert encode_label(ADA) not in f"{tables._select('SELECT root FROM memory_scopes', {})}"
        assert backend.apply([batch(ADA, 0)]) == [[0, 1]], "who comes back"


@pytest.mark.parametrize("step", range(10))
def test_an_erasure_that_was_interrupted_is_completed_with_the_same_counts(
    step: int, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        backend = store.engine.backend
        several = put_everywhere(store.engine, ADA, CANARY)
        left = step

        def failing(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    raise StoreUnavailable("killed")
                return call(*args, **options)

            return called

        with monkeypatch.context() as patched:
            for name in ("apply", "erase", "reclaim", "inspect"):
                patched.setattr(backend, name, failing(getattr(backend, name)))
            with suppress(StoreUnavailable):
                erase([backend], ADA, ledger)
        with suppress(UserErased, VersionConflict):
            store.memory(ADA).add("in between", "preferences")
        again = Ledger(ledger.path)
        receipt = erase([backend], ADA, again)
        found = {name: place.found for name, place in receipt.places[backend.name].items()}
        found.pop("audit events", None)  # also of what came after an erasure that had ended
        assert sum(found.values()) - (several - 1) in (0, 1), "with what came after an erasure that had ended"
        assert receipt.left == hits(backend, CANARY, ADA) == 0
        assert [path.name for path in ledger.path.parent.iterdir()] == ["erasures.jsonl"], "no plan is left"
        assert len({entry["id"] for entry in again.entries}) == len(again.entries)


def test_regression_bytes_of_deletes_before_secure_delete_are_overwritten(tmp_path: Path, ledger: Ledger) -> None:
    """SQLite's own builds leave deleted texts in the file: they stayed there for ever, session ids too."""
    path = tmp_path / "m.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        put_everywhere(store.engine, ADA, CANARY)
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA secure_delete = OFF")
        plain.execute("CREATE TABLE old (text)")
        plain.executemany("INSERT INTO old VALUES (?)", [(f"{CANARY} {at} {'x' * 200}",) for at in range(500)])
        plain.execute("DELETE FROM old")
        plain.execute("DELETE FROM memory_meta WHERE name = 'secure_delete'")
        plain.commit()
    assert path.read_bytes().count(CANARY.encode()) > 100
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        reader = sqlite3.connect(path)
        assert erase([store.engine.backend], ADA, ledger).left == 0
        reader.close()
        assert hits(store.engine.backend, CANARY, ADA) == 0
        with store.engine.backend.connections.reader() as own:  # pyright: ignore[reportAttributeAccessIssue]
            assert own.execute("PRAGMA secure_delete").fetchone() == (1,)


def test_regression_copies_of_rows_that_sqlite_moved_are_overwritten(tmp_path: Path, ledger: Ledger) -> None:
    """Rows that SQLite moves to another page leave copies in the free part of the old one; there they stayed."""
    rng = random.Random(5_400)  # by far not each order of rows shows it
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        backend, clock = store.engine.backend, FrozenClock()
        for _ in range(200):
            user, text = (ADA, CANARY) if rng.random() < 0.4 else (BOB, "tea")
            value, key = json.dumps({"content": f"{text} {'x' * rng.randrange(400)}"}), f"k{rng.randrange(200)}"
            place = (encode_label(user), "semantic")
            backend.apply([[Put(namespace=place, key=key, value=value, updated_at=clock.now())]])
        assert erase([backend], ADA, ledger).left == hits(backend, CANARY, ADA) == 0


def test_a_reader_of_an_old_state_is_named(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.stores.backends.sql.sqlite._BUSY_TIMEOUT_MS", 1)
    path = tmp_path / "m.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        put_everywhere(store.engine, ADA, CANARY)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM memory_rows").fetchall()
            receipt = erase([store.engine.backend], ADA, ledger)
            assert any("still reads an old state" in one for one in receipt.remains)
            assert receipt.left == sum(receipt.files.values()) > 0
        assert erase([store.engine.backend], ADA, ledger).left == hits(store.engine.backend, CANARY) == 0


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_restored_backup_is_erased_again_and_who_came_back_stays(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    place, kept = tmp_path / "store", tmp_path / "kept"
    copy: Any = shutil.copytree if kind == "file" else shutil.copy
    url = f"{kind}:///{place}"
    with open_store(url, embeddings=None) as store:
        put_everywhere(store.engine, ADA, CANARY)
        put_everywhere(store.engine, BOB, "bob drinks coffee")
    copy(place, kept)
    with open_store(url, embeddings=None) as store:
        erase([store.engine.backend], ADA, ledger)
        store.memory(ADA).add("back again", "preferences")
        of_bob = digest(store.engine.backend, BOB)
        assert replay([store.engine.backend], ledger) == [], "what she said since is hers"
    with open_store(f"{kind}:///{kept}", embeddings=None) as store:
        seen: list[tuple[int, int]] = []
        (receipt,) = replay(
            [store.engine.backend], Ledger(ledger.path), progress=lambda done, total: seen.append((done, total))
        )
        assert seen[-1] == (2, 2)
        assert receipt.reason.startswith("replay of ")
        assert receipt.left == hits(store.engine.backend, CANARY, ADA) == 0
        assert digest(store.engine.backend, BOB) == of_bob


def test_a_foreign_store_and_a_mapping_are_erased(ledger: Ledger) -> None:
    mapping: dict[str, Any] = {}
    for store in (ForeignBackend(InMemoryStore()), MappingBackend(mapping)):
        engine = StoreEngine(store)
        put_everywhere(engine, ADA, CANARY)
        put_everywhere(engine, BOB, "bob drinks coffee")
        of_bob = digest(store, BOB)
        assert erase([store], ADA, ledger).left == 0
        assert left_of(store, CANARY, ADA) == []
        assert digest(store, BOB) == of_bob
        engine.close()
    assert ADA not in json.dumps(mapping)
    assert encode_label(ADA) not in json.dumps(mapping)
    assert CANARY not in json.dumps(mapping)


def test_traces_that_others_have_too_are_no_traces(tmp_path: Path, ledger: Ledger) -> None:
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        store.memory(ADA).add("likes short answers", "preferences")
        store.memory(BOB).add("likes short answers", "preferences")
        assert erase([store.engine.backend], ADA, ledger).left == 0


ESCAPED = (
    'The boss said "see you on Friday" to all of us',
    "First line\nand a second one",
    "Name:\tAda, in Lisbon",
    r"Her files are in C:\Users\shared",
    'Le garçon a dit "à demain" à tous',
)


@pytest.mark.parametrize("text", ESCAPED)
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_regression_an_escaped_text_that_others_have_too_is_no_trace(
    tmp_path: Path, ledger: Ledger, kind: str, text: str
) -> None:
    """Such a text of another user was searched for without its escapes, so each erasure said that a trace is left."""
    with open_store(f"{kind}:///{tmp_path / 'm'}", embeddings=None) as store:
        for user in (ADA, BOB):
            AgentMemoryStoreService(store).sync.save_memory(user, text)
        assert erase([store.engine.backend], ADA, ledger).left == 0
    assert list(ledger.path.parent.iterdir()) == [ledger.path]


@pytest.mark.parametrize("text", ESCAPED)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_regression_files_are_searched_for_escaped_texts(
    tmp_path: Path, ledger: Ledger, text: str, *, ascii_only: bool
) -> None:
    """The stores' JSON leaves letters with accents as they are; the JSON that was searched for had escapes for them."""
    left = tmp_path / "left"
    left.write_text(json.dumps({"content": text}, ensure_ascii=ascii_only), encoding="utf-8")
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory(ADA, text)
        AgentMemoryStoreService(store).sync.save_memory(BOB, text[:8])
        receipt = erase([store.engine.backend], ADA, ledger, threads=[Files([left])])
    assert (receipt.left, receipt.files[str(left)]) == (1, 1)


def test_regression_an_instant_of_another_row_is_no_trace(tmp_path: Path, ledger: Ledger, clock: FrozenClock) -> None:
    """A memory's recall count holds no text but a time, and the API key of another user has the same."""
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock).sync
        service.save_memory(ADA, "likes short answers")
        assert service.recall_memories(ADA, "answers")
        store.engine.accesses.flush()
        run(create_key(store.engine, clock, user=BOB, permissions=[Permission.READ]))
        assert erase([store.engine.backend], ADA, ledger).left == 0


@dataclass
class Files:
    """Stands for a checkpointer of which nothing was removed: its conversations are the given files."""

    paths: list[Path]
    name: str = "files"

    def there(self) -> dict[str, float]:
        return {}

    def erase(self, threads: Sequence[str]) -> list[str]:
        return []

    def files(self) -> list[Path]:
        return self.paths


def test_regression_files_are_searched_for_short_texts_too(tmp_path: Path, ledger: Ledger) -> None:
    """Of a row with a text shorter than an instant in ISO 8601, the files were searched for the instant."""
    texts = ["Lives in Lisbon", "PIN is 4711", "喜欢在里斯本的海边散步"]
    left = tmp_path / "left"
    left.write_text("\n".join(texts), encoding="utf-8")
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for text in texts:
            service.save_memory(ADA, text)
        receipt = erase([store.engine.backend], ADA, ledger, threads=[Files([left])])
    assert (receipt.left, receipt.files[str(left)]) == (3, 3)


def test_regression_an_id_that_others_have_stored_is_named(tmp_path: Path, ledger: Ledger) -> None:
    """What stood in rows of others counted as no trace, and the receipt was silent about it."""
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        store.memory(ADA).add("likes short answers", "preferences")
        AgentMemoryStoreService(store).sync.save_memory(Space("team"), f"Ask {ADA} for the key")
        receipt = erase([store.engine.backend], ADA, ledger)
        assert receipt.left == 0
        assert any("user's ID" in one for one in receipt.remains)
        assert ADA not in ledger.path.read_text()
        receipt = erase([store.engine.backend], BOB, ledger)
        assert receipt.remains == ()


def test_regression_a_space_is_refused_and_a_uuid_is_a_user(tmp_path: Path, ledger: Ledger) -> None:
    """Both ended with an AttributeError, after the fence was put up."""
    user = uuid4()
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None, audit=False) as store:
        with pytest.raises(InvalidId, match="A space is not a user"):
            erase([store.engine.backend], Space("team"), ledger)
        AgentMemoryStoreService(store).sync.save_memory(user, CANARY)
        assert erase([store.engine.backend], user, ledger).places[store.engine.backend.name]["memories"].found == 1


def test_a_ledger_that_was_changed_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    with open_store("memory://", embeddings=None) as store:
        erase([store.engine.backend], ADA, ledger)
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert ADA not in ledger.path.read_text()
    text = ledger.path.read_text()
    others = (text.replace("inference-core-erasures", "else"), "x", f"{text}[]\n")
    for changed in (text.replace('"found": 0', '"found": 1'), *others):
        ledger.path.write_text(changed)
        with pytest.raises(ConfigurationError, match="not a ledger of erasures"):
            Ledger(ledger.path)


def test_two_processes_share_a_ledger_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "ledger.jsonl"), Ledger(tmp_path / "ledger.jsonl")
    with open_store("memory://", embeddings=None) as store:
        first = erase([store.engine.backend], ADA, one)
        with one.path.open("a") as file:
            file.write('{"id": "torn')
        second = erase([store.engine.backend], ADA, two)
    assert first.subject == second.subject
    assert [entry["id"] for entry in Ledger(one.path).entries] == [first.id, second.id]
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


@pytest.mark.parametrize("written", ["now", "before"])
def test_regression_line_ends_within_a_receipt_do_not_cut_it(tmp_path: Path, ledger: Ledger, written: str) -> None:
    """A reason with such a character made two lines of a receipt, which were left out: a replay spared the user."""
    reason = "asked by mail\u2028on Monday\u2029again\u0085\x1c"
    url = f"sqlite:///{tmp_path / 'm.db'}"
    with open_store(url, embeddings=None) as store:
        store.memory(ADA).add(CANARY)
    shutil.copy(tmp_path / "m.db", tmp_path / "old.db")
    with open_store(url, embeddings=None) as store:
        receipt = erase([store.engine.backend], ADA, ledger, reason=reason)
    if written == "before":  # as earlier versions wrote it
        head = ledger.path.read_bytes().split(b"\n")[0].decode()
        line = json.dumps(receipt.to_json(), ensure_ascii=False)
        ledger.path.write_text(f"{head}\n\n{line}\n", encoding="utf-8")
    again = Ledger(ledger.path)
    assert [(entry["id"], entry["reason"]) for entry in again.entries] == [(receipt.id, reason)]
    with open_store(f"sqlite:///{tmp_path / 'old.db'}", embeddings=None) as store:
        assert [one.found for one in replay([store.engine.backend], again)] == [receipt.found]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"[]", b'"x"'])
def test_regression_a_file_of_anything_else_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    """An empty one ended with a ValueError about values to unpack."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="not a ledger of erasures"):
        Ledger(path)


def test_regression_what_is_no_unicode_is_escaped_in_a_receipt(tmp_path: Path, ledger: Ledger) -> None:
    """When everything was removed, such a reason or the name of a file made the receipt fail, and the fence stayed."""
    (left := tmp_path / "left\udcff").write_text(CANARY)
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        store.memory(ADA).add(CANARY)
        receipt = erase([store.engine.backend], ADA, ledger, reason="why\ud83d\ude00", threads=[Files([left])])
        store.memory(ADA).add("is back")
    (entry,) = Ledger(ledger.path).entries
    assert entry == receipt.to_json()
    assert entry["reason"] == r"why\ud83d\ude00"
    assert entry["files"][str(tmp_path / r"left\udcff")] == 1


def test_regression_new_files_are_their_owners_alone(tmp_path: Path) -> None:
    """Databases and journals were made readable to every account of the machine."""
    for url in (f"sqlite:///{tmp_path / 'm.db'}", f"file:///{tmp_path / 'f'}"):
        with open_store(url, embeddings=None) as store:
            store.memory(ADA).add(CANARY, "preferences")
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made) >= 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}


def test_ten_thousand_memories_take_less_than_half_a_minute(tmp_path: Path, ledger: Ledger, full: bool) -> None:
    count = 10_000 if full else 500
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None, audit=False) as store:
        now = FrozenClock().now()
        for start in range(0, count, 500):
            names = [f"{CANARY} {at}" for at in range(start, start + 500)]
            puts = [
                Put(
                    namespace=(encode_label(ADA), "semantic"),
                    key=name,
                    value=json.dumps({"content": name}),
                    document=Document.of(name),
                    updated_at=now,
                )
                for name in names
            ]
            run(store.engine.write(puts))
        began = time.monotonic()
        assert erase([store.engine.backend], ADA, ledger).found == count
        assert time.monotonic() - began < 30
        assert hits(store.engine.backend, CANARY) == 0


def test_every_label_of_the_package_is_a_place_with_an_eraser() -> None:
    """A namespace that no place names would stay out of receipts, and under another root it would not be erased."""
    trees = [ast.parse(path.read_text()) for path in Path(inference_core.__file__).parent.rglob("*.py")]
    by_module = [constants_of(tree) for tree in trees]
    anywhere = {name: {one[name] for one in by_module if name in one} for name in set().union(*by_module)}
    labels, roots = set[str](), set[str]()
    for tree, own in zip(trees, by_module, strict=True):
        known = anywhere | {name: {value} for name, value in own.items()}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call | ast.Tuple):
                continue
            match node:
                case ast.Call(func=ast.Name("sidecar_namespace"), args=[_, ast.Name(name)]):
                    labels |= known.get(name, set())
                case ast.Tuple(elts=[ast.Call(func=ast.Name("encode_label")), ast.Name(name), *_]):
                    labels |= known.get(name, set())
                case ast.Tuple(elts=[ast.Name("user" | "root" | "label"), ast.Name(name), *_]):
                    labels |= known.get(name, set())
                case ast.Tuple(elts=[ast.Call(func=ast.Name("encode_label")), ast.Constant(str(value)), *_]):
                    labels.add(value)
                case ast.Tuple(elts=[ast.Name(name), *_]):
                    roots |= {one for one in known.get(name, ()) if one[:1] in ("~", "#")}
                case ast.Tuple(elts=[ast.Constant(str(value)), *_]) if value[:1] in ("~", "#"):
                    roots.add(value)
                case _:
                    pass
    assert {OUTBOX, "jobs", "~receipts", "usage", "~holds", "~quota"} <= labels
    assert labels <= PLACES.keys(), "name it in memory/namespaces.py"
    roots -= PLACES.keys()
    assert {QUEUE_ROOT, ERASED} <= roots <= ROOTS.keys(), "name it in memory/namespaces.py, with the user id field"


def constants_of(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives names to."""
    found: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.Constant(str(value))):
                found[name] = value
            case _:
                pass
    return found


def test_a_receipt_says_what_is_left() -> None:
    empty = ErasureReceipt(id="1", subject="s", began="", ended="", by="", reason="", places={}, files={"f": 2})
    assert (empty.found, empty.left) == (0, 2)


def test_fences_know_each_other_by_database() -> None:
    with open_store("memory://", embeddings=None) as store:
        assert fences_of(store.engine.backend) is store.engine.fences
