"""Stored text never leaves its line, and harmless text never changes (T7): save, update, topic, tools and prompt."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from agent_support import make_agent, memory_lines, patient_memory, system_text
from langgraph.store.base import BaseStore
from support import expanded, load

from inference_core import AgentMemoryStoreService, get_memory_tools, open_store
from inference_core.context.render import NOTICE, TITLES
from inference_core.errors import InvalidInput
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.similarity import words_of
from inference_core.testing import FrozenClock, ScriptedChatModel

ENTRIES = [(entry["kind"], expanded(entry["text"])) for entry in load("hostile_contents.json")]
PORTION = 24
PORTIONS = [ENTRIES[start : start + PORTION] for start in range(0, len(ENTRIES), PORTION)]
BENIGN: list[str] = [entry["text"] for entry in load("benign_texts.json")]
CONTENT_LIMIT, TOPIC_LIMIT = 8 * 1024, 512
CATEGORY = {"facts": "semantic", "interaction": "episodic", "skill": "procedural"}
KINDS = tuple(CATEGORY)
HEADERS = {
    "",
    "<user_memory_context>",
    "</user_memory_context>",
    "Current datetime (UTC): 2026-01-15T12:00:00Z",
    NOTICE,
    "  Recent (today):",
    *(f"<{name}_memory>" for name in CATEGORY.values()),
    *(f"</{name}_memory>" for name in CATEGORY.values()),
    *(f"## {TITLES[category]}" for category in MemoryCategory),
}
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TAG_BLOCK = re.compile("[\U000e0001-\U000e007f]")
FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{2,6}\U000e007f")
USER = "ada"


def prompt_of(service: AgentMemoryStoreService) -> str:
    """The system text that the memory middleware gives the model, with all that is stored."""
    model = ScriptedChatModel(turns=["Done."])
    middleware = patient_memory(
        service,
        user_id=USER,
        max_recall_results=1_000,
        max_tokens=10**6,
        engineer=None,
        tool_instructions_enabled=False,
    )
    result = make_agent(model, middleware=[middleware]).invoke({"messages": [("user", "zebra")]})
    assert result["memory_status"] == "lexical"
    return system_text(model.requests[0])


def memories_in(prompt: str, categories: set[str]) -> list[str]:
    """The memory lines of a prompt in which nothing but them comes from memory."""
    seen = Counter(prompt.splitlines())
    assert [line for line in seen if line not in HEADERS and not line.startswith("  - [")] == []
    for text in (prompt, unicodedata.normalize("NFKC", prompt), unicodedata.normalize("NFKD", prompt)):
        for name in ["user_memory_context", *(f"{category}_memory" for category in categories)]:
            assert [text.count(f"<{name}>"), text.count(f"</{name}>")] == [1, 1], name
    for text in (prompt, unicodedata.normalize("NFKC", prompt)):
        assert [text.count(mark) for mark in "<>"] == [2 * (1 + len(categories))] * 2
    assert not STEERING.search(prompt.replace("\n", ""))
    assert not TAG_BLOCK.search(FLAG.sub("", prompt))
    return memory_lines(prompt)


def accepted(text: str, limit: int) -> bool:
    """What the contract says of text, in words of its own."""
    if "\x00" in text or len(text) > limit or re.search("[\ud800-\udfff]", text):
        return False
    readable = re.sub("[\x01-\x08\x0e-\x1f\x7f-\x9f]", "", text).strip()
    return readable != "" and len(unicodedata.normalize("NFC", readable).encode()) <= limit


def is_refused(attempt: Any, *arguments: Any, **named: Any) -> bool:
    """Whether a call raises the error for bad input; any other error is the test's failure."""
    try:
        attempt(*arguments, **named)
    except InvalidInput:
        return True
    return False


@pytest.fixture
def hostile_service(own_store: BaseStore, clock: FrozenClock) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(own_store, agent_name="planner", clock=clock)


