"""Legal holds: no operation removes what is under one, on any store, and everything else goes on."""

from __future__ import annotations

import ast
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from databases import database
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from mongo_support import mongodb
from outbox_support import Scripted, said, undone

import inference_core
from inference_core import AgentMemoryStoreService, ForgettingPolicy, MemoryLifecycle, open_store
from inference_core.effects import run
from inference_core.errors import Held, InvalidInput, MemoryNotFound, UserErased
from inference_core.ingestion.worker import Pipeline
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.lifecycle.repairs import find_damage, find_secrets, mend, redact
from inference_core.lifecycle.retention import RetentionPolicy, retain
from inference_core.memory.namespaces import HOLDS
from inference_core.memory.redaction import Guard
from inference_core.outbox.outbox import DEAD, Limits, Outbox, Partition, drop
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.services.operations.receipts import RECEIPTS
from inference_core.services.user_memories import delete_user_memory_entries, purge_user_memories
from inference_core.short_term.agent_memory import remove_session
from inference_core.short_term.blocks.memory import UserSession
from inference_core.stores.backend import EXTRA, Expiry, Put, Row, Unreadable
from inference_core.stores.engine import StoreEngine
from inference_core.stores.rules.holds import MARKER
from inference_core.stores.rules.write_rules import rules_of
from inference_core.stores.store import MemoryStore
from inference_core.testing import FrozenClock
from inference_core.transfer.copying import ConflictPolicy
from inference_core.transfer.json_lines import export_store, import_store

STORES = ("sqlite", "postgres", "redis", "file", "memory", "sealed", "mongodb-mock", "langgraph")
SECRET = "AKIA" + "Q7ZK3M5N2P4R6T8V"


class World:
    """Ada and Bob on a store: each has memories, versions, an archive, receipts, messages and dead letters."""

    def __init__(self, store: BaseStore, clock: FrozenClock, folder: Path) -> None:
        self.store, self.clock, self.folder = store, clock, folder
        self.secrets: Any = None if isinstance(store, MemoryStore) else "off"
        self.service = AgentMemoryStoreService(store, clock=clock, secrets=self.secrets)
        self.sync = self.service.sync
        self.engine = self.service.scope.engine
        self.outbox = Outbox(self.engine, clock, Limits(max_tries=1))
        for user in ("ada", "bob"):
            self.fill(user)

    def fill(self, user: str) -> None:
        for number in range(3):
            self.sync.save_memory(
                user, f"{user} likes number {number}", "facts", memory_id=f"m{number}", session_id="s"
            )
        self.sync.save_memory(user, f"The key is {SECRET}", memory_id="secret")
        self.sync.save_memory(user, f"{user} likes trains", "facts", memory_id="gone")
        self.sync.delete_memory(user, "gone")
        self.sync.update_memory(user, "m0", f"{user} likes number zero")
        now = self.clock.now()
        over = Expiry(now + timedelta(hours=1), timedelta(hours=1))
        put = Put(namespace=(user, "semantic"), key="brief", value='{"content": "brief"}', updated_at=now, expiry=over)
        receipt = Put(namespace=(user, RECEIPTS), key="r", value='{"told": []}', updated_at=now)
        item = Put(namespace=(user, "items"), key="i", value='{"text": "an item"}', updated_at=now)
        window = Put(namespace=(user, "short_term", "s"), key="w", value='{"text": "hello"}', updated_at=now)
        run(self.engine.write([put, receipt, item, window]))
        if self.engine.backend.capabilities.atomic:
            run(self.outbox.put(Partition(user), [said(f"{user} said this")]))
            pipeline = Pipeline(self.service.scope, Scripted(fails), outbox=self.outbox)
            with suppress(RuntimeError):
                run(pipeline.process(Partition(user)))

    def texts(self, user: str) -> Counter[str]:
        """Every text in every row of the user, with how often it is there."""
        return Counter(text for row in self.rows(user) for text in texts_in(row.value))

    def rows(self, user: str) -> list[Row]:
        return [one for one in self.engine.backend.inspect(user) if isinstance(one, Row)]


