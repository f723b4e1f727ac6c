"""What finds memories in what is said, as settings name it."""

from __future__ import annotations

from uuid import UUID

from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.agents.models import make_chat_models
from inference_core.ingestion.outbox import Limits
from inference_core.ingestion.pipeline import Extractor
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import MemorySettings


def make_extractor(settings: MemorySettings) -> Extractor:
    """A language model's, if ``settings`` name one, else rules. Raises ConfigurationError, MissingExtra."""
    if settings.model:
        from inference_core.ingestion.extraction import ModelExtractor  # noqa: PLC0415 - only for those who have one

        return ModelExtractor(make_chat_models(settings.model))
    from inference_core.ingestion.rules import RuleExtractor  # noqa: PLC0415 - slow to import

    return RuleExtractor()


def make_capture(
    settings: MemorySettings, memory: AgentMemoryStoreService, user_id: str | UUID | None
) -> CaptureMiddleware:
    """The middleware that captures as ``settings`` say. Raises ConfigurationError, MissingExtra."""
    return CaptureMiddleware(
        make_extractor(settings),
        interval_s=settings.worker_interval,
        limits=limits_of(settings),
        memory_service=memory,
        user_id=user_id,
    )


def limits_of(settings: MemorySettings) -> Limits:
    """The sizes of batches that ``settings`` name."""
    return Limits(batch_messages=settings.batch_messages, batch_tokens=settings.batch_tokens)
