"""Whose conversation it is, and blocks of the application's own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from short_term_support import USER, texts

from inference_core import AgentMemory, FlushToLongTerm, MemoryStore, VectorMemory
from inference_core.errors import BlockFailed, ConfigurationError, IdentityError, InvalidId
from inference_core.memory.record import MemoryStoreDocument
from inference_core.short_term.blocks.memory import CustomBlock, Memory, Owners, UserSession, as_block


class Notebook:
    """Keeps what it is told by session; ``gives`` is what it gives, ``fault`` what it raises."""

    name = "Note book"

    def __init__(self) -> None:
        self.told: dict[str, list[AnyMessage]] = {}
        self.gives: Any = None
        self.fault: Exception | None = None

    def get(self, session_id: str, message: Any) -> Any:
        self.check()
        return self.gives if self.gives is not None else self.told.get(session_id, [])

    def update(self, session_id: str, message: Any) -> None:
        self.check()
        self.told.setdefault(session_id, []).append(message)

    def delete(self, session_id: str) -> None:
        self.check()
        self.told.pop(session_id, None)

    def check(self) -> None:
        if self.fault:
            raise self.fault


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def memory(store: MemoryStore, notebook: Notebook) -> AgentMemory:
    return AgentMemory(
        store, overflow=FlushToLongTerm([notebook], into_system_prompt=True), max_tokens=60, user_id=USER
    )


def say(memory: AgentMemory, number: int) -> list[str | None]:
    return [memory.update("s1", HumanMessage(f"{at} {'word ' * 10}", id=f"m{at}")) for at in range(number)]


def test_what_leaves_is_given_to_it_once(memory: AgentMemory, notebook: Notebook):
    assert say(memory, 4) == [None] * 4
    assert [one.id for one in notebook.told["s1"]] == ["m0", "m1", "m2"]
    memory.update("s1", HumanMessage(f"0 {'word ' * 10}", id="m0"))
    memory.update("s1", HumanMessage("word " * 20, id="m9"))
    assert [one.id for one in notebook.told["s1"]] == ["m0", "m1", "m2", "m3"]
    memory.delete("s1")
    assert notebook.told == {}


def test_what_it_gives_is_recalled_under_its_name(memory: AgentMemory, notebook: Notebook):
    document = MemoryStoreDocument("d1", {"content": "a document"}, {})
    notebook.gives = ["a text", HumanMessage("a message"), {"any": "thing"}, None, document]
    content = memory.get("s1", "hi")
    assert [one.content for one in content.recalled["Note book"]] == [
        "a text",
        "a message",
        '{"any": "thing"}',
        "a document",
    ]
    assert "<note_book>\n    - a text\n" in content.messages[0].text


@pytest.mark.parametrize("given", ["one text", 7], ids=["text", "number"])
def test_it_may_give_a_single_thing(memory: AgentMemory, notebook: Notebook, given: Any):
    notebook.gives = given
    assert [one.content for one in memory.get("s1", "hi").recalled["Note book"]] == [str(given)]


def test_its_failure_keeps_messages_where_they_are(memory: AgentMemory, notebook: Notebook):
    notebook.fault = RuntimeError("no\n ink")
    notices = say(memory, 4)
    assert notices[-1] == "FlushToLongTerm: The block 'Note book' failed: RuntimeError: no ink"
    failed, hidden = memory.get("s1").notices
    assert failed == "Note book: The block 'Note book' failed: RuntimeError: no ink"
    assert hidden.startswith("Hidden, as the messages have ")
    with pytest.raises(BlockFailed):
        memory.delete("s1")
    notebook.fault = None
    assert memory.update("s1", HumanMessage("more", id="m5")) is None
    assert [one.id for one in notebook.told["s1"]] == ["m0", "m1", "m2", "m3"]


def test_its_typed_errors_stay_what_they_are(memory: AgentMemory, notebook: Notebook):
    notebook.fault = IdentityError("not yours")
    assert memory.get("s1", "hi").notices == ["Note book: not yours"]


def test_what_is_no_block_is_refused(notebook: Notebook):
    with pytest.raises(ConfigurationError, match="object lacks some"):
        as_block(object())  # pyright: ignore[reportArgumentType]
    vector = VectorMemory()
    assert as_block(vector) is vector
    assert isinstance(as_block(notebook), CustomBlock)
    assert isinstance(vector, Memory)


def test_two_notebooks_need_names_of_their_own():
    with pytest.raises(ConfigurationError, match="Note book"):
        AgentMemory(overflow=FlushToLongTerm([Notebook(), Notebook()]), user_id=USER)


def test_what_is_shown_is_what_is_left(memory: AgentMemory):
    say(memory, 4)
    assert [text[0] for text in texts(memory.get("s1").messages)][-1] == "3"


ID = UUID("12345678-1234-5678-1234-567812345678")


def test_the_user_is_fixed_or_found_by_session():
    assert Owners("ada").conversation("s1") == UserSession("ada", "s1")
    assert Owners(owner={"s1": "ada"}.get).conversation("s1") == UserSession("ada", "s1")
    assert Owners(ID).conversation(ID) == UserSession(str(ID), str(ID))


@pytest.mark.parametrize("nobody", [None, ""], ids=["none", "empty"])
def test_a_session_of_nobody_is_closed(nobody: Any):
    with pytest.raises(IdentityError, match="'s1'"):
        Owners(owner=lambda _: nobody).conversation("s1")


def test_there_has_to_be_one_source():
    with pytest.raises(ConfigurationError, match="No user"):
        Owners().conversation("s1")
    with pytest.raises(ConfigurationError, match="not both"):
        Owners("ada", {"s1": "ada"}.get)


def test_ids_that_cannot_be_ones_are_refused():
    with pytest.raises(InvalidId):
        Owners("")
    with pytest.raises(InvalidId, match="session_id"):
        Owners("ada").conversation("")
    with pytest.raises(InvalidId):
        Owners(owner=lambda _: "a\x00").conversation("s1")
