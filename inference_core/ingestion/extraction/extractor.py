"""ModelExtractor: a chat model extracts memories from messages, and each one is validated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from string import Template
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from pydantic import ValidationError

from inference_core.asking import MODEL_TIMEOUT_S
from inference_core.clock import in_zone
from inference_core.context.render import neutral_line
from inference_core.effects import Operation
from inference_core.errors import ConfigurationError, ModelError
from inference_core.ingestion.consolidation import judged
from inference_core.ingestion.extraction.schema import (
    EXTRACTED_TYPES,
    MAX_CONTENT,
    MAX_LABEL,
    MAX_MEMORIES,
    Entry,
    ExtractedMemories,
    ExtractedMemory,
    quoted,
)
from inference_core.ingestion.extraction.structured import CUT_OFF, PROMPTS, Asking, answer_of, shown, structured
from inference_core.memory.trust import Origin
from inference_core.memory.types import GUIDING_TYPES, IDEA, MemoryTypeDescription
from inference_core.outbox.candidates import Action, Candidate, Extraction, KnownMemory
from inference_core.outbox.messages import ConversationMessage, Role, any_outside, traced
from inference_core.outbox.said import Said, holds

DEFAULT_MAX_MEMORIES: Final = 30
_MESSAGE_NAME: Final = re.compile(r"[\[<]?(?:(?:m|msg|message)[ _#-]*)?([0-9]{1,6})[\]>]?", re.IGNORECASE | re.ASCII)
EXTRACTION_PROMPT: Final = PROMPTS["extraction"]["prompt"]
"""What is worth remembering, and how to word it. Rules and the form of the answer are appended."""
_IDEAS: Final = (
    "What the user plays with and has not decided on; it is open until it is taken up or given up.\n"
    "Examples: a podcast about bees; painting the hall green."
)
_DESCRIPTIONS: Final = {kind.value: MemoryTypeDescription[kind.name].value for kind in EXTRACTED_TYPES} | {IDEA: _IDEAS}
_TYPES: Final = "\n".join(f"- {name}: {description}" for name, description in _DESCRIPTIONS.items())
MAX_MESSAGE: Final = 60_000
"""Characters of a message that the model is shown."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages and known memories by the names that the model sees, and the user's time and time zone.

    ``earlier`` messages of the session have no names, so that nothing is extracted from them.
    """

    messages: Mapping[str, ConversationMessage]
    offered: Mapping[str, KnownMemory]
    now: datetime
    zone: tzinfo
    earlier: Sequence[ConversationMessage] = ()

    @classmethod
    def of(
        cls,
        messages: Sequence[ConversationMessage],
        offered: Sequence[KnownMemory],
        now: datetime,
        zone: tzinfo,
        earlier: Sequence[ConversationMessage] = (),
    ) -> Batch:
        """A batch of these messages, without those that have no text."""
        told = list(traced([*earlier, *messages]))
        before, said = (
            [message for message in part if message.text.strip()]
            for part in (told[: len(earlier)], told[len(earlier) :])
        )
        return cls(
            {f"m{number}": message for number, message in enumerate(said, 1)},
            {one.name.casefold(): one for one in offered},
            now,
            zone,
            before,
        )

    def named(self, names: Sequence[str], problems: list[str]) -> list[ConversationMessage]:
        """The messages that ``names`` such as m2, 2 or "message 2" refer to; adds unknown names to ``problems``."""
        found: dict[str, ConversationMessage] = {}
        for given in names:
            number = _MESSAGE_NAME.fullmatch(given)
            name = f"m{int(number[1])}" if number else given
            if name in self.messages:
                found[name] = self.messages[name]
            else:
                problems.append(f"names a message that is not there: {quoted(given)}")
        return list(found.values())

    @property
    def has_outside(self) -> bool:
        """Whether the model is shown text from outside, or what was said after it."""
        is_offered = any(one.is_external for one in self.offered.values())
        return is_offered or any_outside(self.earlier) or any_outside(self.messages.values())

    def said(self, sources: Sequence[ConversationMessage]) -> Said:
        """What the user said in ``sources``, which are messages of the batch."""
        messages = [*self.earlier, *self.messages.values()]
        return Said(messages, has_outside=self.has_outside, sources=sources)

    @property
    def problems(self) -> list[str]:
        """Names the messages that are cut, because they are too long to be shown in full."""
        return [f"{name} was cut" for name, message in self.messages.items() if len(message.text) > MAX_MESSAGE]


def request_for(batch: Batch, prompt: str, most: int) -> list[BaseMessage]:
    """The request for at most ``most`` memories; ``prompt`` says what is worth remembering."""
    rules = Template(PROMPTS["extraction"]["rules"]).substitute(types=_TYPES, most=most)
    if batch.has_outside:
        rules = f"{PROMPTS['extraction']['outside']}\n\n{rules}"
    known = [
        f'  <memory name="{short(one.name)}">{neutral_line(one.content, MAX_CONTENT)}</memory>'
        for one in batch.offered.values()
    ]
    lines = [
        f"<now>{stamp(batch.now, batch.zone)}</now>",
        *(["<known_memories>", *known, "</known_memories>"] if known else []),
    ]

    def line(message: ConversationMessage, name: str = "") -> str:
        at = f' at="{stamp(message.at, batch.zone)}"' if message.at else ""
        text = neutral_line(message.text, MAX_MESSAGE)
        return f"  <message{name} {speaker(message.role, message.author)}{at}>{text}</message>"

    if batch.earlier:
        lines += ["<earlier>", *map(line, batch.earlier), "</earlier>"]
    lines += ["<conversation>", *(line(message, f' id="{name}"') for name, message in batch.messages.items())]
    return [SystemMessage(f"{prompt}\n\n{rules}"), HumanMessage("\n".join([*lines, "</conversation>"]))]


def speaker(role: Role, author: str | None) -> str:
    """The attributes that tell a model who speaks: the user, another person by name, the assistant or a tool."""
    who = "other" if role is Role.USER and author else role.value
    return f'from="{who}" name="{short(author)}"' if author else f'from="{who}"'


def short(text: str) -> str:
    """``text`` escaped for an attribute."""
    return neutral_line(text, MAX_LABEL).replace('"', "&quot;")


def stamp(moment: datetime, zone: tzinfo) -> str:
    """``moment`` in ``zone``, to the minute, with the day of the week."""
    local = in_zone(moment, zone)
    return f"{local:%A} {local.isoformat(timespec='minutes')}"


class ModelExtractor:
    """Extracts memories with the first of ``models`` that gives a usable answer.

    Models answer with structured output: `ExtractedMemories` is their only tool. ``prompt`` says what is worth
    remembering. ``timeout`` limits each call, in seconds, and ``max_memories`` (at most MAX_MEMORIES) the memories
    taken from one batch. Raises ConfigurationError for invalid arguments.
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
        self,
        messages: Sequence[ConversationMessage],
        offered: Sequence[KnownMemory],
        now: datetime,
        zone: tzinfo = UTC,
        *,
        earlier: Sequence[ConversationMessage] = (),
    ) -> Operation[Extraction]:
        """The memories that ``messages`` suggest. ``offered`` are those that may be reinforced or superseded.

        All messages go in one call. The first answer that is unusable or was cut off is sent back once for repair;
        after that, and when a model fails, the next model is asked. If there is a single message and no answer about it
        is complete, the complete memories of the fullest one are used. ``now`` and ``zone`` are the user's time.
        ``earlier`` messages of the session tell what these are about, and give no memories. Raises ModelError if no
        model gave a usable answer; an empty list is usable.
        """
        batch = Batch.of(messages, offered, now, zone, earlier)
        if not batch.messages:
            return Extraction(())
        asking = Asking(self._models, self.timeout, PROMPTS["extraction"]["repair"])
        request = request_for(batch, self.prompt, self.max_memories)
        refused: list[ParsedAnswer] = []

        def read(answer: Any) -> tuple[ParsedAnswer, str]:
            reading, problem = read_answer(batch, self.max_memories, answer)
            if problem:
                refused.append(reading)
            return reading, problem

        try:
            reading = yield from asking.answered(request, read, "memories")
        except ModelError:
            reading = max(refused, key=lambda one: one.understood, default=ParsedAnswer())
            # Several messages are then tried one by one, for which a shorter answer will do. Nor is an incomplete
            # answer used if the model failed at the repair: it may give a complete one later.
            if not reading.understood or len(refused) < 2 or len(batch.messages) > 1:  # noqa: PLR2004 - answer, repair
                raise
        asking.problems += reading.problems
        return asking.extraction(reading.candidates, batch.problems)


