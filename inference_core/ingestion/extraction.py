"""ModelExtractor: a language model picks memories out of messages; nothing that it answers breaks anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from inference_core.asking import MODEL_TIMEOUT_S, ask
from inference_core.context.neutral import neutral_line
from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError, ModelError
from inference_core.ingestion.candidates import Extraction, Offered
from inference_core.ingestion.extraction_candidates import Reading, read_candidates
from inference_core.ingestion.extraction_parsing import answer_of
from inference_core.ingestion.extraction_prompt import EXTRACTION_PROMPT, Batch, repair_of, request_for
from inference_core.ingestion.extraction_schema import MAX_MEMORIES, ExtractedMemories
from inference_core.ingestion.messages import Message
from inference_core.memory.text import text_tokens

DEFAULT_MAX_MEMORIES: Final = 30
_MAX_PROBLEMS: Final = 50
_MAX_PROBLEM: Final = 300


class ModelExtractor:
    """Extracts memories with the first of ``models`` that answers in a form that can be used.

    A model is given the tool `ExtractedMemories` if it takes tools, and no other. ``prompt`` says what is worth
    remembering, ``timeout`` (s) bounds each call, ``max_memories`` what is taken of a batch, at most MAX_MEMORIES.
    Raises ConfigurationError for arguments that make no sense.
    """

    def __init__(
        self,
        models: Sequence[BaseChatModel],
        *,
        prompt: str = EXTRACTION_PROMPT,
        timeout: float | None = MODEL_TIMEOUT_S,
        max_memories: int = DEFAULT_MAX_MEMORIES,
    ) -> None:
        if not models:
            raise ConfigurationError("ModelExtractor needs at least one chat model")
        if not 1 <= max_memories <= MAX_MEMORIES:
            raise ConfigurationError(f"max_memories must be from 1 to {MAX_MEMORIES}, not {max_memories}")
        self._models = [_structured(model) for model in models]
        self.prompt = prompt
        self.timeout = timeout
        self.max_memories = max_memories

    def extract(
        self, messages: Sequence[Message], offered: Sequence[Offered], now: datetime, zone: tzinfo = UTC
    ) -> Plan[Extraction]:
        """Plan: what ``messages`` suggest. ``offered`` are the memories that may be reinforced or superseded.

        One call for all messages. A model whose answer holds nothing usable is shown that, once in all; then, and
        when a model fails, the next one is asked. ``now`` and ``zone`` are the user's time. Raises ModelError if no
        model gave anything usable, which an empty list is.
        """
        batch = Batch.of(messages, offered, now, zone)
        if not batch.messages:
            return Extraction(())
        asking = _Asking(batch, self.timeout, self.max_memories)
        request = request_for(batch, self.prompt, self.max_memories)
        for model in self._models:
            try:
                reading = yield from asking.of(model, request)
            except ModelError as error:
                asking.problems.append(str(error))
            else:
                if reading is not None:
                    return asking.extraction(reading)
        raise ModelError(f"No chat model gave memories: {'; '.join(_shown(asking.problems))}")


@dataclass(slots=True)
class _Asking:
    """The calls that a batch takes, and what they cost."""

    batch: Batch
    timeout: float | None
    most: int
    problems: list[str] = field(default_factory=list[str])
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    is_repaired: bool = False

    def of(self, model: Runnable[Any, Any], request: Sequence[BaseMessage]) -> Plan[Reading | None]:
        """Plan: what can be used of the answer of ``model``; None if nothing can. Raises ModelError."""
        answer = yield from self._answer(model, request)
        reading, problem = self._read(answer)
        if problem and not self.is_repaired:
            self.is_repaired = True
            self.problems.append(f"The answer could not be used: {problem}")
            answer = yield from self._answer(model, repair_of(request, _text_of(answer), problem))
            reading, problem = self._read(answer)
        if problem:
            self.problems.append(f"The answer could not be used: {problem}")
        return None if problem else reading

    def extraction(self, reading: Reading) -> Extraction:
        """What the batch gave."""
        return Extraction(
            tuple(reading.candidates),
            tuple(_shown([*self.batch.problems, *self.problems, *reading.problems])),
            self.model_calls,
            self.input_tokens,
            self.output_tokens,
        )

    def _answer(self, model: Runnable[Any, Any], request: Sequence[BaseMessage]) -> Plan[Any]:
        self.model_calls += 1
        given: Any = yield from ask(model, request, self.timeout)
        answer: Any = cast("dict[str, Any]", given).get("raw") if isinstance(given, dict) else given
        usage: Any = getattr(answer, "usage_metadata", None) or {}
        self.input_tokens += usage.get("input_tokens") or sum(text_tokens(message.text) for message in request)
        self.output_tokens += usage.get("output_tokens") or text_tokens(_text_of(answer))
        return answer

    def _read(self, answer: Any) -> tuple[Reading, str]:
        """What can be used of an answer, and what is wrong with one of which nothing can."""
        said = answer_of(answer)
        reading = read_candidates(said.entries, self.batch, self.most)
        problems = [*said.problems, *reading.problems]
        reading.problems = problems
        if reading.understood or (said.is_empty and not said.entries and not said.problems):
            return reading, ""
        return reading, "; ".join(_shown(problems[:3])) or "it holds no list of memories"


def _structured(model: BaseChatModel) -> Runnable[Any, Any]:
    """``model`` with the answer's tool, giving its message as it is; or ``model`` alone if it takes no tools."""
    try:
        return model.with_structured_output(ExtractedMemories, method="function_calling", include_raw=True)  # pyright: ignore[reportUnknownMemberType]
    except (AttributeError, NotImplementedError):
        return model


def _text_of(answer: Any) -> str:
    """The text of an answer and the arguments of its calls, as far as it has them."""
    if not isinstance(answer, AIMessage):
        return ""
    try:
        calls = [json.dumps(call["args"], ensure_ascii=False, default=str) for call in answer.tool_calls]
    except (TypeError, ValueError, RecursionError):
        calls = []
    return "\n".join([answer.text, *calls, *(call["args"] or "" for call in answer.invalid_tool_calls)]).strip()


def _shown(problems: Sequence[str]) -> list[str]:
    """``problems`` in harmless lines, no more than anybody reads."""
    lines = [neutral_line(problem, _MAX_PROBLEM) for problem in problems[:_MAX_PROBLEMS]]
    more = len(problems) - len(lines)
    return [*lines, f"and {more} more"] if more else lines