def fails(*_: Any) -> Any:
    raise RuntimeError("no model")


def texts_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for name, one in value.items() if name != EXTRA for text in texts_in(one)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [text for one in value for text in texts_in(one)]  # pyright: ignore[reportUnknownVariableType]
    return [value] if isinstance(value, str) and " " in value else []


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[World]:
    clock = FrozenClock()
    if request.param == "langgraph":
        yield World(InMemoryStore(), clock, tmp_path)
        return
    given: dict[str, Any] = {"embeddings": None, "clock": clock, "secrets": "off"}
    if request.param == "mongodb-mock":
        with mongodb(clock) as backend, closing(StoreEngine(backend, secrets="off")) as engine:
            yield World(MemoryStore(engine, clock=clock), clock, tmp_path)
        return
    if request.param == "sealed":
        given |= {"keys": f"file:///{tmp_path}/keys.json", "encryption_key": bytes(32)}
    kind = "sqlite" if request.param == "sealed" else request.param
    with database(kind, tmp_path) as url, open_store(url, **given) as store:
        yield World(store, clock, tmp_path)


def _retention(world: World) -> object:
    policy = RetentionPolicy(days={"all": 0, "archive": 0, "versions": 0, "receipts": 0, "conversations": 0})
    return run(retain(world.service.scope, "ada", policy))


def _erase(world: World) -> object:
    return erase([world.engine.backend], "ada", Ledger(world.folder / "ledger.jsonl"))


def _lifecycle(world: World, policy: ForgettingPolicy) -> object:
    return MemoryLifecycle(world.service).sync.forget("ada", policy)


def _expire(world: World) -> object:
    world.clock.advance(timedelta(days=400))
    return run(world.engine.remove_expired())


def _scan(world: World) -> object:
    return redact(
        world.engine.backend, Guard("redact"), list(find_secrets(world.engine.backend, Guard("redact"), ["ada"]))
    )


def _import(world: World) -> object:
    """Another text under the same id."""
    file = world.folder / "other.jsonl"
    with open_store("memory://", embeddings=None) as other:
        AgentMemoryStoreService(other).sync.save_memory("ada", "Another text", "facts", memory_id="m1")
        export_store(other.engine.backend, file)
    return import_store(file, world.engine.backend, policy=ConflictPolicy.REPLACE)


def bare_on(world: World) -> SyncMemoryService:
    """A service that keeps no earlier texts."""
    return AgentMemoryStoreService(world.store, clock=world.clock, deleted_days=0, secrets=world.secrets).sync


def _replace(world: World) -> object:
    bare = bare_on(world)
    bare.update_memory("ada", "m1", "Ada likes the number one")
    bare.update_memory("ada", "m1", memory_type="interaction")
    return bare.save_memory("ada", "Another text", "facts", memory_id="m2")


REMOVERS: dict[str, tuple[Callable[[World], object], str]] = {
    "delete": (lambda world: world.sync.delete_memory("ada", "m1"), "held"),
    "delete for good": (lambda world: world.sync.delete_memory("ada", "m1", erase=True), "held"),
    "delete what is archived": (lambda world: world.sync.delete_memory("ada", "gone", erase=True), "held"),
    "delete all": (lambda world: world.sync.delete_user_memories("ada"), "held"),
    "delete entries": (
        lambda world: delete_user_memory_entries(world.store, "ada", [(("ada", "semantic"), "m1")]),
        "held",
    ),
    "purge": (lambda world: purge_user_memories(world.store, "ada"), "held"),
    "purge a category": (lambda world: purge_user_memories(world.store, "ada", "semantic"), "held"),
    "erase": (_erase, "held"),
    "undo": (lambda world: undone(world.service.scope, "ada", session_id="s"), "held"),
    "an item of the application": (lambda world: world.store.delete(("ada", "items"), "i"), "held"),
    "forget": (lambda world: _lifecycle(world, ForgettingPolicy(max_memories={"all": 1})), "passed over"),
    "forget for good": (
        lambda world: world.clock.advance(timedelta(days=90)) or _lifecycle(world, ForgettingPolicy(keep_days=0)),
        "passed over",
    ),
    "retention": (_retention, "passed over"),
    "expiry": (_expire, "passed over"),
    "replace without versions": (_replace, "copied"),
    "replace an item": (lambda world: world.store.put(("ada", "items"), "i", {"text": "another one"}), "copied"),
    "import": (_import, "copied"),
    "redact": (_scan, "copied"),
    "remove a conversation": (
        lambda world: run(remove_session(world.service.scope, UserSession("ada", "s"))),
        "copied",
    ),
}