@dataclass(slots=True)
class ParsedAnswer:
    """The candidates of an answer. ``understood`` counts the memories that have a text, refused ones included."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    problems: list[str] = field(default_factory=list[str])
    understood: int = 0


def read_answer(batch: Batch, most: int, answer: Any) -> tuple[ParsedAnswer, str]:
    """The candidates of an answer, and the problem if it is unusable or was cut off, else ""."""
    said = answer_of(answer)
    reading = read_candidates(said.entries, batch, most)
    reading.problems[:0] = said.problems
    if reading.understood and said.is_cut:
        return reading, CUT_OFF
    if reading.understood or (said.is_empty and not said.entries and not said.problems):
        return reading, ""
    return reading, "; ".join(shown(reading.problems[:3])) or "it holds no list of memories"


def read_candidates(entries: Iterable[Entry], batch: Batch, most: int) -> ParsedAnswer:
    """The first ``most`` distinct candidates in ``entries``. Skips invalid entries and notes why. Never raises."""
    reading = ParsedAnswer()
    seen: set[str] = set()
    left_out = 0
    for number, entry in enumerate(entries, 1):
        if len(reading.candidates) >= most:
            left_out += 1
            continue
        problems: list[str] = []
        try:
            memory = ExtractedMemory.model_validate(entry, context=problems)
        except ValidationError as error:
            problems.append(str(error.errors()[0].get("ctx", {}).get("error", "has no content")))
        else:
            reading.understood += 1
            candidate = _candidate(memory, batch, problems)
            if candidate is not None and (key := candidate.content.casefold()) not in seen:
                reading.candidates.append(candidate)
                seen.add(key)
        reading.problems += [f"memory {number} {problem}" for problem in problems]
    if left_out:
        reading.problems.append(f"{left_out} memories beyond the first {most} were left out")
    return reading


def _candidate(memory: ExtractedMemory, batch: Batch, problems: list[str]) -> Candidate | None:
    """``memory`` as a candidate, or None if it is refused; adds to ``problems`` what cannot be used of it.

    The model may have obeyed an injected text, so the candidate is `judged`. Only what the user said may guide the
    agent or change known memories.
    """
    sources = batch.named(memory.sources, problems)
    told = sources or list(batch.messages.values())
    by_user = [message.role is Role.USER and message.author is None for message in told]
    is_named = any(by_user) if sources else all(by_user)
    if memory.type.value in GUIDING_TYPES and not is_named:
        problems.append(f"was left out: {memory.type.value} without a word of the user")
        return None
    message_ids = tuple(dict.fromkeys(message.id for message in sources if message.id is not None))
    found = Candidate(content=memory.content, memory_type=memory.type, message_ids=message_ids)
    found = judged(found, batch.said(told))
    is_external = found.origin is not Origin.AGENT
    action, target = _effect(memory, batch, problems, is_stated=is_named and not is_external)
    if action is None:
        return None
    keeps_all = is_external or not batch.has_outside

    def is_kept(label: str) -> bool:
        """Whether ``label`` may stay: what others say must not describe what the user said."""
        return keeps_all or holds(found.content, label)

    entities, relations = memory.graph(is_kept)
    said_at = next((message.at for message in told if message.at), batch.now)
    start, end = memory.validity(said_at, batch.zone, problems)
    return replace(
        found,
        topic=memory.topic if memory.topic and is_kept(memory.topic) else None,
        tags=tuple(tag for tag in memory.tags if tag == IDEA or is_kept(tag)),
        importance=memory.importance,
        valid_from=start,
        valid_to=end,
        state=memory.state,
        entities=entities,
        relations=relations,
        action=action,
        target=target,
    )


def _effect(
    memory: ExtractedMemory, batch: Batch, problems: list[str], *, is_stated: bool
) -> tuple[Action | None, str | None]:
    """The action and the id of its target; no action if the memory is refused."""
    action = Action(memory.action) if memory.action else None
    if action is None:
        problems.append("asks for what is not done, such as to delete")
    if action is None or action is Action.ADD:
        return action, None
    given = (memory.target or "").strip("[]<>\"' ")
    offered = batch.offered.get(given.casefold())
    if offered is None:
        problems.append(f"is added, since it would {action.value} {quoted(given)}, which was not offered")
        return Action.ADD, None
    if is_stated:
        return action, offered.memory_id
    if action is Action.REINFORCE:
        problems.append(f"would reinforce {given} without a word of the user")
        return None, None
    problems.append(f"is added, since it would supersede {given} without a word of the user")
    return Action.ADD, None
