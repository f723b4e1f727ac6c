"""The two summarizers of sessions: `ModelSummarizer` asks a language model, `ExtractiveSummarizer` picks sentences."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import partial
from itertools import islice
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict, Field

from inference_core.asking import MODEL_TIMEOUT_S
from inference_core.context.render import neutral_line
from inference_core.effects import Operation
from inference_core.errors import ConfigurationError, InvalidMemory
from inference_core.ingestion.extraction.extractor import short
from inference_core.ingestion.extraction.schema import MAX_LABEL, end_of, first_of, folded, start_of, texts_of
from inference_core.ingestion.extraction.structured import PROMPTS, Asking, answer_of, structured
from inference_core.ingestion.periodic.derived import (
    Shown,
    request_for,
    short_text,
    shown_source,
    text_and_cited,
)
from inference_core.ingestion.periodic.sessions import SessionContent, SummaryDraft, candidate_of
from inference_core.memory.text import text_tokens
from inference_core.outbox.candidates import Extraction
from inference_core.outbox.messages import Role, mended
from inference_core.retrieval.analysis import analyze

MAX_SUMMARY: Final = 2_000
"""Characters of a summary; a longer one is refused. The model is asked for half of that."""
MAX_PARTICIPANTS: Final = 12
_DATE: Final = "ISO 8601, a day or an instant, if the conversation tells it better than the times of its messages"
_PEOPLE: Final = frozenset({"user", "assistant"})
WINDOW_TOKENS: Final = 8_000
MIN_WINDOW_TOKENS: Final = 1_000
MAX_PORTIONS: Final = 16
"""Of a session with more portions than these, the oldest are not summarized."""
MAX_CHARACTERS: Final = 800
MAX_SENTENCES: Final = 2_000
"""Of a longer session only the newest sentences are considered."""
MAX_SENTENCE: Final = 300
_END: Final = re.compile("(?<=[.!?])\\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_SAME: Final = 0.6
_ASSISTANTS_SHARE: Final = 0.5
_MIN_TERMS: Final = 2
SUMMARY_PROMPT: Final = PROMPTS["summary"]["prompt"]
"""What a good summary is; the rules of answering are appended."""


class SessionSummary(BaseModel):
    """The summary of a conversation."""

    model_config = ConfigDict(extra="forbid")
    title: str = Field(max_length=MAX_LABEL, description="A few words")
    summary: str = Field(max_length=MAX_SUMMARY // 2, description="A few sentences")
    participants: list[str] = Field(max_length=MAX_PARTICIPANTS, description="Names of the people who took part")
    happened_from: str | None = Field(default=None, description=_DATE)
    happened_to: str | None = Field(default=None, description=_DATE)
    sources: list[str] = Field(min_length=1, description="Ids of the sources that it follows from, such as s1")


def read_summary(lines: Sequence[Shown], now: datetime, zone: tzinfo, answer: Any) -> tuple[SummaryDraft, str]:
    """The summary in an answer, or why it is unusable. Only sources that were shown are cited. Never raises."""
    said = answer_of(answer)
    nothing = SummaryDraft(text="", cited=())
    if not said.entries:
        return nothing, "; ".join(said.problems) or "it holds no summary"
    entry = said.entries[0]
    try:
        text, cited = text_and_cited(entry, "summary", lines, MAX_SUMMARY)
    except InvalidMemory as error:
        return nothing, str(error)
    try:
        title = short_text(first_of(entry, ("title", "topic", "headline")), MAX_LABEL)
    except InvalidMemory:
        title = None
    given = (name[:MAX_LABEL] for name in islice(texts_of(entry.get("participants")), MAX_PARTICIPANTS))
    names = dict.fromkeys(" ".join(mended(name).split()) for name in given)
    evidence = "\n".join(one.line for one in lines).casefold()  # participants must be named in the sources
    draft = SummaryDraft(
        text=text,
        title=title,
        participants=[name for name in names if folded(name) in _PEOPLE or short(name).casefold() in evidence],
        cited=cited,
        start=start_of(first_of(entry, ("happenedfrom", "from", "start")), now, zone),
        end=end_of(first_of(entry, ("happenedto", "to", "end")), now, zone),
    )
    return draft, ""


class ModelSummarizer:
    """Summarizes with the first of ``models`` that gives a usable answer.

    A request shows about ``window_tokens`` of sources at most. A longer session is summarized in portions, and their
    summaries are then summarized together; a source is cut to ``window_tokens`` characters. ``prompt`` says what a good
    summary is, ``timeout`` (s) limits each call. Raises ConfigurationError without models, and if ``window_tokens`` is
    less than MIN_WINDOW_TOKENS.
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

    def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Operation[Extraction]:
        """The summary of ``content``, which cites sources of it. Raises ModelError if no model gave one."""
        asking = Asking(self._models, self.timeout, PROMPTS["summary"]["repair"])
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
        return asking.extraction([candidate_of(content, summary)], problems)

    def _summary(self, asking: Asking, lines: Sequence[Shown], now: datetime, zone: tzinfo) -> Operation[SummaryDraft]:
        instructions = f"{self.prompt}\n\n{PROMPTS['summary']['rules']}"
        request = request_for(lines, "sources", instructions, now, zone)
        return (yield from asking.answered(request, partial(read_summary, lines, now, zone), "a summary"))