def attempted(world: World, remover: Callable[[World], object], outcome: str) -> None:
    if outcome == "held":
        with pytest.raises(Held, match="a legal hold keeps it"):
            remover(world)
    else:
        remover(world)


def test_no_operation_loses_a_row_under_a_hold(world: World) -> None:
    """Nothing stopped any of these from removing what a court had asked to keep."""
    world.sync.hold("ada", "case 7")
    before = world.texts("ada")
    assert before.total() > 8
    for name, (remover, outcome) in REMOVERS.items():
        if name == "an item of the application" and isinstance(world.store, InMemoryStore):
            continue  # of that store's own API nobody else knows
        if name == "replace an item" and isinstance(world.store, InMemoryStore):
            continue
        attempted(world, remover, outcome)
        assert not before - world.texts("ada"), name
    assert world.sync.delete_memory("bob", "m1"), "others are free"
    (hold,) = world.sync.list_holds("ada")
    assert world.sync.release_hold("ada", hold.id)
    assert not world.sync.release_hold("ada", hold.id)
    assert world.sync.list_holds("ada") == world.sync.list_held_copies("ada") == []
    purge_user_memories(world.store, "ada")
    assert world.texts("ada") == Counter()


def test_dead_letters_and_receipts_stay(world: World) -> None:
    if not world.engine.backend.capabilities.atomic:
        pytest.skip("no outbox")
    assert any(row.namespace[1] == DEAD for row in world.rows("ada"))
    world.sync.hold("ada", "case 7")
    before = world.texts("ada")
    with pytest.raises(Held):
        run(drop(world.engine))
    assert not before - world.texts("ada")


def test_a_hold_on_a_memory_or_a_session_leaves_the_rest_free(world: World) -> None:
    world.sync.hold("ada", "case 7", memory_id="m1")
    with pytest.raises(Held):
        world.sync.delete_memory("ada", "m1")
    assert world.sync.delete_memory("ada", "m2")
    world.sync.hold("bob", "case 8", session_id="s")
    with pytest.raises(Held):
        world.sync.delete_memory("bob", "m2")
    assert world.sync.delete_memory("bob", "secret")
    before = {user: world.texts(user) for user in ("ada", "bob")}
    for user in ("ada", "bob"):
        MemoryLifecycle(world.service).sync.forget(user, ForgettingPolicy(max_memories={"all": 0}))
        run(retain(world.service.scope, user, RetentionPolicy(days={"all": 0, "archive": 0})))
    assert world.texts("ada")["ada likes number 1"] == before["ada"]["ada likes number 1"] == 1
    assert {f"bob likes number {number}" for number in range(3)} <= {*world.texts("bob")}
    assert world.sync.get_memory("bob", "secret") is None


