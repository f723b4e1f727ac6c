"""Answers measured end to end: a model answers from what a system recalls, and another one judges the answer.

Every reply of a model is kept in a file, by the model's name and the text that it was given. A run that was
interrupted, or that adds a system, a judge or questions, pays only for what is new. Only a judge's reply without a
readable verdict is not kept.

Judges are published prompts in our own wording; what counts as right follows the source that each names. Judges differ
widely: the same answers got 91 % from one published prompt and 35 % from another, so figures are comparable only under
the same judge.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage

from inference_core.asking import ask
from inference_core.effects import arun
from inference_core.errors import InvalidInput, ModelError
from inference_core.evaluation.conversations import Conversation, ConversationQuestion, ConversationTurn
from inference_core.evaluation.systems import Advance, Recall, RecalledTurn, System, dated
from inference_core.memory.text import text_tokens

TIMEOUT_S: Final = 300.0
_SEED: Final = 20_260
PROMPT: Final = (
    "Answer a question about earlier conversations with the notes below. They are what was said there, each with its "
    "day where that is known. The last conversation was on {until}; count 'now' from there.\n"
    "- Use the notes alone. What they say about a person holds for that person alone.\n"
    "- If two notes contradict each other, the later one holds, unless the question asks about the past.\n"
    "- Replace words such as 'yesterday' or 'last year' by the day or year that they mean, from the note's day.\n"
    "- If the notes do not hold the answer, say that you do not know.\n"
    "- Answer in as few words as the question allows.\n\n"
    "<notes>\n{notes}\n</notes>\n\n<question>{question}</question>"
)
"""What the answering model is given. It is the same for all systems; only the notes differ."""
_TASK: Final = "You grade an answer to a question about earlier conversations. Grade it by these rules alone:\n"
_VERDICT: Final = (
    "\nWrite one sentence of reasons, then a last line that is exactly 'VERDICT: right' or 'VERDICT: wrong'.\n\n"
    "<question>{question}</question>\n<expected>{expected}</expected>\n<answer>{answer}</answer>"
)
_SCORE: Final = (
    "\nWrite one sentence of reasons, then a last line, either 'VERDICT: 0', 'VERDICT: 0.5' or 'VERDICT: 1'.\n\n"
    "<question>{question}</question>\n<expected>{expected}</expected>\n<answer>{answer}</answer>"
)
_ABSTAIN: Final = (
    "- The conversations do not hold the answer to this question.\n"
    "- The answer is right if it says so: that it is not known, not mentioned, or that the question assumes something "
    "that was never said. It may add what is known instead.\n"
    "- It is wrong if it gives an answer to the question as if it were known.\n"
)
_LONGMEMEVAL: Final = (
    "- The answer is right if it holds the expected answer, or says the same in other words, or has every step that "
    "leads to it.\n"
    "- It is wrong if it holds only a part of what is expected.\n"
    "- A count of days, weeks or months may be off by one.\n"
    "- If it names an older state of affairs too, it is right as long as the newest one is given as the answer.\n"
    "- If what is expected describes how to please the user, it is right if it uses what is known of the user well; it "
    "need not meet every point.\n"
)
_MEM0: Final = (
    "- The expected answer is short; the answer may be long. Be generous: it is right if it touches on the same thing "
    "as the expected answer.\n"
    "- A time may be written in any form: '7 May' and 'the day before 8 May' are the same, and relative times are "
    "right if they mean the same day or period.\n"
    "- It is wrong if it names another thing or time, or says that it does not know.\n"
)
_BEAM: Final = (
    "- <expected> is one thing that the answer should do or say. Grade that thing alone, nothing else.\n"
    "- 1: the answer does it in full, in whatever words. 0.5: it does it in part or roughly. 0: it does not, or says "
    "the contrary.\n"
    "- If <expected> asks to say that there is no information, an answer that invents some gets 0.\n"
)
_FOUND: Final = re.compile(
    r"verdict\W{0,8}?(right|wrong|correct|incorrect|yes|no|[-+]?[.,]?[0-9](?:[0-9.,]| ?[/%] ?)*+)(?!\w)", re.IGNORECASE
)
"""Matches all of a number: cut off after its first digit, "0.50" would be 0 and "1/2" would be 1."""
_SCORES: Final = {"right": 1.0, "correct": 1.0, "yes": 1.0, "wrong": 0.0, "incorrect": 0.0, "no": 0.0}
_WORD: Final = re.compile(r"\w+")
_ARTICLES: Final = frozenset({"a", "an", "the", "and"})


class Nothing(System):
    """No memory: what a model knows without the conversation."""

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Stores nothing; recalls no turn."""
        for _ in conversation.turns:
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            del query, k
            return []

        return recall


