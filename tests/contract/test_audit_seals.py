"""The chain over the audit trail: whatever is done to a sealed trail without its key is named."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli.app import run
from inference_core.errors import StoreBusy, StoreUnavailable
from inference_core.lifecycle import erasing
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import AUDIT, SALT, SEALS
from inference_core.memory.text import encode_json
from inference_core.services.user_memories import purge_user_memories
from inference_core.stores.backend import EXTRA, Backend, Batch, Outcome, PageRequest, Put, Remove, Row
from inference_core.stores.rules import audit_log as trails
from inference_core.stores.rules.audit_log import EVENT_KIND, Sealer, check_trail

USER = "zoe"
"""No hexadecimal number, which might be part of a pseudonym."""


@pytest.fixture(params=["memory", "sqlite", "langgraph"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "langgraph":
        yield AgentMemoryStoreService(InMemoryStore(), timeout=None)
        return
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=None) as store:
        yield AgentMemoryStoreService(store, timeout=None)


def history(service: Any, count: int = 12) -> None:
    """Saves, changes and deletes, sealed in three portions."""
    for number in range(count):
        service.sync.save_memory(USER, f"fact {number}", memory_id=f"m{number}")
        if number % 3 == 1:
            service.sync.update_memory(USER, f"m{number}", f"fact {number} again")
        if number % 4 == 3:
            service.sync.delete_memory(USER, f"m{number}")
            seal(service)
    seal(service)


def seal(service: Any) -> None:
    made = Sealer(service.scope.engine.audit_log)
    while made.seal_portion():
        pass


def rows_of(service: Any) -> list[Row]:
    backend: Backend = service.scope.engine.backend
    seals = trails._place(service.scope.engine.audit_log, USER)
    rows = backend.page(PageRequest([(USER, AUDIT), seals], limit=1_000))
    return [row for row in rows if row.key != SALT]


def written(service: Any, *writes: Any) -> None:
    """Writes as somebody does who has the database and not the key."""
    (outcome,) = service.scope.engine.backend.apply([list(writes)])
    assert not isinstance(outcome, Exception), outcome


def put_of(row: Row, value: dict[str, Any] | None = None, key: str | None = None) -> Put:
    return Put(
        namespace=row.namespace,
        key=key or row.key,
        value=encode_json(row.value if value is None else value, what="row"),
        kind=EVENT_KIND if row.namespace[1:] == (AUDIT,) else "",
        created_at=row.created_at,
        updated_at=row.updated_at,
        expiry=row.expiry,
    )


def test_a_trail_that_nobody_touched_is_whole_and_keeps_its_head(service: Any) -> None:
    history(service)
    first = service.sync.verify_audit(USER)
    assert (first.problems, first.events, first.sealed) == ((), 19, 19)
    service.sync.save_memory(USER, "later")
    assert service.sync.verify_audit(USER).sealed == 19, "not sealed yet, and known to be genuine by its own MAC"
    seal(service)
    second = service.sync.verify_audit(USER, head=first.head)
    assert (second.problems, second.sealed) == ((), 20)
    assert second.head != first.head
    assert service.sync.verify_audit("eve").problems == ()
    assert service.sync.verify_audit("eve").events == 0


def name_of(row: Row) -> str:
    """How problems name it."""
    return f"event {row.key} " if row.namespace[1:] == (AUDIT,) else f"seal {int(row.key)} "


def removed(*rows: Row) -> list[Any]:
    return [Remove(namespace=row.namespace, key=row.key) for row in rows]


def tampered(rng: random.Random, service: Any) -> tuple[list[Any], list[Any], set[str]]:
    """The writes of a random tamper, those that mend it, and what must be named."""
    backend: Backend = service.scope.engine.backend
    rows = rows_of(service)
    one, other = rng.sample(rows, 2)
    events = [row for row in rows if row.namespace[1:] == (AUDIT,)]
    all_events = set(map(name_of, events))
    salt, others = backend.get([((USER, AUDIT), SALT), (("eve", AUDIT), SALT)])
    assert salt
    assert others
    match rng.randrange(8):
        case 0:  # changed: a field of an event, or of a seal
            field = rng.choice(sorted(one.value.keys() - {EXTRA}))
            value = {**one.value, field: {"kind": "user"} if field == "actor" else f"{one.value[field]}0"}
            return [put_of(one, value)], [put_of(one)], {name_of(one)}
        case 1:  # removed
            is_last = one.namespace[0] == SEALS and one.key == max(row.key for row in rows if row.namespace[0] == SEALS)
            # What is left of a chain that was cut is whole: only the head that was kept elsewhere tells.
            return removed(one), [put_of(one)], {"the chain does not hold this head" if is_last else name_of(one)}
        case 2:  # added: a copy of another event, under an id of its own
            made = rng.choice(events)
            place = f"{int(made.key[:17]) + 1:017d}-abcdef01"
            return [put_of(made, key=place)], [Remove(namespace=made.namespace, key=place)], {f"event {place} "}
        case 3:  # reordered
            first, second = rng.sample(events, 2) if one.namespace != other.namespace else (one, other)
            swapped = [put_of(first, second.value), put_of(second, first.value)]
            return swapped, [put_of(first), put_of(second)], {name_of(first), name_of(second)}
        case 4:  # the key replaced, or another user's
            value = rng.choice([{"salt": "0" * 32}, others.value])
            return [put_of(salt, value)], [put_of(salt)], all_events
        case 5:  # the key removed
            return removed(salt), [put_of(salt)], all_events
        case 6:  # all removed, with a new key or none
            key = rng.choice([removed(salt), [put_of(salt, {"salt": "0" * 32})], [put_of(salt, others.value)], []])
            return [*removed(*events), *key], [put_of(row) for row in (*events, salt)], all_events
        case _:  # some events removed with the key
            some = rng.sample(events, rng.randrange(1, len(events)))
            return [*removed(*some), *removed(salt)], [put_of(row) for row in (*some, salt)], set(map(name_of, some))


def test_each_tamper_is_named(service: Any, full: bool) -> None:
    history(service)
    service.sync.save_memory("eve", "Lives in Rome")
    seal(service)
    audit_log, rng = service.scope.engine.audit_log, random.Random(11)
    head = check_trail(audit_log, USER).head
    for number in range(1_000 if full else 60):
        writes, repairs, named = tampered(rng, service)
        written(service, *writes)
        found = check_trail(audit_log, USER, head).problems
        unnamed = {name for name in named if not any(problem.startswith(name) for problem in found)}
        assert not unnamed, f"tamper {number} was not noticed: {writes}"
        written(service, *repairs)
    assert check_trail(audit_log, USER, head).problems == ()


def test_a_seal_that_is_no_seal_and_a_chain_that_was_cut_are_named(service: Any) -> None:
    history(service)
    head = service.sync.verify_audit(USER).head
    seals = sorted((row for row in rows_of(service) if row.namespace[0] == SEALS), key=lambda row: row.key)
    written(service, put_of(seals[1], {"number": 2}))
    assert service.sync.verify_audit(USER).problems[0] == "seal 2 was changed"
    written(service, Remove(namespace=seals[1].namespace, key=seals[1].key))
    assert "seal 2 is missing" in service.sync.verify_audit(USER).problems
    written(service, put_of(seals[1]))
    # Cut at the end: what is left is whole, so only the head that was kept elsewhere tells.
    written(service, Remove(namespace=seals[-1].namespace, key=seals[-1].key))
    assert service.sync.verify_audit(USER).problems == ()
    assert service.sync.verify_audit(USER, head=head).problems == (
        "the chain does not hold this head: it was cut or made anew",
    )


@pytest.mark.parametrize("is_back", [False, True])
def test_regression_a_trail_that_was_removed_with_its_key_is_no_erasure(service: Any, is_back: bool) -> None:
    """All its events counted as erased and the trail as whole, at the latest after the next save made a new key."""
    history(service)
    head = service.sync.verify_audit(USER).head
    events = [row.key for row in rows_of(service) if row.namespace[1:] == (AUDIT,)]
    written(service, *(Remove(namespace=(USER, AUDIT), key=key) for key in (*events, SALT)))
    if is_back:
        service.sync.save_memory(USER, "later")
        seal(service)
    found = service.sync.verify_audit(USER, head=head)
    assert sorted(found.problems) == sorted(f"event {event} was removed" for event in events)
    purge_user_memories(service.store, USER)
    assert set(found.problems) <= set(service.sync.verify_audit(USER).problems), "an honest end hides no theft"


def test_an_end_that_was_forged_or_moved_ends_nothing(service: Any) -> None:
    history(service, 4)
    purge_user_memories(service.store, USER)
    (end,) = (row for row in rows_of(service) if row.value.get("events") == [])
    service.sync.save_memory(USER, "back again")
    seal(service)
    (event,) = (row for row in rows_of(service) if row.namespace[1:] == (AUDIT,))
    (last,) = (row for row in rows_of(service) if row.namespace[0] == SEALS and int(row.key) > int(end.key))
    number = int(last.key) + 1
    forged = {**end.value, "number": number, "key": last.value["key"], "previous": last.value["head"]}
    written(service, *removed(event), put_of(end, forged, f"{number:010d}"))
    assert set(service.sync.verify_audit(USER).problems) == {
        f"seal {number} was changed",
        f"event {event.key} was removed",
    }


@pytest.mark.parametrize("is_sealed", [True, False])
def test_an_erasure_seals_the_end_once_however_often_it_runs(service: Any, tmp_path: Path, is_sealed: bool) -> None:
    backend: Backend = service.scope.engine.backend
    service.sync.save_memory(USER, "one")
    if is_sealed:
        seal(service)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.MonkeyPatch.context() as patched:  # killed when the end is sealed and nothing is removed yet
        patched.setattr(backend, "erase", Mock(side_effect=KeyboardInterrupt), raising=False)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                erasing.erase([backend], USER, ledger)
    assert service.sync.verify_audit(USER).problems == ()
    for _ in range(2):
        assert erasing.erase([backend], USER, ledger).left == 0
    found = service.sync.verify_audit(USER)
    assert (found.problems, found.erased) == ((), int(is_sealed))
    assert [row.value["events"] for row in rows_of(service)].count([]) == 1
    service.sync.save_memory(USER, "back again")
    seal(service)
    assert (service.sync.verify_audit(USER).problems, service.sync.verify_audit(USER).sealed) == ((), 1)


def test_a_purge_that_was_killed_between_two_portions_took_no_event(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(service)
    audit_log = service.scope.engine.audit_log
    monkeypatch.setattr(trails, "_PAGE", 5)
    with monkeypatch.context() as patched:
        apply, left = audit_log.backend.apply, iter([True])

        def killed(batches: Any) -> Any:
            if next(left, False):
                return apply(batches)
            raise KeyboardInterrupt

        patched.setattr(audit_log.backend, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            trails.end_trail(audit_log, USER)
    half = check_trail(audit_log, USER)
    assert (half.problems, half.erased, half.events) == ((), 5, 14)
    service.sync.save_memory(USER, "goes on")
    seal(service)
    assert check_trail(audit_log, USER).problems == ()
    trails.end_trail(audit_log, USER)
    assert (check_trail(audit_log, USER).problems, check_trail(audit_log, USER).erased) == ((), 20)


def test_a_purge_with_auditing_off_is_no_theft(tmp_path: Path) -> None:
    """The events counted as taken if memories were saved without auditing after a purge."""
    url = f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory(USER, "one")
    with open_store(url, embeddings=None, audit=False) as store:
        purge_user_memories(store, USER)
        service = AgentMemoryStoreService(store)
        service.sync.save_memory(USER, "two")
        found = service.sync.verify_audit(USER)
        assert (found.problems, found.erased, found.events) == ((), 1, 0)


def test_what_an_earlier_version_purged_without_a_seal_is_no_theft(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(trails, "_MARK", 16)
        history(service, 4)
    rows = [row for row in rows_of(service) if row.namespace[1:] == (AUDIT,)]
    written(service, *removed(*rows[:1]))
    assert service.sync.verify_audit(USER).problems == (f"event {rows[0].key} was removed",)
    written(service, *removed(*rows[1:]), Remove(namespace=(USER, AUDIT), key=SALT))
    assert (service.sync.verify_audit(USER).problems, service.sync.verify_audit(USER).erased) == ((), len(rows))


def test_what_an_erasure_takes_is_no_tamper_and_what_has_expired_neither(service: Any) -> None:
    history(service)
    purge_user_memories(service.store, USER)
    gone = service.sync.verify_audit(USER)
    assert gone.problems == ()
    assert gone.erased >= 19
    service.sync.save_memory(USER, "back again")
    seal(service)
    back = service.sync.verify_audit(USER)
    assert (back.problems, back.sealed >= 1) == ((), True)
    assert not any(USER in "".join(row.namespace) for row in rows_of(service) if row.namespace[0] == SEALS)


def test_an_event_of_which_no_end_is_known_lives_as_long_as_the_setting_says() -> None:
    """Earlier versions of the package sealed no ends, and stores of LangGraph have none."""
    service = AgentMemoryStoreService(InMemoryStore(), timeout=None)
    history(service, 4)
    audit_log = service.scope.engine.audit_log
    event = next(row for row in rows_of(service) if row.namespace[1:] == (AUDIT,))
    written(service, Remove(namespace=event.namespace, key=event.key))
    assert check_trail(audit_log, USER).problems == (f"event {event.key} was removed",)
    audit_log.life = timedelta(0)
    assert (check_trail(audit_log, USER).problems, check_trail(audit_log, USER).expired) == ((), 1)


@pytest.mark.parametrize("service", ["memory", "sqlite"], indirect=True)
def test_regression_an_event_lives_as_long_as_the_setting_said_when_it_was_written(service: Any) -> None:
    """With a longer setting, such as the command's default, what had expired was reported as removed by somebody.

    With a shorter one, what somebody had removed counted as expired.
    """
    audit_log = service.scope.engine.audit_log
    audit_log.life = timedelta(seconds=2)
    service.sync.save_memory(USER, "short")
    seal(service)
    ended = next(row.expiry.at for row in rows_of(service) if row.expiry)
    audit_log.life = timedelta(days=365)
    service.sync.save_memory(USER, "long")
    seal(service)
    event = max((row for row in rows_of(service) if row.namespace[1:] == (AUDIT,)), key=lambda row: row.seq)
    while datetime.now(UTC) <= ended:
        time.sleep(0.05)
    found = service.sync.verify_audit(USER)
    assert (found.problems, found.expired, found.events) == ((), 1, 1)
    written(service, Remove(namespace=event.namespace, key=event.key))
    audit_log.life = timedelta(0)
    assert service.sync.verify_audit(USER).problems == (f"event {event.key} was removed",)


def test_sealing_reads_few_seals_and_goes_on_where_clocks_were_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sealing read all earlier seals of the user. The newest may not be the last: then its number is taken."""
    monkeypatch.setattr(trails, "_NEWEST_SEALS", 3)
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        backend = store.engine.backend
        page, most = backend.page, [0]

        def counted(request: PageRequest) -> list[Row]:
            rows = page(request)
            most.append(len(rows) if request.scopes[0][0] == SEALS else 0)
            return rows

        for number in range(8):
            service.sync.save_memory(USER, f"fact {number}")
            seal(service)
        monkeypatch.setattr(backend, "page", counted)
        service.sync.save_memory(USER, "later")
        seal(service)
        assert max(most) == 3
        for row in (row for row in rows_of(service) if row.namespace[0] == SEALS and int(row.key) > 4):
            written(service, replace(put_of(row), created_at=row.created_at - timedelta(hours=1)))
        service.sync.save_memory(USER, "last")
        seal(service)
        found = service.sync.verify_audit(USER)
        assert (found.problems, found.sealed) == ((), 10)


