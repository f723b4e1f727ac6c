"""Messages become memories word for word, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from support import FailingEmbeddings, HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import Operation
from inference_core.errors import InvalidInput, StoreError
from inference_core.ingestion.verbatim import IngestReport, ingest
from inference_core.memory.record import MemoryStoreDocument
from inference_core.outbox.messages import ConversationMessage, Role, Transcript
from inference_core.services.user_memories import purge_user_memories
from inference_core.stores.backend import Outcome, Write
from inference_core.testing import FrozenClock

DAY = datetime(2025, 3, 4, tzinfo=UTC)


def said(text: str, position: int = 0, session: str = "s", **fields: object) -> ConversationMessage:
    given: dict[str, object] = {"session_id": session, "role": Role.USER, "text": text, "position": position}
    return ConversationMessage(**(given | fields))  # pyright: ignore[reportArgumentType]


def ingested(
    service: AgentMemoryStoreService,
    messages: Sequence[ConversationMessage],
    user: str = "ada",
    batches: int | None = None,
) -> IngestReport:
    report = IngestReport()
    for report in islice(ingest(service.scope, user, Transcript(messages, len(messages))), batches):  # noqa: B007
        pass
    return report


def stored(service: AgentMemoryStoreService, user: str = "ada") -> list[MemoryStoreDocument]:
    """The memories of the user, the oldest first."""
    return service.sync.list_memories(user, limit=None)[0][::-1]


def test_a_message_is_an_episodic_interaction_of_its_session(service: AgentMemoryStoreService):
    messages = [
        said("Hi", at=DAY, id="m1"),
        said("Hello", 1, role=Role.ASSISTANT),
        said("Good day", 2, author="Bob"),
    ]
    report = ingested(service, messages)
    user, assistant, other = stored(service)
    assert (report.messages, report.written, report.sessions, report.done) == (3, 3, {"s"}, 3)
    assert (user.content, assistant.content, other.content) == ("Hi", "Hello", "Bob: Good day")
    assert (user.memory_type, user.memory_category) == ("interaction", "episodic")
    assert (user.value["session_id"], user.value["agent_name"]) == ("s", "planner")
    assert user.value["valid_from"] == DAY.isoformat()
    assert user.value["source"] == {"origin": "user", "message_ids": ["m1"]}
    assert assistant.value["source"] == {"origin": "agent"}
    assert other.value["source"] == {"origin": "document"}, "other people's words are not the user's"
    assert user.value["trust"] > assistant.value["trust"] > other.value["trust"]


def test_a_second_run_writes_nothing(service: AgentMemoryStoreService):
    messages = [said("Hi", position) for position in range(3)]
    assert ingested(service, messages).written == 3
    again = ingested(service, messages)
    assert (again.messages, again.written, again.already_there) == (3, 0, 3)
    assert len(stored(service)) == 3


def test_a_run_that_stopped_goes_on_where_it_was(own_store: BaseStore):
    service = AgentMemoryStoreService(own_store)
    messages = [said(f"message {position}", position) for position in range(100)]
    assert ingested(service, messages, batches=2).written == 64
    rest = ingested(service, messages)
    assert (rest.written, rest.already_there) == (36, 64)
    assert [memory.content for memory in stored(service)] == [message.text for message in messages]


def test_the_order_in_a_session_stays_though_the_clock_stands(own_store: BaseStore, clock: FrozenClock):
    service = AgentMemoryStoreService(own_store, clock=clock)
    messages = [said(f"{position}", position) for position in range(20)]
    ingested(service, messages)
    assert [memory.content for memory in stored(service)] == [f"{position}" for position in range(20)]


def test_edited_moved_and_deleted_memories_stay_as_they_are(service: AgentMemoryStoreService):
    messages = [said(word, position) for position, word in enumerate(("edit", "move", "delete"))]
    ingested(service, messages)
    edited, moved, deleted = stored(service)
    service.sync.update_memory("ada", edited.id, "edited")
    service.sync.update_memory("ada", moved.id, memory_type="facts")
    service.sync.delete_memory("ada", deleted.id)
    before = {(memory.id, memory.content, memory.memory_type) for memory in stored(service)}
    assert ingested(service, messages).already_there == 3
    assert {(memory.id, memory.content, memory.memory_type) for memory in stored(service)} == before
    assert len(before) == 2


def test_after_a_purge_nothing_is_left_and_all_can_be_ingested_anew(any_store: BaseStore):
    service = AgentMemoryStoreService(any_store)
    ingested(service, [said("Hi")])
    purge_user_memories(any_store, "ada")
    assert not any_store.search(("ada",))
    assert ingested(service, [said("Hi")]).written == 1


def test_the_same_message_of_another_session_position_id_text_user_or_agent_is_another(own_store: BaseStore):
    service = AgentMemoryStoreService(own_store)
    messages = [said("Hi"), said("Hi", 1), said("Hi", session="t"), said("Ho"), said("Hi", id="0"), said("Hi", id="1")]
    assert ingested(service, [*messages, *messages]).written == 6
    assert ingested(service, messages, "bob").written == 6
    assert ingested(AgentMemoryStoreService(own_store, agent_name="planner"), messages).written == 6
    assert len({memory.id for user in ("ada", "bob") for memory in stored(service, user)}) == 12


def test_a_long_message_becomes_parts_that_fit(own_store: BaseStore):
    service = AgentMemoryStoreService(own_store, max_content_bytes=40)
    messages = [said("The first sentence is here. The second one is there.", author="Ada")]
    assert (ingested(service, messages).written, ingested(service, messages).written) == (2, 0)
    first, second = stored(service)
    assert (first.content, second.content) == ("Ada: The first sentence is here.", "Ada: The second one is there.")
    assert (first.id.endswith("-1"), second.metadata) == (True, {"part": 2, "parts": 2})


def test_a_name_that_leaves_no_room_for_the_text_is_left_out(own_store: BaseStore):
    service = AgentMemoryStoreService(own_store, max_content_bytes=20)
    ingested(service, [said("Hi", author="A very long name")])
    assert [memory.content for memory in stored(service)] == ["Hi"]


def test_what_cannot_be_stored_is_mended_or_skipped_and_counted(service: AgentMemoryStoreService):
    messages = [
        said("a\x00b\ud800", session="s\ud800", author="A\x00", id="i\ud800"),
        said("\x00\x01 "),
        said("", 1),
    ]
    report = ingested(service, messages)
    (memory,) = stored(service)
    assert (memory.content, memory.value["session_id"]) == ("A: ab\ufffd", "s\ufffd")
    assert (report.skipped, report.done) == ({"empty": 2}, 3)


def test_regression_sessions_whose_long_ids_begin_alike_stay_apart(service: AgentMemoryStoreService):
    ingested(service, [said("Hi", session="s" * 600 + end) for end in ("1", "2", "2")])
    assert len({memory.value["session_id"] for memory in stored(service)}) == 2


def test_when_reading_fails_what_came_before_is_kept(service: AgentMemoryStoreService):
    def broken() -> Iterator[ConversationMessage]:
        yield said("Hi")
        raise InvalidInput("line 2")

    with pytest.raises(InvalidInput, match="line 2"):
        list(ingest(service.scope, "ada", Transcript(broken(), 2)))
    with pytest.raises(InvalidInput, match="line 2"):
        list(ingest(service.scope, "ada", Transcript(broken(), 2)))
    assert [memory.content for memory in stored(service)] == ["Hi"]


def test_when_the_first_message_is_at_fault_nothing_is_written(service: AgentMemoryStoreService):
    with pytest.raises(InvalidInput, match="author"):
        ingested(service, [said("Hi", author="x" * 600)])
    assert stored(service) == []


def test_one_users_messages_are_not_anothers(service: AgentMemoryStoreService):
    ingested(service, [said("Hi")])
    assert stored(service, "bob") == []
    assert ingested(service, [said("Hi")], "bob").written == 1


def test_memories_come_with_their_vectors(sqlite_url: str):
    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store)
        report = ingested(service, [said("I grow tomatoes"), said("It rains", 1)])
        assert store.engine.embedder is not None
        assert store.engine.backend.pending(store.engine.embedder.fingerprint, 1) == []
        assert report.without_vector == 0
        assert service.sync.recall_memories("ada", "tomatoes")[0].content == "I grow tomatoes"


def test_without_the_model_memories_wait_for_their_vectors_and_it_is_left_alone(tmp_path: Path):
    model = FailingEmbeddings(broken=False)
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=model) as store:
        store.engine.maintenance.close()  # in the background the model is asked too
        model.broken, model.calls = True, 0
        report = ingested(AgentMemoryStoreService(store), [said("x", position) for position in range(32 * 5)])
        assert (report.written, report.without_vector) == (160, 160)
        assert model.calls == 3


def test_what_another_process_ingests_in_between_is_not_written_twice(
    own_store: BaseStore, monkeypatch: pytest.MonkeyPatch
):
    service = AgentMemoryStoreService(own_store)
    engine = service.scope.engine
    write = engine.write

    def overtaken(batch: Sequence[Write], **options: Any) -> Operation[list[int]]:
        monkeypatch.setattr(engine, "write", write)
        ingested(AgentMemoryStoreService(own_store), [said("Hi")])
        return write(batch, **options)

    monkeypatch.setattr(engine, "write", overtaken)
    report = ingested(service, [said("Hi"), said("Ho", 1)])
    assert (report.written, report.already_there, len(stored(service))) == (1, 1, 2)


def test_a_store_that_refuses_is_heard(own_store: BaseStore, monkeypatch: pytest.MonkeyPatch):
    service = AgentMemoryStoreService(own_store)

    def full(_: Sequence[Sequence[Write]]) -> list[Outcome]:
        return [StoreError("the disk is full")]

    monkeypatch.setattr(service.scope.engine.backend, "apply", full)
    with pytest.raises(StoreError, match="disk is full"):
        ingested(service, [said("Hi")])
