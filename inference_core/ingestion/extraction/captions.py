"""Captions: what a chat model says of the pictures and recordings of a message, for a memory that keeps only words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from inference_core.asking import ask, named_model
from inference_core.errors import ConfigurationError, ModelError
from inference_core.ingestion.extraction.extractor import PROMPTS
from inference_core.outbox.media import Block, reference_to
from inference_core.outbox.messages import split_text
from inference_core.telemetry import DIRECTION, OPERATION, TOKENS, record

NO_MODEL: Final = "This message has pictures or recordings: set AGENT_MEMORY_MEDIA_MODEL for the worker, and retry it"
_MAX_WORDS: Final = 60_000
"""Characters of an answer that are kept."""
_MAX_NAMED: Final = 4
"""References to media of one message in a caption."""
_named: Final = lru_cache(maxsize=8)(named_model)


def made_media_model(given: BaseChatModel | str) -> BaseChatModel:
    """The model ``given``, itself or by its name, made once. Raises ConfigurationError, MissingExtra."""
    return _named(given) if isinstance(given, str) else given


async def captions_of(model: BaseChatModel | str | None, media: Sequence[Block], max_bytes: int) -> list[str]:
    """What ``media`` show or let one hear, in texts of at most ``max_bytes``, each with references to them.

    Raises ModelError if the model does not say, ConfigurationError if there is none.
    """
    if not media:
        return []
    if model is None:
        raise ConfigurationError(NO_MODEL)
    content = cast("list[str | dict[Any, Any]]", list(media))
    request = [SystemMessage(PROMPTS["media"]["prompt"]), HumanMessage(content)]
    answer: AIMessage = await ask(made_media_model(model), request)
    usage: Any = answer.usage_metadata or {}
    for direction in ("input", "output"):
        record(TOKENS, usage.get(f"{direction}_tokens", 0), {OPERATION: "chat", DIRECTION: direction})
    references = list(dict.fromkeys(map(reference_to, media)))
    more = len(references) - _MAX_NAMED
    names = " ".join([*references[:_MAX_NAMED], *([f"and {more} more"] if more > 0 else [])])
    words = answer.text.strip()
    if not words:
        raise ModelError(f"The chat model said nothing of {names}")
    room = max(max_bytes // 2, max_bytes - len(names.encode()) - 1)
    return [f"{names} {part}" for part in split_text(words[:_MAX_WORDS], room)]