def test_regression_events_are_read_once_however_many_seals_they_need(service: Any, monkeypatch: pytest.MonkeyPatch):
    """Each seal read all events that were not sealed yet: a user with many of them kept the sealer busy for hours."""
    monkeypatch.setattr(trails, "_MOST_EVENTS", 3)
    for number in range(20):
        service.sync.save_memory(USER, f"fact {number}")
    backend = service.scope.engine.backend
    page, read = backend.page, [0]

    def counted(request: PageRequest) -> list[Row]:
        rows = page(request)
        read[0] += len(rows) if request.scopes[0][1:] == (AUDIT,) else 0
        return rows

    monkeypatch.setattr(backend, "page", counted)
    seal(service)
    assert read[0] == 20 + 1  # and the salt
    monkeypatch.undo()
    assert len({row.key for row in rows_of(service) if row.namespace[0] == SEALS}) == 7
    assert (service.sync.verify_audit(USER).problems, service.sync.verify_audit(USER).sealed) == ((), 20)


def test_a_seal_that_cannot_be_read_does_not_keep_the_sealer_busy(tmp_path: Path) -> None:
    """It seems absent, but its number is taken: the sealer tried to write that again and again, without a pause."""
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        service.sync.save_memory(USER, "one")
        seal(service)
        with closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
            connection.execute("UPDATE memory_rows SET value = '[' WHERE key = '0000000001'")
        service.sync.save_memory(USER, "two")
        made = Sealer(store.engine.audit_log)
        assert made.seal_portion()
        with pytest.raises(StoreBusy):
            made.seal_portion()
        assert service.sync.verify_audit(USER).events == 2