def test_regression_an_earlier_text_of_a_held_session_stops_no_retention(world: World) -> None:
    """The hold on it refused the removal of the memory and, with that, of all that was overdue."""
    for session in ("s1", "s2"):
        world.sync.save_memory("ada", f"Ada said it in {session}", "facts", memory_id="x", session_id=session)
    world.sync.hold("ada", "case 7", session_id="s1")
    policy = RetentionPolicy(days={"all": 0})
    foreseen = run(retain(world.service.scope, "ada", policy, dry_run=True))
    assert run(retain(world.service.scope, "ada", policy)) == foreseen
    MemoryLifecycle(world.service).sync.forget("ada", ForgettingPolicy(max_memories={"all": 0}))
    assert [one.id for one in world.sync.list_memories("ada")[0]] == ["x"]


@pytest.mark.parametrize(
    "batch",
    [
        [PutOp(("ada", HOLDS), MARKER, {}), PutOp(("ada", "semantic"), "m1", None)],
        [PutOp(("ada", HOLDS), MARKER, {}, ttl=0.0001)],
    ],
)
def test_regression_no_write_of_the_marker_lets_a_removal_pass(world: World, batch: list[PutOp]) -> None:
    """A batch that wrote it was not checked at all, and a marker that expires ended all holds."""
    if isinstance(world.store, InMemoryStore):
        pytest.skip("its own methods do not check for holds")
    world.sync.hold("ada", "case 7")
    with pytest.raises(Held):
        world.store.batch(batch)
    assert world.sync.get_memory("ada", "m1")


def test_a_hold_that_another_process_begins_counts_in_the_same_transaction(tmp_path: Path) -> None:
    """A process that has never heard of the hold removes nothing after it."""
    url = f"sqlite:///{tmp_path / 'm.db'}"
    with open_store(url, embeddings=None) as store, open_store(url, embeddings=None) as elsewhere:
        here, there = AgentMemoryStoreService(store).sync, AgentMemoryStoreService(elsewhere).sync
        here.save_memory("ada", "Likes tea", memory_id="a")
        here.save_memory("ada", "Likes milk", memory_id="b")
        assert there.delete_memory("ada", "b")
        hold = here.hold("ada", "case 7")
        with pytest.raises(Held) as refused:
            there.delete_memory("ada", "a")
        assert refused.value.holds == (hold.id,)
        assert "case 7" not in str(refused.value), "whom the hold is about may read it"
        assert here.release_hold("ada", hold.id)
        assert there.delete_memory("ada", "a")


def test_a_hold_ends_by_itself_on_its_day(world: World) -> None:
    if isinstance(world.store, InMemoryStore):
        pytest.skip("its clock is the machine's")
    hold = world.sync.hold("ada", "case 7", until=world.clock.now() + timedelta(days=30))
    bare = bare_on(world)
    bare.update_memory("ada", "m1", "Ada likes the number one")
    (copy,) = world.sync.list_held_copies("ada")
    assert (copy.place, copy.key, copy.value["content"]) == ("semantic", "m1", "ada likes number 1")
    world.clock.advance(timedelta(days=29))
    assert world.sync.list_holds("ada") == [hold]
    with pytest.raises(Held):
        world.sync.delete_memory("ada", "m1")
    world.clock.advance(timedelta(days=2))
    assert world.sync.list_holds("ada") == []
    assert world.sync.delete_memory("ada", "m1")


def test_what_cannot_be_held_is_said(world: World) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        world.sync.hold("ada", "case", memory_id="m1", session_id="s")
    with pytest.raises(InvalidInput, match="future"):
        world.sync.hold("ada", "case", until=world.clock.now())
    with pytest.raises(InvalidInput):
        world.sync.hold("ada", " ")
    with pytest.raises(MemoryNotFound):
        world.sync.hold("ada", "case", memory_id="m9")
    assert world.sync.list_holds("ada") == []


def test_holds_are_audited_and_no_undo_ends_them(world: World) -> None:
    first = world.sync.hold("ada", "case 7")
    second = world.sync.hold("ada", "case 8", memory_id="m1")
    world.sync.release_hold("ada", first.id)
    told = [event.operation for event in world.sync.audit("ada") if "hold" in event.operation]
    assert sorted(told) == ["hold", "hold", "release hold"]
    with pytest.raises(Held):
        undone(world.service.scope, "ada", session_id="s")
    assert world.sync.list_holds("ada") == [second]


