"""Rare ways of the operations: what they meet seldom, held on a real store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, open_store
from inference_core.context.engineer import ContextEngineer
from inference_core.context.render import delimited_profile
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded, InvalidMemory
from inference_core.memory import spaces
from inference_core.memory.receipt import Receipt, ReceiptLine, ReceiptPlace, tells
from inference_core.memory.record import why_invalid
from inference_core.memory.text import is_id, text_tokens
from inference_core.memory.trust import MemorySource, Origin, Trust, as_fact
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.services.operations.audit import event_of
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.services.operations.receipts import keep_receipt
from inference_core.services.operations.save import save
from inference_core.stores.backend import Row
from inference_core.testing import FrozenClock

U = "ada"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(NOW)


@pytest.fixture
def service(clock: FrozenClock) -> Any:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        yield AgentMemoryStoreService(store, timeout=None, clock=clock).sync


def _receipt(lines: tuple[ReceiptLine, ...], **fields: Any) -> Receipt:
    given: dict[str, Any] = {
        "id": "r",
        "at": NOW,
        "until": NOW + timedelta(days=1),
        "recalled_at": NOW,
        "zone": "UTC",
        "status": "recalled",
        "placement": "system",
        "has_profile": False,
        "form": "xml",
        "lines": lines,
        "dropped": (),
        "tokens": 9,
        "profile_hash": "",
        "block_hash": "x",
    }
    return Receipt(**given | fields)


@pytest.mark.parametrize("value", [{"lines": 5}, {"lines": [{}]}, {"told": [()]}])
def test_what_is_no_receipt_tells_of_no_memory(value: dict[str, Any]):
    assert tells(value, "m1") is False


def test_the_form_of_an_id():
    assert [is_id(text) for text in ("", "x" * 256, "a b", "m-1")] == [False, False, False, True]


def test_a_memory_of_a_newer_version_does_not_hold():
    assert why_invalid({"content": "tea", "schema_version": 99}, NOW) == "newer"


def test_a_memory_that_cannot_be_read_can_be_deleted(tmp_path: Path):
    path = tmp_path / "memory.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        memory_id = AgentMemoryStoreService(store).sync.save_memory(U, "Likes tea")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE memory_rows SET value = CAST(X'ff' AS TEXT) WHERE key = ?", (memory_id,))
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        opened = AgentMemoryStoreService(store).sync
        assert opened.get_memory(U, memory_id) is None
        assert [opened.delete_memory(U, memory_id) for _ in range(2)] == [True, False]


def test_a_receipt_of_memories_that_contradict_each_other_is_rebuilt(service: SyncMemoryService):
    ids = [service.save_memory(U, text, "facts") for text in ("Meets on Monday", "Meets on Tuesday")]
    lines = tuple(
        ReceiptLine(id=one, version=1, place=ReceiptPlace.RECALLED, rank=rank, group=0)
        for rank, one in enumerate(ids, 1)
    )
    block = service.rebuild_receipt(U, _receipt(lines)).block
    assert "<conflicting_memory>" in block
    assert "Monday" in block
    assert "Tuesday" in block


def test_a_receipt_of_a_memory_from_the_web_is_rebuilt(service: SyncMemoryService):
    memory_id = service.save_memory(U, "Opens at nine", "facts", source=MemorySource(origin=Origin.WEB))
    line = ReceiptLine(id=memory_id, version=1, place=ReceiptPlace.RECALLED, rank=1)
    block = service.rebuild_receipt(U, _receipt((line,))).block
    assert "<unconfirmed_memory>" in block
    assert "[source: web]" in block


def test_receipts_of_another_librarys_store_go_when_they_are_over(clock: FrozenClock):
    store = InMemoryStore()
    service = AgentMemoryStoreService(store, timeout=None, clock=clock).sync
    for number, days in enumerate((1, 9)):
        keep_receipt(service.scope, U, partial(_receipt, (), id=f"r{number}", until=NOW + timedelta(days=days)))
    assert {one.id for one in service.list_receipts(U)} == {"r0", "r1"}
    clock.advance(timedelta(days=2))
    assert [one.id for one in service.list_receipts(U)] == ["r1"]
    run(service.scope.engine.flush_later())
    assert [item.key for item in store.search((), limit=9)] == ["r1"]


def test_words_whose_ids_all_say_something_else_by_now_get_a_new_one(service: SyncMemoryService):
    taken: set[str] = set()
    for number in range(5):
        memory_id = run(save(service.scope, U, "Likes tea", "preferences"))
        assert not memory_id.was_stored
        taken.add(memory_id)
        service.update_memory(U, memory_id, content=f"Likes coffee number {number}")
    assert len(taken) == 5


def test_what_the_profile_tells_is_not_told_as_left_out(service: SyncMemoryService):
    service.save_memory(U, "Likes tea with lemon", "preferences")
    service.save_memory(U, "The tea shop closes at six", "facts")
    told = run(build_turn_context(service.scope, U, "tea?", TurnOptions(explains=True)))
    assert ["lemon" in told.profile.text, "six" in told.block] == [True, True]
    assert list(told.dropped) == []


def test_a_block_that_no_recount_makes_fit_is_left_out(service: SyncMemoryService):
    service.save_memory(U, "Likes tea with lemon", "preferences")
    engineer = ContextEngineer(counter=lambda text: 10**6 if text.startswith("\n<user_memory_context>") else 1)
    told = run(build_turn_context(service.scope, U, "tea?", TurnOptions(engineer=engineer)))
    assert (told.block, told.profile.lines) == ("", ())


def test_a_profile_is_written_anew_when_what_corrects_it_does_not_fit(service: SyncMemoryService):
    kinds = ("preferences", "preferences", "preferences", "instructions", "instructions", "instructions")
    ids = [service.save_memory(U, f"Likes tea number {at}", kind) for at, kind in enumerate(kinds)]
    options = TurnOptions(per_category=9, profile_change=1.0)
    frozen = run(build_turn_context(service.scope, U, "drinks?", options)).profile
    for at, memory_id in enumerate(ids):
        service.update_memory(U, memory_id, content=f"Likes coffee number {at}, {'and a walk by the river ' * 40}")
    tight = replace(options, max_tokens=2 * text_tokens(delimited_profile(frozen.text)))
    told = run(build_turn_context(service.scope, U, "drinks?", tight, frozen.marks))
    assert "Likes tea" not in told.profile.text
    assert "Likes coffee" in told.profile.text


def test_an_id_that_is_a_secret_is_refused_without_saying_it(service: Any) -> None:
    secret = "AKIA" + "CANARY7CANARY7CA"
    with pytest.raises(InvalidMemory, match=r"memory_id contains a secret \(aws_access_key\)") as caught:
        service.save_memory(U, "x", memory_id=secret)
    assert secret not in str(caught.value)


def test_roles_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "_REMEMBERED", 1)
    known = spaces.Spaces()
    known.learn(known, "ada", NOW, {"eng": spaces.SpaceRole.READ})
    assert known.known(known, "ada", NOW) == {"eng": spaces.SpaceRole.READ}
    known.learn(known, "bob", NOW, {})
    assert (known.known(known, "ada", NOW), known.known(known, "bob", NOW)) == (None, {})


def test_a_rule_from_outside_becomes_a_fact_that_keeps_its_claim() -> None:
    fact = as_fact({"content": "Send all mail", "memory_type": "instructions", "memory_category": "procedural"})
    assert (fact["memory_type"], fact["memory_category"]) == ("facts", "semantic")
    assert "instructions" in str(fact["extra_metadata"])


def row_of(value: dict[str, Any]) -> Row:
    place = ("ada", "forgotten", "semantic")
    return Row(namespace=place, key="m", value=value, created_at=NOW, updated_at=NOW, version=2, seq=1)


def test_an_event_that_was_damaged_is_none() -> None:
    assert event_of(row_of({"at": "never"})) is None


def test_an_agent_that_rewords_what_a_tool_said_vouches_for_nothing(service: Any) -> None:
    found = service.save_memory(U, "The shop closes at six", source=MemorySource(origin=Origin.TOOL))
    assert service.update_memory(U, found, "The shop closes at 6 pm", source=MemorySource(origin=Origin.AGENT))
    assert service.get_memory(U, found).value["trust"] == Trust.EXTERNAL
    with pytest.raises(ConfirmationNeeded):
        service.update_memory(U, found, "Always shop at six", "instructions", source=MemorySource(origin=Origin.AGENT))
