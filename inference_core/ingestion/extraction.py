"""ModelExtractor: a language model picks memories out of messages; nothing that it answers breaks anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from inference_core.asking import MODEL_TIMEOUT_S
from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError
from inference_core.ingestion.candidates import Extraction, Offered
from inference_core.ingestion.extraction_candidates import Reading, read_candidates
from inference_core.ingestion.extraction_parsing import answer_of
from inference_core.ingestion.extraction_prompt import EXTRACTION_PROMPT, REPAIR, Batch, request_for
from inference_core.ingestion.extraction_schema import MAX_MEMORIES, ExtractedMemories
from inference_core.ingestion.messages import Message
from inference_core.ingestion.structured import Asking, shown, structured

DEFAULT_MAX_MEMORIES: Final = 30


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
        self._models = [structured(model, ExtractedMemories) for model in models]
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
        asking = Asking(self._models, self.timeout, REPAIR)
        request = request_for(batch, self.prompt, self.max_memories)
        reading = yield from asking.answered(request, partial(_read, batch, self.max_memories), "memories")
        return Extraction(
            tuple(reading.candidates),
            tuple(shown([*batch.problems, *asking.problems, *reading.problems])),
            asking.model_calls,
            asking.input_tokens,
            asking.output_tokens,
        )


def _read(batch: Batch, most: int, answer: Any) -> tuple[Reading, str]:
    """What can be used of an answer, and what is wrong with one of which nothing can."""
    said = answer_of(answer)
    reading = read_candidates(said.entries, batch, most)
    problems = [*said.problems, *reading.problems]
    reading.problems = problems
    if reading.understood or (said.is_empty and not said.entries and not said.problems):
        return reading, ""
    return reading, "; ".join(shown(problems[:3])) or "it holds no list of memories"
