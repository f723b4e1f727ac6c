"""Whatever a model answers: a usable extraction or ModelError, in bounded time."""

from __future__ import annotations

import json
import time
from datetime import UTC
from typing import Any

from extraction_support import NOW, ROME, TOOL, said
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples
from langchain_core.messages import AIMessage

from inference_core.effects import run
from inference_core.errors import ModelError
from inference_core.ingestion.extraction.extractor import Batch, ModelExtractor, find_json, read_candidates
from inference_core.memory.text import canonical_text
from inference_core.memory.types import GUIDING_TYPES
from inference_core.outbox.messages import Role
from inference_core.testing import ScriptedChatModel

MANY = examples(50)
MAX_SECONDS = 5.0
MESSAGES = [said("a"), said("b", Role.ASSISTANT), said("c", Role.TOOL)]
NAMES = [
    *("memories", "content", "type", "topic", "tags", "importance", "sources", "happened_at", "holds_until", "state"),
    *("entities", "relations", "action", "target", "name", "kind", "source", "facts", "memory", "text", "id", "event"),
    *("category", "result", "role"),
]
WORDS = [
    "m1",
    "m2",
    "m3",
    "k1",
    "k2",
    "facts",
    "rule",
    "supersede",
    "reinforce",
    "delete",
    "2026-01-10",
    "0.5",
    "\ud800",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)
PIECES = st.sampled_from(
    [
        *"{}[]:,'\"`\\\n ",
        '"memories"',
        '"content"',
        "content",
        "```json",
        "//",
        "/*",
        "*/",
        "\\u",
        "\\ud800",
        "NaN",
        *WORDS,
    ]
) | st.text(max_size=4)
TEXTS = st.lists(PIECES, max_size=60).map("".join)


@st.composite
def broken_json(draw: st.DrawFn) -> str:
    """JSON of any value with a part cut out, doubled or replaced."""
    text = json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans()))
    start, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    return text[:start] + draw(PIECES) + text[draw(st.sampled_from([start, end])) :]


def check(answer: AIMessage) -> None:
    model = ScriptedChatModel(turns=[answer, AIMessage("Sorry.")])
    started = time.process_time()
    try:
        found = run(ModelExtractor([model], max_memories=5).extract(MESSAGES, [ROME], NOW))
    except ModelError:
        return
    finally:
        assert len(model.requests) <= 2
        assert time.process_time() - started < MAX_SECONDS
    assert len(found.candidates) <= 5
    for one in found.candidates:
        assert canonical_text(one.content) == one.content
        assert {*one.message_ids} <= {"id-a", "id-b", "id-c"}
        assert one.target in (None, ROME.memory_id)
        assert 0 <= one.importance <= 1
        assert not (one.memory_type.value in GUIDING_TYPES and "id-a" not in one.message_ids)
        assert not (one.valid_from and one.valid_to and one.valid_to <= one.valid_from)


@MANY
@given(TEXTS | broken_json() | st.text())
def test_any_text(text: str):
    check(AIMessage(text))


@MANY
@given(
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4) | st.fixed_dictionaries({"memories": st.lists(VALUES)})
)
def test_any_arguments(args: dict[str, Any]):
    check(AIMessage(content="", tool_calls=[{"name": TOOL, "args": args, "id": "1"}]))


@MANY
@given(st.lists(st.dictionaries(st.sampled_from([name.replace("_", "") for name in NAMES]), VALUES), max_size=4))
def test_any_entry(entries: list[dict[str, Any]]):
    batch = Batch.of(MESSAGES, [ROME], NOW, UTC)
    reading = read_candidates(({**entry, "content": "x"} for entry in entries), batch, 5)
    assert reading.understood == len(entries)


@MANY
@given(VALUES.filter(lambda value: isinstance(value, dict | list)))
def test_good_json_is_read_as_it_is(value: Any):
    text = json.dumps(value)
    assert json.dumps(find_json(text)[0]) == f"[{json.dumps(json.loads(text))}]"