def _portions(lines: Sequence[Shown], room: int) -> list[list[Shown]]:
    """``lines`` in order, in portions of at most ``room`` tokens, or of two lines, so that each round has fewer."""
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


class ExtractiveSummarizer:
    """Picks the most central sentences of a session, word for word, at most ``max_characters`` in all.

    Needs no model, and can neither conclude nor rephrase. A sentence's score is the cosine of its tf-idf vector with
    the sum of all, the centroid of Radev et al. (Centroid-based summarization of multiple documents, 2004). Sentences
    that repeat a chosen one are left out.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self.max_characters = max_characters

    def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Operation[Extraction]:
        """The summary; none if the session has no sentence."""
        del now, zone
        yield from ()
        given = [(text.strip(), source) for source in content.sources for text in _END.split(mended(source.text))]
        short = [(text[:MAX_SENTENCE].rstrip(), source) for text, source in given[-MAX_SENTENCES:] if text]
        found = [(text, source, Counter(analyze(text))) for text, source in short]
        sentences = [one for one in found if len(one[2]) >= _MIN_TERMS] or found[:1]
        holding = Counter(term for *_, terms in sentences for term in terms)
        rarity = {term: math.log(1 + len(sentences) / count) for term, count in holding.items()}
        vectors = [{term: count * rarity[term] for term, count in terms.items()} for *_, terms in sentences]
        centroid: Counter[str] = Counter()
        for vector in vectors:
            centroid.update(vector)

        def score(at: int) -> float:
            # What the user says characterizes the session better than what the assistant answers.
            share = _ASSISTANTS_SHARE if sentences[at][1].role is Role.ASSISTANT else 1.0
            return share * _cosine(vectors[at], centroid)

        chosen: list[int] = []  # the best sentence is taken even if it is too long
        room = self.max_characters
        for at in sorted(range(len(sentences)), key=lambda at: (-score(at), at)):
            size = len(sentences[at][0])
            is_new = all(_cosine(vectors[at], vectors[other]) < _SAME for other in chosen)
            if not chosen or (is_new and size < room):
                chosen.append(at)
                room -= size + 1
        taken = [sentences[at][:2] for at in sorted(chosen)]
        if not taken:
            return Extraction(())
        draft = SummaryDraft(
            text=" ".join(text for text, _ in taken),
            cited=[source for _, source in taken],
            participants=tuple(dict.fromkeys(source.author for _, source in taken if source.author)),
        )
        return Extraction((candidate_of(content, draft),))


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    product = sum(weight * other[term] for term, weight in one.items() if term in other)
    size = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / size if size else 0.0