def test_two_processes_that_seal_the_same_user_make_one_chain(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=None) as one, open_store(f"{url}?", embeddings=None) as other:
        services = [AgentMemoryStoreService(store, timeout=None) for store in (one, other)]
        for number in range(6):
            services[number % 2].sync.save_memory(USER, f"fact {number}")
            for service in services:
                seal(service)
        assert [service.sync.verify_audit(USER).problems for service in services] == [(), ()]
        assert services[0].sync.verify_audit(USER).sealed == 6


def test_verify_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory(USER, "Lives in Rome")
    assert run(["audit", "verify", "--user", USER, "--url", url]) == 0
    assert "1 event, 1 sealed: intact" in capsys.readouterr().err, "closing the store has sealed it"
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        event = next(row for row in rows_of(service) if row.namespace[1:] == (AUDIT,))
        written(service, put_of(replace(event), {**event.value, "operation": "import"}))
    assert run(["audit", "verify", "--user", USER, "--url", url]) == 1
    assert f"event {event.key} was changed" in capsys.readouterr().err
    assert run(["audit", "verify", "--user", USER, "--url", url, "--json", "--head", "ab"]) == 1
    assert "was cut or made anew" in capsys.readouterr().out


def test_regression_events_of_a_portion_that_broke_off_are_sealed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    """The sealer was told of none of them, though some were there."""
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        ids = [service.save_memory("ada", f"likes {drink}") for drink in ("tea", "mate")]
        audit_log, backend = store.engine.audit_log, store.engine.backend
        while Sealer(audit_log).seal_portion():
            pass

        apply = backend.apply

        def breaks_off(batches: Sequence[Batch]) -> list[Outcome]:
            apply(batches[:1])
            raise StoreUnavailable("the database is away")

        removals = [[Remove(namespace=("ada", "semantic"), key=key)] for key in ids]
        with monkeypatch.context() as patched:
            patched.setattr(backend, "apply", breaks_off)
            with pytest.raises(StoreUnavailable):
                audit_log.apply(removals, Cause(at=datetime.now(UTC), operation="expire"))
        assert list(audit_log.unsealed) == ["ada"]