def test_an_erasure_that_meets_a_hold_leaves_no_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold begins after the first look: the fence must go down again, lest nobody may write any more."""
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        memory.save_memory("ada", "Likes tea")
        ledger = Ledger(tmp_path / "ledger.jsonl")
        made = Ledger.make

        def held_meanwhile(own: Ledger) -> None:
            memory.hold("ada", "case 7")
            made(own)

        monkeypatch.setattr(Ledger, "make", held_meanwhile)
        with pytest.raises(Held):
            erase([store.engine.backend], "ada", ledger)
        with suppress(UserErased):  # what began before
            memory.save_memory("ada", "Likes milk")
        memory.save_memory("ada", "Likes juice")
        assert {one.content for one in memory.list_memories("ada")[0]} >= {"Likes tea", "Likes juice"}


def test_damage_of_a_held_user_is_not_removed(tmp_path: Path) -> None:
    """What cannot be read may be what the hold is about."""
    path = tmp_path / "m.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        memory.save_memory("ada", "Likes tea")
        hold = memory.hold("ada", "case 7")
        with closing(sqlite3.connect(path)) as plain:
            plain.execute("UPDATE memory_rows SET value = CAST(x'ff00' AS TEXT) WHERE value LIKE '%tea%'")
            plain.commit()
        damages = list(find_damage(store.engine.backend))
        assert any(isinstance(one.found, Unreadable) for one in damages)
        with pytest.raises(Held):
            mend(store.engine.backend, damages)
        memory.release_hold("ada", hold.id)
        assert mend(store.engine.backend, damages) == len(damages)


GUARDED = {
    "lifecycle/erasing.py": {"store.erase"},  # behind a look at the holds and the fence
    "lifecycle/repairs.py": {"audit_log.discard", "audit_log.apply"},
    "stores/engine.py": {"self.audit_log.discard"},
    "stores/rules/audit_log.py": {"backend.apply"},  # seals alone
    "stores/rules/write_rules.py": {"self._backend.apply", "self._backend.discard"},
    "transfer/copying.py": {"audit_log.apply", "self._audit_log.apply"},
}
"""Who hands removals to a backend behind a look at the holds, or to a journal, which hands them to the `Rules`."""
NEEDS_NONE = {
    "outbox/outbox.py": {"backend.apply"},  # lists of work alone
    "stores/rules/erasure_epoch.py": {"self._backend.apply"},  # fences alone
    "stores/rules/quotas.py": {"self._backend.apply"},  # counts alone
    "stores/encryption/encrypted.py": {
        "self.inner.apply",
        "self.inner.erase",
        "self.inner.discard",
    },  # of calls that have come that way
    "transfer/backup.py": {"store.apply"},  # into an empty store
}


REMOVALS = ("apply", "erase", "discard")


def test_whoever_removes_anything_consults_the_holds() -> None:
    """A new way around the holds fails here: write by `Rules.apply`, and add what it does to REMOVERS."""
    package = Path(inference_core.__file__).parent
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        name, text = path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")
        if not name.startswith("stores/backends/") and any(f".{one}(" in text for one in REMOVALS):
            own = {
                ast.unparse(node.func)
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REMOVALS
            }
            owners = ("backend", "store", "inner", "_backend", "audit_log", "_audit_log")
            if chosen := {one for one in own if one.rpartition(".")[0].split(".")[-1] in owners}:
                found[name] = chosen
    assert found == GUARDED | NEEDS_NONE


def test_every_writer_of_an_engine_passes_the_holds(world: World) -> None:
    engine: Any = world.engine
    writers = engine.rules, engine.audit_log.rules, engine._writer._rules, engine.later._writer._rules
    assert all(one is rules_of(engine.backend) for one in writers)
