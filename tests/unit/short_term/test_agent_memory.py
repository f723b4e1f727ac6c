"""The messages of sessions: kept, shown, removed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from short_term_support import (
    USER,
    calls,
    check_valid,
    dialogue,
    extracting,
    in_threads,
    marker,
    markers,
    model_of,
    result,
    stored_texts,
    texts,
)

from inference_core import (
    AgentMemory,
    AgentMemoryStoreService,
    ExtractiveMemory,
    FlushToLongTerm,
    MemorySource,
    MemoryStore,
    StaticMemory,
    Summarize,
    Trim,
    VectorMemory,
    open_store,
)
from inference_core.effects import run
from inference_core.errors import (
    ConfigurationError,
    IdentityError,
    InvalidId,
    InvalidInput,
    InvalidMemory,
    ReadOnlyMemory,
    VersionConflict,
)
from inference_core.memory.record import CITES, INSIGHT
from inference_core.memory.trust import Origin
from inference_core.services.operations.scope import ATTEMPTS
from inference_core.short_term import agent_memory
from inference_core.short_term.agent_memory import TIMESTAMP
from inference_core.short_term.blocks.memory import UserSession, scope_of
from inference_core.stores.engine import StoreEngine
from inference_core.testing import FrozenClock

HOSTILE = ("ada", "ada/s1", "ada\n", "Ada", "~ada", "ada~2fs1", "short_term", "\x01", "%", "../ada", "ad")


def memory_of(store: MemoryStore | None, overflow: Any = None, **options: Any) -> AgentMemory:
    options.setdefault("user_id", USER)
    return AgentMemory(store, overflow=overflow, **options)


def test_messages_are_kept_in_their_order_with_their_time(store: MemoryStore, clock: FrozenClock):
    memory = AgentMemory(AgentMemoryStoreService(store, clock=clock), user_id=USER)
    memory.update("s1", "hello")
    clock.advance(timedelta(minutes=1))
    memory.update("s1", {"role": "assistant", "content": "hi"})
    kept = memory.get("s1").messages
    assert [(one.type, one.text) for one in kept] == [("human", "hello"), ("ai", "hi")]
    assert [one.additional_kwargs[TIMESTAMP][11:16] for one in kept] == ["12:00", "12:01"]
    plain = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    stamps = ["2026-01-15T12:00:00+00:00", "2026-01-15T12:01:00+00:00"]
    entries = [{**entry, "timestamp": stamp} for entry, stamp in zip(plain, stamps, strict=True)]
    assert memory.get("s1").as_dicts() == entries
    assert memory.get("s1").as_dicts(timestamps=False) == plain
    assert memory.get("s2").messages == []


def test_without_a_store_they_live_in_this_process():
    memory = memory_of(None)
    session = uuid4()
    memory.update(session, "hello")
    assert texts(memory.get(str(session)).messages) == ["hello"]


def test_a_message_with_a_known_id_replaces_it(store: MemoryStore):
    memory = memory_of(store)
    for text in ("one", "two"):
        memory.update("s1", HumanMessage(text, id=text))
    memory.update("s1", HumanMessage("ONE", id="one"))
    assert texts(memory.get("s1").messages) == ["ONE", "two"]


def test_a_message_that_comes_again_spares_the_summary(store: MemoryStore):
    memory = memory_of(store, Summarize(model_of("They talked.")), max_tokens=100)
    messages = dialogue(2)
    for message in messages:
        memory.update("s1", message)
    assert texts(memory.get("s1").messages)[0] == "CONVERSATION SUMMARY: They talked."
    memory.update("s1", messages[0])
    assert texts(memory.get("s1").messages)[0] == "CONVERSATION SUMMARY: They talked."


def test_the_system_message_stands_first_and_may_live_elsewhere(store: MemoryStore):
    with open_store("memory://", embeddings=None) as other:
        memory = memory_of(store, system_message_store=other)
        assert memory.update("s1", ("system", "be brief")) is None
        memory.update("s1", ("system", "be polite"))
        memory.update("s1", "hello")
        assert texts(memory.get("s1").messages) == ["be polite", "hello"]
        memory.delete("s1")
        assert memory.get("s1").messages == []
        assert other.engine.backend.namespaces() == store.engine.backend.namespaces() == []


def test_what_is_recalled_may_stand_in_the_system_prompt(store: MemoryStore):
    flush = FlushToLongTerm([StaticMemory(["Water is wet"]), VectorMemory()], into_system_prompt=True)
    memory = memory_of(store, flush)
    assert "<static_memory>\n    - Water is wet" in memory.get("s1").messages[0].text
    memory.update("s1", ("system", "be brief"))
    assert memory.get("s1").messages[0].text.startswith("be brief\n\n")
    empty = memory_of(store, FlushToLongTerm([VectorMemory()], into_system_prompt=True), user_id="bob")
    assert empty.get("s1").messages == []


def test_content_has_a_section_for_each_block(store: MemoryStore):
    extractor = ExtractiveMemory(model_of(extracting))
    memory = memory_of(
        store, FlushToLongTerm([StaticMemory(["Water is wet"]), extractor, VectorMemory()]), max_tokens=200
    )
    for message in dialogue(4):
        memory.update("s1", message)
    content = memory.get("s1", f"what of {marker(0)}?")
    assert [one.content for one in content.static_facts] == ["Water is wet"]
    assert content.extracted_facts[0].content == f"Knows {marker(0)}"
    assert content.vector_matches[0].content.startswith(marker(0))
    assert content.render().startswith("<memory>\n  <static_memory>\n    - Water is wet\n  </static_memory>")
    coala = content.render("coala")
    assert coala.index("<semantic_memory>") < coala.index("Water is wet") < coala.index("<episodic_memory>")
    assert memory_of(store, Trim()).get("s1").render() == ""


def test_deleting_a_session_may_spare_long_term_memory(store: MemoryStore):
    memory = memory_of(store, FlushToLongTerm([StaticMemory(["Water is wet"]), VectorMemory()]), max_tokens=100)
    for message in dialogue(3):
        memory.update("s1", message)
    flushed = stored_texts(store)
    assert flushed
    memory.delete("s1", keep_long_term=True)
    assert memory.get("s1").messages == []
    assert stored_texts(store) == flushed
    memory.delete("s1")
    assert stored_texts(store) == []
    assert [one.content for one in memory.get("s1").static_facts] == ["Water is wet"]


@pytest.mark.parametrize("erase", [False, True])
def test_an_erased_session_leaves_no_earlier_texts(store: MemoryStore, erase: bool):
    """The texts stayed as earlier versions, and in what was made of them, although the session was deleted."""
    memory = memory_of(store, FlushToLongTerm([VectorMemory()]), max_tokens=100)
    for message in dialogue(3):
        memory.update("s1", message)
    service = AgentMemoryStoreService(store).sync
    passage = service.list_memories(USER)[0][0]
    about: dict[str, Any] = {
        "extra_metadata": {CITES: [passage.id]},
        "source": MemorySource(origin=Origin.AGENT, tool=INSIGHT),
    }
    made = service.save_memory(USER, "Talks of numbers", "general", **about)
    memory.delete("s1", erase=erase)
    left = str([getattr(row, "value", row) for row in store.engine.backend.inspect()])
    assert (passage.content in left) is not erase
    assert (service.get_memory(USER, made) is None) is erase
    assert memory.get("s1").messages == []
    with pytest.raises(InvalidInput, match="choose one"):
        memory.delete("s1", keep_long_term=True, erase=True)


def test_a_fact_that_the_user_deleted_does_not_come_back(store: MemoryStore):
    extractor = ExtractiveMemory(model_of(extracting))
    memory = memory_of(store, FlushToLongTerm([extractor, VectorMemory()]), max_tokens=100)
    messages = dialogue(3)
    for message in messages:
        memory.update("s1", message)
    AgentMemoryStoreService(store).sync.delete_user_memories(USER)
    for message in messages[:4]:
        memory.update("s1", message)
    memory.update("s1", dialogue(1, first=10)[0])
    assert markers(memory.get("s1").messages)
    assert not any(marker(number) in text for number in range(4) for text in stored_texts(store))


def test_notices_name_the_messages_that_are_hidden_or_shortened_and_why(store: MemoryStore):
    """What the limit hides was silently missing: a caller could not tell a short session from a cut one."""
    memory = memory_of(store, Summarize(model_of(ValueError("down"))), max_tokens=200)
    given = [*dialogue(3), result("lost").model_copy(update={"id": "r0"})]
    given += [HumanMessage("find it", id="q"), calls("a", id="c")]
    for message in [*given, result("a", "x" * 4_000, id="r1")]:
        memory.update("s1", message)
    content = memory.get("s1")
    shown = {one.id for one in content.messages}
    hidden, orphaned, shortened = content.notices
    assert hidden.startswith("Hidden, as the messages have ")
    assert hidden.endswith(
        f"room for 200: {', '.join(f'{one.type} {one.id}' for one in given if one.id not in shown and one.id != 'r0')}"
    )
    assert orphaned == "Hidden, as their tool calls are not in the session: tool r0"
    assert (shortened.partition(",")[0], shortened[-8:]) == ("Shortened", " tool r1")
    assert memory_of(store, user_id="bob").get("s1").notices == []


def test_a_conversation_in_calls_is_valid_whenever_it_is_looked_at(store: MemoryStore):
    memory = memory_of(store, Trim(), max_tokens=60)
    for message in [*dialogue(1), HumanMessage("find it"), calls("a", "b"), result("a"), result("b", "x" * 4_000)]:
        memory.update("s1", message)
        check_valid(memory.get("s1").messages)


def test_threads_that_update_one_session_lose_nothing(store: MemoryStore):
    memory = memory_of(store, FlushToLongTerm(), max_tokens=600)

    def talk(at: int) -> list[str | None]:
        return [memory.update("s1", message) for message in dialogue(3, first=10 * at)]

    assert in_threads(*(lambda at=at: talk(at) for at in range(8))) == [[None] * 6] * 8
    kept = run(agent_memory.read_window(scope_of(store), UserSession(USER, "s1"))).messages
    passages = stored_texts(store)
    assert len(passages) == len(set(passages))
    assert {*texts(kept), *passages} == {one.text for at in range(8) for one in dialogue(3, first=10 * at)}


def test_users_with_hostile_ids_do_not_see_each_other(store: MemoryStore):
    def memory_for(user: str) -> AgentMemory:
        extractor = ExtractiveMemory(model_of(extracting))
        return memory_of(store, FlushToLongTerm([extractor, VectorMemory()]), max_tokens=100, user_id=user)

    odd = ("s1/ada", "\x01", "window")
    sessions = {user: ("s1", *(odd if user == "ada" else odd[number % 3 :][:1])) for number, user in enumerate(HOSTILE)}
    for number, user in enumerate(HOSTILE):
        for at, session in enumerate(sessions[user]):
            for message in dialogue(2, first=100 * number + 10 * at):
                memory_for(user).update(session, message)
    for number, user in enumerate(HOSTILE):
        own = {marker(100 * number + 10 * at + part) for at in range(4) for part in range(4)}
        assert markers_of_all(store, user) <= own
        for at, session in enumerate(sessions[user]):
            content = memory_for(user).get(session, " ".join(sorted(own)))
            assert markers(content.messages) <= {marker(100 * number + 10 * at + part) for part in range(4)}
            seen = {one.content for found in content.recalled.values() for one in found}
            assert {word for text in seen for word in text.split() if word.startswith("qx")} <= own
    memory_for("ada").delete("s1")
    assert markers(memory_for("Ada").get("s1").messages) != set()


def markers_of_all(store: MemoryStore, user: str) -> set[str]:
    return markers(HumanMessage(text) for text in stored_texts(store, user=user))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"user_id": "ada", "owner": str}, "not both"),
        ({"user_id": "ada", "overflow": Summarize()}, r"Summarize\(model="),
        ({"user_id": "ada", "max_tokens": 0}, "at least 1"),
        ({"user_id": "ada", "message_store": ["a list"]}, "not on a list"),
        ({"user_id": "ada", "message_store": {"s1": ["hi"]}}, "holds something else under 's1'"),
        ({"user_id": ""}, "user_id"),
    ],
    ids=["two users", "no model", "no tokens", "no store", "a mapping in use", "no name"],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], error: str):
    with pytest.raises((ConfigurationError, InvalidId), match=error):
        AgentMemory(**options)


def test_a_session_needs_somebody(store: MemoryStore):
    with pytest.raises(ConfigurationError, match=r"pass user_id='ada@example\.com' for one user, or owner="):
        AgentMemory(store)
    with pytest.raises(IdentityError):
        AgentMemory(store, owner=lambda _: None).update("s1", "hi")
    memory = AgentMemory(store, owner={"s1": UUID(int=1), "s2": "bob"}.get)
    memory.update("s1", "hi")
    assert texts(AgentMemory(store, user_id=UUID(int=1)).get("s1").messages) == ["hi"]


def test_what_cannot_be_stored_is_refused_and_nothing_changes(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    memory = memory_of(store)
    memory.update("s1", "hello")
    monkeypatch.setattr(agent_memory, "MAX_VALUE_BYTES", 1_000)
    for text in ("a\x00", "\ud800", "x" * 1_000):
        with pytest.raises(InvalidMemory):
            memory.update("s1", text)
    assert texts(memory.get("s1").messages) == ["hello"]


def test_a_block_without_a_store_is_a_mistake_and_a_read_only_one_is_spared(store: MemoryStore):
    memory = memory_of(store, FlushToLongTerm([StaticMemory(["a"]), VectorMemory()]))
    memory.update("s1", SystemMessage("be brief"))
    memory.delete("s1")
    with pytest.raises(ReadOnlyMemory):
        StaticMemory(["a"], store).delete("s1")
    scope = UserSession(USER, "s1")
    with pytest.raises(ConfigurationError, match="no store"):
        run(agent_memory.recalled_for([StaticMemory(["a"])], None, scope, None))


def test_who_never_wins_gives_up(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    tries: list[int] = []

    async def losing(self: StoreEngine, batch: Any, **options: Any) -> Any:
        tries.append(len(batch))
        raise VersionConflict("changed")

    monkeypatch.setattr(StoreEngine, "write", losing)
    with pytest.raises(VersionConflict):
        memory_of(store).update("s1", "hi")
    assert len(tries) == ATTEMPTS
