"""No text, whatever it holds, keeps a reader of texts busy: one request must not hold up all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from langchain_core.messages import AIMessage
from work import TooSlow, at_most

from inference_core.context.comparing import asks_for_history, doubted
from inference_core.context.items import AssembledContext, ContextItem
from inference_core.context.render import compact, contents_in, neutral_line, numbered, whole, xml
from inference_core.errors import without_quotes
from inference_core.evaluation.answers import verdict_of
from inference_core.ingestion.extraction.extractor import answer_of
from inference_core.ingestion.extraction.rules import extract_by_rules
from inference_core.ingestion.extraction.schema import end_of, folded, quoted
from inference_core.ingestion.formats.whatsapp import chat_of, whatsapp_entries
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.secrets import credentials_in, personal_in
from inference_core.memory.text import canonical_text, harmless, unmasked, word_changes
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.outbox.messages import ConversationMessage, Role, own_sentences, quotes, split_text
from inference_core.outbox.said import Said, same_subject
from inference_core.retrieval.analysis import analyze, language_of, query_alternatives, words_by_term
from inference_core.retrieval.documents import passages
from inference_core.retrieval.query import Query, author_of, canonical_name, interval_of
from inference_core.retrieval.similarity import asks_for_past, asks_for_present, compared, gist
from inference_core.slots.conflicts import contradict, note_of
from inference_core.slots.reading import expanded, is_plain, slots_of

SIZE = 20_000
MOST_SECONDS = 2
NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
PIECES = [
    *("a", "A", "0", "_", "-", ".", " ", "\n", "\t", "(", "[", "{", '"', "'", "`", "~", "<", "?", ":", "\\", "=", "*"),
    *(
        "a ",
        "a_",
        "a-",
        "a.",
        "a'",
        "A ",
        "_ ",
        "0 ",
        "0-",
        "1,",
        "? ",
        "?!",
        "\n\n",
        " \n",
        "[ ",
        "{ ",
        "{'",
        '["',
        "</",
    ),
    *(
        "if ",
        "my ",
        "read: ",
        "my a's ",
        "a: ",
        "a@",
        "://",
        '\\"',
        "12:",
        "\u3002",
        "\u4e2d",
        "\u200b",
        "e\u0301",
        "&#1",
    ),
    *(
        "I am a, ",
        "used to ",
        "password is ",
        "2026-01-01 ",
        "from 1 to ",
        "[source",
        "(type: x)",
        "Ab ",
        "```",
        "<!--",
    ),
]
ENDS = ["ab", ",b?"]
"""What makes a pattern fail after it has read all that comes before."""


def _record(text: str) -> MemoryRecord:
    return MemoryRecord(
        id="m",
        content=text,
        memory_type=MemoryType.FACTS,
        category=MemoryCategory.SEMANTIC,
        namespace=("ada", "semantic"),
        created_at=NOW,
        updated_at=NOW,
    )


def _rendered(text: str) -> object:
    document = MemoryStoreDocument("k", {"content": text}, {})
    item = ContextItem.of(_record(text), source="recall")
    context = AssembledContext(sections={"semantic_memory": [item]})
    block = xml(context, NOW, UTC) + compact(context, NOW, UTC)
    told = contents_in(f"{block}\n  - [x] {text} (type: facts)\n- 2026-01-15 {text}")
    return whole(document), numbered([document]), told


def _weighed(text: str) -> object:
    texts = (text, text[:300], f"I {text}")
    items = [replace(ContextItem.of(_record(one), source="recall"), relevance=0.5) for one in texts]
    return doubted(items, text)


def _said(text: str) -> object:
    messages = [
        ConversationMessage(session_id=None, role=role, text=text)
        for role in (Role.USER, Role.TOOL, Role.ASSISTANT, Role.USER)
    ]
    asked = ConversationMessage(session_id=None, role=Role.ASSISTANT, text=f"Forget {text}?")
    yes = ConversationMessage(session_id=None, role=Role.USER, text="yes")
    said = Said([*messages, asked, yes])
    return said.owned(text), said.has_confirmed(text), said.has_dismissed(text), same_subject(text, text[::-1])


def _imported(text: str) -> object:
    lines = [f"12/01/2026, 10:00 - {text}", *text.split("\n"), f"[12.01.26, 10:00:00] Ada: {text}"]
    return list(whatsapp_entries(enumerate(lines), chat_of(lines), "chat", UTC))


def _extracted(text: str) -> object:
    return extract_by_rules([ConversationMessage(session_id=None, role=Role.USER, text=text, at=NOW)], [], NOW)


READERS: dict[str, Callable[[str], object]] = {
    "canonical text": lambda text: canonical_text(f"x{text}", max_bytes=4 * SIZE) and harmless(text),
    "unmasked": unmasked,
    "changes": lambda text: word_changes(text[:4_000], text[4_000:8_000][::-1]),
    "line": neutral_line,
    "rendered": _rendered,
    "weighed": _weighed,
    "question": lambda text: (asks_for_history(text), asks_for_past(text), asks_for_present(text)),
    "asks for the present": lambda text: asks_for_present(f"What is {text}"),
    "compared": lambda text: compared(text, [text, text[:300]]),
    "gist": gist,
    "terms": lambda text: (analyze(text), words_by_term(text)),
    "query": lambda text: (query_alternatives(text), Query.of(text, NOW)),
    "passages": passages,
    "language": language_of,
    "name": lambda text: (canonical_name(text), author_of(text)),
    "time": lambda text: (interval_of(text, NOW), interval_of(f"in {text}", NOW)),
    "slots": lambda text: (slots_of(text[:300], NOW), contradict(note_of(text[:150]), note_of(f"I {text[:150]}"))),
    "long slots": lambda text: (slots_of(text, NOW), contradict(note_of(text), note_of(f"I {text}"))),
    "plain": lambda text: is_plain(expanded(text[:8_000])),
    "own sentences": lambda text: (own_sentences(text), quotes(text), own_sentences(text[:600]), quotes(text[-600:])),
    "parts": lambda text: split_text(text, 1_000),
    "said": lambda text: (_said(text), _said(text[:600])),
    "rules": _extracted,
    "answer of a model": lambda text: answer_of(AIMessage(text)),
    "answer of a model in JSON": lambda text: answer_of(AIMessage('{"memories": [{"content": "' + text)),
    "field of a model": lambda text: (folded(text), quoted(text), end_of(text, NOW, UTC)),
    "verdict": verdict_of,
    "secrets": credentials_in,
    "personal data": personal_in,
    "error": lambda text: without_quotes(ValueError(text)),
    "chat export": _imported,
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_reads_every_text_at_once(name: str) -> None:
    """Guards against patterns that try each way to read a text, or read it anew from each of its places."""
    for piece in PIECES:
        for end in ENDS:
            try:
                with at_most(MOST_SECONDS):
                    READERS[name]((piece * SIZE)[:SIZE] + end)
            except TooSlow:
                pytest.fail(f"{piece!r} again and again, then {end!r}, takes more than {MOST_SECONDS} s")