@pytest.fixture
def in_memory(clock: FrozenClock) -> Iterator[AgentMemoryStoreService]:
    """For what does not depend on the store."""
    with open_store("memory://", embeddings=None) as store:
        yield AgentMemoryStoreService(store, agent_name="planner", clock=clock)


@pytest.fixture(params=PORTIONS, ids=lambda portion: f"{portion[0][0]}-{portion[-1][0]}")
def texts(request: pytest.FixtureRequest) -> list[str]:
    """A portion of the hostile texts; the recall tool can show what two memories of each make."""
    return [text for _, text in request.param]


class TestHostileContents:
    def test_the_corpus_is_what_it_says(self) -> None:
        assert len(ENTRIES) == 329
        assert sum(accepted(text, CONTENT_LIMIT) for _, text in ENTRIES) > 280
        assert len(BENIGN) == 200

    def test_saved_and_updated(self, hostile_service: AgentMemoryStoreService, texts: list[str]) -> None:
        face = hostile_service.sync
        total = 0
        for number, text in enumerate(texts):
            kind = KINDS[number % 3]
            key = face.save_memory(USER, f"harmless {number}", kind, topic="zebra")
            before = face.get_memory(USER, key)
            saved = not is_refused(face.save_memory, USER, f"{text} {number}" if text.strip() else text, kind)
            updated = not is_refused(face.update_memory, USER, key, text)
            assert [saved, updated] == [accepted(text, CONTENT_LIMIT)] * 2, ascii(text[:80])
            assert updated or face.get_memory(USER, key) == before
            total += 1 + saved
        stored, counted = face.list_memories(USER, limit=None)
        assert (len(stored), counted) == (total, total)
        different = {(memory.memory_category, words_of(memory.content) or memory.content) for memory in stored}
        lines = memories_in(prompt_of(hostile_service), {str(category) for category, _ in different})
        assert len(lines) == len(different)

    def test_as_topic_and_metadata(self, in_memory: AgentMemoryStoreService, texts: list[str]) -> None:
        face = in_memory.sync
        expected = 0
        for number, text in enumerate(texts):
            harmless = f"zebra number {number}"
            usable = not text.strip() or accepted(text, TOPIC_LIMIT)
            assert is_refused(face.save_memory, USER, harmless, "facts", topic=text) == (not usable), ascii(text[:80])
            expected += usable
            key = face.save_memory(USER, f"{harmless} again", "facts")
            assert is_refused(face.update_memory, USER, key, topic=text) == (not usable)
            expected += 1
            if not is_refused(face.save_memory, USER, f"{harmless} with data", extra_metadata={"note": text}):
                expected += 1
        block = prompt_of(in_memory)
        assert len(memories_in(block, {"semantic"})) == expected

    def test_in_the_tools(self, in_memory: AgentMemoryStoreService, texts: list[str]) -> None:
        names = ["save_memory_store", "update_memory_store", "recall_memories_store", "list_memories_store"]
        save, update, recall, listing = get_memory_tools(in_memory, USER, include_tools=names)
        expected = 0
        for number, text in enumerate(texts):
            key = in_memory.sync.save_memory(USER, f"zebra {number}")
            replies = [
                save.invoke({"content": text, "topic": "zebra"}),
                update.invoke({"memory_id": key, "content": text, "topic": "zebra"}),
            ]
            sign = "✓" if accepted(text, CONTENT_LIMIT) else "✗"
            assert [reply[0] for reply in replies] == [sign, sign], ascii(text[:80])
            assert all(len(reply.splitlines()) == 1 and "<" not in reply for reply in replies)
            expected += 2 if "saved" in replies[0] else 1
        replies = [recall.invoke({"query": "zebra", "max_results": 50})]
        replies += [listing.invoke({"page": page + 1}) for page in range(-(-expected // 20))]
        found = len(replies[0].splitlines()) - 1  # what was saved twice is told once
        assert 0 < found <= expected
        assert replies[0].splitlines()[0] == f"Found {found} relevant memories:"
        assert sum(len(reply.splitlines()) - 1 for reply in replies) == found + expected
        numbers = [line.split(". [id: ")[0] for reply in replies for line in reply.splitlines()[1:]]
        assert numbers == [str(one) for one in [*range(1, found + 1), *range(1, expected + 1)]]
        assert not re.search("[<>]", unicodedata.normalize("NFKC", "".join(replies)))
        assert not STEERING.search("".join(replies).replace("\n", ""))

    def test_as_memory_id(self, in_memory: AgentMemoryStoreService, texts: list[str]) -> None:
        tools = get_memory_tools(in_memory, USER, include_tools=["update_memory_store", "delete_memory_store"])
        for text in texts:
            for tool, more in zip(tools, ({"content": "x"}, {}), strict=True):
                reply = tool.invoke({"memory_id": text, **more})
                assert reply.startswith("✗ ")
                assert len(reply.splitlines()) == 1
                assert not re.search("[<>]", unicodedata.normalize("NFKC", reply)), ascii(text[:80])
                assert len(reply) < 400

    def test_as_query(self, in_memory: AgentMemoryStoreService, texts: list[str]) -> None:
        face = in_memory.sync
        face.save_memory(USER, "zebra")
        face.save_memory("bob", "secret zebra")
        for text in texts:
            assert {hit.content for hit in face.recall_memories(USER, text)} <= {"zebra"}
            (line,) = memory_lines(face.format_context_for_prompt(USER, f"zebra {text}"[:CONTENT_LIMIT]))
            assert "secret" not in line


class TestBenignTexts:
    def test_come_back_unchanged(self, hostile_service: AgentMemoryStoreService, full: bool) -> None:
        face, texts = hostile_service.sync, BENIGN if full else BENIGN[::4]
        keys = [face.save_memory(USER, text) for text in texts]
        got = [face.get_memory(USER, key) for key in keys]
        assert [memory and memory.content for memory in got] == texts
        for key, text in zip(keys, reversed(texts), strict=True):
            assert face.update_memory(USER, key, text)
        assert [memory.content for key in keys if (memory := face.get_memory(USER, key))] == texts[::-1]

    def test_are_told_unchanged(self, hostile_service: AgentMemoryStoreService) -> None:
        for text in BENIGN:
            hostile_service.sync.save_memory(USER, text, "facts")
        lines = memories_in(prompt_of(hostile_service), {"semantic"})
        told = {html.unescape(line).split("] ", 1)[1].removesuffix(" (type: facts)") for line in lines}
        assert told == set(BENIGN)

    def test_are_unchanged_as_topics(self, in_memory: AgentMemoryStoreService) -> None:
        topics = [text for text in BENIGN if len(text) <= 120]
        for number, text in enumerate(topics):
            in_memory.sync.save_memory(USER, f"no. {number}", "facts", topic=text)
        lines = memories_in(prompt_of(in_memory), {"semantic"})
        told = {html.unescape(line).split(" [topic: ", 1)[1].removesuffix("]") for line in lines}
        assert told == set(topics)
        assert len(topics) > 150

    def test_are_unchanged_in_the_tools(self, in_memory: AgentMemoryStoreService) -> None:
        save, listing = get_memory_tools(in_memory, USER, include_tools=["save_memory_store", "list_memories_store"])
        assert all(save.invoke({"content": text}).startswith("✓") for text in BENIGN)
        lines = [line for page in range(10) for line in listing.invoke({"page": page + 1}).splitlines()[1:]]
        told = [html.unescape(line).split("[created: ", 1)[1].split("]: ", 1)[1] for line in lines]
        assert sorted(told) == sorted(BENIGN)

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  ", "\u2028", "\x0b", "\t"], ids=ascii)
    def test_line_ends_become_spaces(self, in_memory: AgentMemoryStoreService, end: str) -> None:
        in_memory.sync.save_memory(USER, f"buy milk{end}buy eggs", topic=f"shopping{end}list")
        (line,) = memories_in(prompt_of(in_memory), {"semantic"})
        assert "] buy milk buy eggs (type: general) [topic: shopping list]" in line