class Everything(System):
    """The whole conversation in the prompt, however long; a model may refuse it."""

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Stores nothing; recalls every turn, whatever ``k`` is."""
        for _ in conversation.turns:
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            del query, k
            return [RecalledTurn(turn.id) for turn in conversation.turns]

        return recall


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply, its tokens in and out (estimated where the provider does not count them), and how long it took.

    ``is_new``: the model was asked in this run.
    """

    text: str
    tokens_in: int
    tokens_out: int
    seconds: float
    is_new: bool = True


class Replies:
    """Models' replies in a file of JSON Lines, each under a hash of the model's name and the text it was given.

    Raises InvalidInput if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._known: dict[str, Reply] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A run may be killed in the midst of a character, and a reply may have half a surrogate pair.
            self._file = path.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise InvalidInput(f"The file of replies {path} cannot be written: {error}") from error
        self._file.seek(0)
        is_whole = True
        for line in self._file:
            is_whole = line.endswith("\n")
            try:
                entry: dict[str, Any] = json.loads(line)
                key: str = entry.pop("key")
                self._known[key] = Reply(**entry, is_new=False)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a run was killed while it wrote this line; the model is asked again
        if not is_whole:
            self._file.write("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def find(self, key: str) -> Reply | None:
        """The reply with that key, if there is one."""
        return self._known.get(key)

    def keep(self, key: str, reply: Reply) -> None:
        """Adds a reply, and writes it to the file."""
        self._known[key] = replace(reply, is_new=False)
        entry = asdict(reply) | {"key": key}
        del entry["is_new"]
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()


class Asked:
    """A named chat model whose ``replies`` are kept; ``gate`` limits how many calls run at once."""

    def __init__(self, name: str, model: BaseChatModel, replies: Replies, gate: asyncio.Semaphore) -> None:
        self.name = name
        self._model = model
        self._replies = replies
        self._gate = gate

    async def reply(self, text: str, is_usable: Callable[[str], bool] = lambda _: True) -> Reply:
        """The model's reply to ``text``, kept or new. Raises ModelError; what failed or is not usable is not kept."""
        key = hashlib.sha256(json.dumps([self.name, text]).encode()).hexdigest()
        async with self._gate:
            if (kept := self._replies.find(key)) is not None and is_usable(kept.text):
                return kept
            started = perf_counter()
            message: AIMessage = await arun(ask(self._model, [HumanMessage(text)], TIMEOUT_S))
            took = perf_counter() - started
            said, usage = str(message.text), message.usage_metadata
            reply = Reply(
                text=said,
                tokens_in=usage["input_tokens"] if usage else text_tokens(text),
                tokens_out=usage["output_tokens"] if usage else text_tokens(said),
                seconds=took,
            )
            if is_usable(said):
                self._replies.keep(key, reply)
            return reply


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of one question. ``score`` (0 to 1) is None if it was not judged, ``f1`` if the data give no answer.

    ``failure`` says why there is no answer or no verdict. ``recall_ms`` is the time of the recall alone.
    """

    conversation: str
    question: ConversationQuestion
    notes: int
    notes_tokens: int
    recall_ms: float
    answer: Reply | None = None
    score: float | None = None
    f1: float | None = None
    verdicts: tuple[Reply, ...] = ()
    failure: str | None = None


async def answered(
    conversations: Sequence[Conversation],
    system: System,
    model: Asked,
    judging: tuple[Judge, Asked] | None,
    k: int,
    advance: Advance,
) -> list[Answered]:
    """Has ``model`` answer all questions, each from ``k`` recalled turns, and the judge grade them; closes the system.

    If a model fails, the run goes on: the question's result says so, and the next run asks again.
    """
    answers: list[Answered] = []
    with closing(system):
        for conversation in conversations:
            if not conversation.questions:
                continue
            recall = await system.ingest(conversation, advance)
            place = {turn.id: at for at, turn in enumerate(conversation.turns)}
            days = [turn.at for turn in conversation.turns if turn.at is not None]

            waiting: list[Awaitable[Answered]] = []
            for question in conversation.questions:  # one recall after the other, so that its time is its own
                started = perf_counter()
                hits = await recall(question.text, k)
                took = (perf_counter() - started) * 1_000
                # Agents may have saved more in the user's own store meanwhile.
                places = {place[hit.id] for hit in hits if hit.id in place}
                notes = [conversation.turns[at] for at in sorted(places)]
                outcome = Answered(conversation.id, question, len(notes), 0, took)
                waiting.append(_answer(outcome, notes, max(days, default=None), model, judging, advance))
            answers += await asyncio.gather(*waiting)
    return answers


async def _answer(
    outcome: Answered,
    turns: Sequence[ConversationTurn],
    until: datetime | None,
    model: Asked,
    judging: tuple[Judge, Asked] | None,
    advance: Advance,
) -> Answered:
    """The outcome of a question with its answer from ``turns``, and the verdict."""
    question = outcome.question
    notes = "\n".join(f"- {' '.join(dated(turn).split())}" for turn in turns)
    outcome = replace(outcome, notes_tokens=text_tokens(notes))
    day = "a day that is not known" if until is None else f"{until:%A, %d %B %Y}"
    try:
        reply = await model.reply(PROMPT.format(until=day, notes=notes or "(none)", question=question.text))
        f1 = None if question.answer is None else token_f1(reply.text, question.answer)
        outcome = replace(outcome, answer=reply, f1=f1)
        if judging is not None:
            judge, judging_model = judging
            scores: list[float] = []
            for request in judge.requests(question, reply.text):
                verdict = await judging_model.reply(request, lambda said: verdict_of(said) is not None)
                outcome = replace(outcome, verdicts=(*outcome.verdicts, verdict))
                if (score := verdict_of(verdict.text)) is None:
                    outcome = replace(outcome, failure="The judge gave no verdict")
                    break
                scores.append(score)
            else:
                outcome = replace(outcome, score=fmean(scores) if scores else None)
    except ModelError as error:
        outcome = replace(outcome, failure=str(error))
    advance()
    return outcome


def sampled(conversations: Sequence[Conversation], count: int | None) -> list[Conversation]:
    """The conversations with ``count`` of all their questions, always the same ones for the same data; None: all."""
    asked = [(conversation.id, at) for conversation in conversations for at in range(len(conversation.questions))]
    chosen = set(random.Random(_SEED).sample(asked, min(count, len(asked))) if count else asked)  # noqa: S311 - a sample is no secret
    return [
        replace(
            conversation,
            questions=tuple(q for at, q in enumerate(conversation.questions) if (conversation.id, at) in chosen),
        )
        for conversation in conversations
    ]


@dataclass(frozen=True, slots=True)
class Judge:
    """How answers are graded. ``source`` is the work that the ``rules`` follow; ``by_rubric``: point by point."""

    name: str
    source: str
    rules: str
    by_rubric: bool = False

    def requests(self, question: ConversationQuestion, answer: str) -> Iterator[str]:
        """The prompts for the judging model: one, or one for each point of the question's rubric.

        None if the data give no answer, and do not say that there is none.
        """
        if self.by_rubric and question.rubric:
            for point in question.rubric:
                yield _TASK + self.rules + _SCORE.format(question=question.text, expected=point, answer=answer)
        elif question.answer is not None:
            rules = _LONGMEMEVAL if self.by_rubric else self.rules
            yield _TASK + rules + _VERDICT.format(question=question.text, expected=question.answer, answer=answer)
        elif question.unanswerable:
            nothing = "(the conversations do not say)"
            yield _TASK + _ABSTAIN + _VERDICT.format(question=question.text, expected=nothing, answer=answer)


JUDGES: Final = {
    judge.name: judge
    for judge in (
        Judge("longmemeval", "Wu et al., LongMemEval, arXiv 2410.10813", _LONGMEMEVAL),
        Judge("mem0", "Chhikara et al., Mem0, arXiv 2504.19413: its judge of LoCoMo", _MEM0),
        Judge("beam", "Tavakoli et al., BEAM, arXiv 2510.27246: a score for each nugget", _BEAM, by_rubric=True),
    )
}
USUAL: Final = {"locomo": "mem0", "beam": "beam"}
"""The judge that published figures on a data set use; for all other data sets it is ``longmemeval``."""


def verdict_of(reply: str) -> float | None:
    """The score (0, 0.5 or 1) in the last verdict of a judge's reply; None if it gives none, or another number."""
    found = _FOUND.findall(reply)
    word = found[-1].casefold().rstrip("., ").replace(",", ".") if found else ""
    if word in _SCORES:
        return _SCORES[word]
    with suppress(ValueError):
        return score if (score := float(word)) in (0, 0.5, 1) else None
    return None


def token_f1(answer: str, expected: str) -> float:
    """Overlap of words, 0 to 1, as in SQuAD and LoCoMo, but unstemmed; case, punctuation and articles do not count."""
    given, wanted = (
        Counter(word for word in _WORD.findall(text.casefold()) if word not in _ARTICLES) for text in (answer, expected)
    )
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total()) if shared else 0.0
