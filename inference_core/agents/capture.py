"""What finds memories in what is said, as settings name it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.agents.models import make_chat_models
from inference_core.ingestion.insight_writing import ModelInsights
from inference_core.ingestion.outbox import Limits
from inference_core.ingestion.periodic import PeriodicWork
from inference_core.ingestion.pipeline import Extractor
from inference_core.ingestion.sessions import Summarizer
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import MemorySettings

_HOUR_S: Final = 3_600.0


def make_extractor(settings: MemorySettings) -> Extractor:
    """A language model's, if ``settings`` name one, else rules. Raises ConfigurationError, MissingExtra."""
    if settings.model:
        from inference_core.ingestion.extraction import ModelExtractor  # noqa: PLC0415 - only for those who have one

        return ModelExtractor(make_chat_models(settings.model))
    from inference_core.ingestion.rules import RuleExtractor  # noqa: PLC0415 - slow to import

    return RuleExtractor()


def make_periodic(settings: MemorySettings) -> PeriodicWork:
    """The periodic work that ``settings`` ask for. Raises ConfigurationError, MissingExtra.

    A language model sums up sessions, if they name one, else an extractive summarizer does; insights need a model.
    """
    summarizer: Summarizer | None = None
    if settings.summaries and settings.model:
        from inference_core.ingestion.summarizing import ModelSummarizer  # noqa: PLC0415 - only for those who have one

        summarizer = ModelSummarizer(make_chat_models(settings.model))
    elif settings.summaries:
        from inference_core.ingestion.summary_extractive import ExtractiveSummarizer  # noqa: PLC0415 - slow to import

        summarizer = ExtractiveSummarizer()
    insights = ModelInsights(make_chat_models(settings.model or ())) if settings.insights else None
    return PeriodicWork(summarizer, insights, settings.session_quiet, settings.insights_hours * _HOUR_S)


def make_capture(
    settings: MemorySettings, memory: AgentMemoryStoreService, user_id: str | UUID | None
) -> CaptureMiddleware:
    """The middleware that captures as ``settings`` say. Raises ConfigurationError, MissingExtra."""
    return CaptureMiddleware(
        make_extractor(settings),
        interval_s=settings.worker_interval,
        limits=limits_of(settings),
        periodic=make_periodic(settings),
        memory_service=memory,
        user_id=user_id,
    )


def limits_of(settings: MemorySettings) -> Limits:
    """The sizes of batches that ``settings`` name."""
    return Limits(batch_messages=settings.batch_messages, batch_tokens=settings.batch_tokens)
