"""What tests of extraction share: messages, answers of a model, and an extraction with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from langchain_core.messages import AIMessage
from support import expanded

from inference_core.effects import Operation, arun, run
from inference_core.ingestion.extraction.extractor import ModelExtractor
from inference_core.ingestion.extraction.schema import ExtractedMemories
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, KnownMemory, Role
from inference_core.testing import ScriptedChatModel, call_tool

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
OSLO = ZoneInfo("Europe/Oslo")
TOOL = ExtractedMemories.__name__
ROME = KnownMemory("k1", "memory-1", "The user lives in Rome")
Driver = Callable[[Operation[Extraction]], Extraction]


def arun_now(plan: Operation[Extraction]) -> Extraction:
    return asyncio.run(arun(plan))


def said(text: str = "I moved to Oslo", role: Role = Role.USER, **fields: Any) -> ConversationMessage:
    given: dict[str, Any] = {"id": f"id-{text[:20]}"} | fields
    return ConversationMessage(session_id="s", role=role, text=text, **given)


def memories(*entries: Any) -> AIMessage:
    """An answer with one call of the tool; a text stands for a memory with this content."""
    given = [{"content": entry} if isinstance(entry, str) else entry for entry in entries]
    return call_tool(TOOL, memories=given)


def reply_of(case: dict[str, Any]) -> AIMessage:
    """The message of an entry in tests/data/bad_model_outputs.json."""
    if "raw_args" in case:
        broken = {"name": TOOL, "args": case["raw_args"], "id": "1", "error": "not JSON", "type": "invalid_tool_call"}
        return AIMessage(content="", invalid_tool_calls=[broken])  # pyright: ignore[reportArgumentType]
    if "text" in case:
        return AIMessage(content=expanded(case["text"]))
    calls = case.get("calls") or [case["args"]]
    return AIMessage(
        content="", tool_calls=[{"name": TOOL, "args": args, "id": str(at)} for at, args in enumerate(calls)]
    )


def extraction(
    *turns: Any,
    messages: Sequence[ConversationMessage] = (said(),),
    offered: Sequence[KnownMemory] = (ROME,),
    zone: Any = UTC,
    drive: Driver = run,
    **options: Any,
) -> Extraction:
    model = ScriptedChatModel(turns=turns)
    return drive(ModelExtractor([model], **options).extract(messages, offered, NOW, zone))


def only(answer: Any, **options: Any) -> Candidate:
    """The one candidate of an answer."""
    (candidate,) = extraction(answer, **options).candidates
    return candidate
