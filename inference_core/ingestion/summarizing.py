"""ModelSummarizer: a language model summarizes a session, a long one in parts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Final, cast

from langchain_core.language_models import BaseChatModel

from inference_core.asking import MODEL_TIMEOUT_S
from inference_core.context.render import neutral_line
from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError
from inference_core.ingestion.candidates import Extraction
from inference_core.ingestion.derived import Shown, extraction_of, shown_source
from inference_core.ingestion.session_content import SessionContent, Summary, candidate_of
from inference_core.ingestion.structured import Asking, structured
from inference_core.ingestion.summary_form import REPAIR, SUMMARY_PROMPT, SessionSummary, read_summary, summary_request
from inference_core.memory.text import text_tokens

WINDOW_TOKENS: Final = 8_000
MIN_WINDOW_TOKENS: Final = 1_000
MAX_PORTIONS: Final = 16
"""Of a session that takes more requests than these, the oldest part is not summarized."""


class ModelSummarizer:
    """Summarizes with the first of ``models`` that gives a usable answer.

    A request shows about ``window_tokens`` of sources at most. A longer session is summarized in portions, and those
    summaries together; a source is cut to ``window_tokens`` characters. ``prompt`` says what a good summary is,
    ``timeout`` (s) bounds each call. Raises ConfigurationError without models and for less than MIN_WINDOW_TOKENS.
    """

    def __init__(
        self,
        models: Sequence[BaseChatModel],
        *,
        prompt: str = SUMMARY_PROMPT,
        timeout: float | None = MODEL_TIMEOUT_S,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        if not models:
            raise ConfigurationError("ModelSummarizer needs at least one chat model")
        if window_tokens < MIN_WINDOW_TOKENS:
            raise ConfigurationError(f"window_tokens must be at least {MIN_WINDOW_TOKENS}, not {window_tokens}")
        self._models = [structured(model, SessionSummary) for model in models]
        self.prompt = prompt
        self.timeout = timeout
        self.window_tokens = window_tokens

    def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Plan[Extraction]:
        """Plan: the summary of ``content``, which cites sources of it. Raises ModelError if no model gave one."""
        asking = Asking(self._models, self.timeout, REPAIR)
        named = enumerate(content.sources, 1)
        lines = [shown_source(f"s{at}", source, zone, self.window_tokens) for at, source in named]
        portions = _portions(lines, self.window_tokens)
        left_out = sum(map(len, portions[:-MAX_PORTIONS]))
        portions = portions[-MAX_PORTIONS:]
        while len(portions) > 1:
            parts: list[Shown] = []
            for number, portion in enumerate(portions, 1):
                part = yield from self._summary(asking, portion, now, zone)
                line = f'<part id="p{number}">{neutral_line(part.text)}</part>'
                parts.append(Shown(f"p{number}", line, part.cited))
            portions = _portions(parts, self.window_tokens)
        summary = yield from self._summary(asking, portions[0], now, zone)
        problems = [f"The oldest {left_out} sources were left out"] if left_out else []
        return extraction_of(asking, [candidate_of(content, summary)], problems)

    def _summary(self, asking: Asking, lines: Sequence[Shown], now: datetime, zone: tzinfo) -> Plan[Summary]:
        request = summary_request(lines, self.prompt, now, zone)
        answer = yield from asking.answered(request, partial(read_summary, lines, now, zone), "a summary")
        return cast("Summary", answer)  # read_summary gives None only with a problem, and then no answer is returned


def _portions(lines: Sequence[Shown], room: int) -> list[list[Shown]]:
    """``lines`` in their order in portions of at most ``room`` tokens, or of two lines."""
    portions: list[list[Shown]] = []
    left = 0
    for line in lines:
        tokens = text_tokens(line.line)
        if not portions or (tokens > left and len(portions[-1]) > 1):
            portions.append([])
            left = room
        portions[-1].append(line)
        left -= tokens
    return portions
