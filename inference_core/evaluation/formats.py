"""Reads the data sets: LoCoMo, BEAM, and short saved memories; and the user's own memories with questions about them.

- LoCoMo (Maharana et al., arXiv 2402.17753): a list of samples; a sample has sessions of turns with a ``dia_id``, and
  questions with the ids of the turns that answer them.
- BEAM (Tavakoli et al., "Beyond a Million Tokens", arXiv 2510.27246): a split is a folder of numbered folders, each
  with ``chat.json`` (batches of user and assistant messages with ids) and ``probing_questions.json`` (questions by
  ability, with the ids of their messages in ``source_chat_ids``).
- atomic: an object with ``users``; a user has ``user_id``, ``memories`` (``id``, ``content``, ``memory_type``,
  ``created_at``, ``source``) and ``queries`` (``query``, ``relevant``: ids, none if nothing is relevant, ``answer``,
  ``kind``, ``harmful`` and ``useless``: ids).

Malformed evidence is read leniently; ids that cannot be resolved are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final, cast

from inference_core.clock import aware
from inference_core.errors import InvalidInput, cannot_read
from inference_core.evaluation import DATASETS
from inference_core.evaluation.conversations import (
    Conversation,
    ConversationQuestion,
    ConversationTurn,
    conversation_of,
    parse_json,
)
from inference_core.ingestion.formats.transcripts import read_conversations
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.memory.types import MemoryCategory, MemoryType, get_category_for_type, validate_memory_type
from inference_core.outbox.messages import Role, Transcript, author_of, traced
from inference_core.services.agent_memory_service import AgentMemoryStoreService

_FORM: Final = '{"query": "…", "relevant": ["an id, or a distinct part of the content"], "kind": "…"}'
_SHOWN: Final = 60
ADVERSARIAL: Final = "5"
"""LoCoMo's category of questions that attribute something to the wrong speaker; not part of the headline figure."""
_ATOMIC: Final = "a file of saved memories, an object with 'users', each with 'user_id', 'memories' and 'queries'"
_BEAM_CHAT: Final = "a BEAM chat, a list of batches with 'turns' of messages that have 'id', 'role' and 'content'"
_BEAM_QUESTIONS: Final = "a file of BEAM questions, an object of lists by ability, each entry with a 'question'"
_LOCOMO: Final = "in LoCoMo's format, a list of samples with 'sample_id', 'conversation' and 'qa'"
_HALVES: Final = ("all", "first-half", "second-half")
_ABSTENTION: Final = "abstention"
_BEAM_ANSWERS: Final = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
_MARKER: Final = re.compile(r"\s*->->[^\n>]*\Z")
_DAYS: Final = ("%B-%d-%Y", "%b-%d-%Y", "%B %d, %Y", "%Y-%m-%d")
_SESSION: Final = re.compile(r"session_(\d+)\Z")
_DIALOGUE_ID: Final = re.compile(r"D(\d+):(\d+)")
_SPOKEN_AT: Final = "%I:%M %p on %d %B, %Y"
_AGENTS: Final = frozenset({"assistant", "agent", "ai", "bot"})


def load_dataset(name: str, path: Path, split: str = "all", limit: int | None = None) -> list[Conversation]:
    """The conversations of a data set, at most ``limit`` of the ``split``: all, first-half or second-half.

    The halves keep the order of the conversations; of an odd number, the first half gets one more. Any other split is
    the name of a folder of BEAM. Raises InvalidInput for an unknown name or split, or if no question can be read.
    """
    if name not in DATASETS:
        raise InvalidInput(f"Unknown data set {name!r}; known: {', '.join(DATASETS)}")
    if split not in _HALVES and name != "beam":
        raise InvalidInput(f"Unknown split {split!r} of {name}; known: {', '.join(_HALVES)}")
    if name == "beam":
        conversations = load_beam(path, None if split in _HALVES else split)
    else:
        conversations = load_locomo(path) if name == "locomo" else load_atomic(path)
    middle = (len(conversations) + 1) // 2
    halves = {"first-half": slice(middle), "second-half": slice(middle, None)}
    chosen = conversations[halves.get(split, slice(None))][:limit]
    if not any(conversation.questions for conversation in chosen):
        raise InvalidInput(f"The split {split!r} of {path} contains no questions; choose another split or file")
    return chosen


def load_transcript(
    name: str,
    place: str | Path,
    *,
    user_id: str = "",
    me: Iterable[str] = (),
    threads: Iterable[str] = (),
    zone: tzinfo = UTC,
    strict: bool = False,
) -> Transcript:
    """The messages of a file in any of FORMATS; of the data sets, those of all conversations in it.

    The other arguments are those of `read_conversations`. Raises InvalidInput for an unknown name or if it cannot be
    read.
    """
    own = (user_id, *me)
    if name not in ("locomo", "beam"):
        return read_conversations(name, place, user_id=user_id, me=own, threads=threads, zone=zone, strict=strict)
    path = Path(place)
    conversations = load_locomo(path) if name == "locomo" else load_beam(path.resolve(), with_questions=False)
    said = (turn.message(conversation.id) for conversation in conversations for turn in conversation.turns)
    messages = list(traced(replace(message, author=author_of(message.author, *own)) for message in said))
    return Transcript(messages, len(messages))


def load_atomic(path: Path) -> list[Conversation]:
    """Each user's memories as a conversation without sessions. Raises InvalidInput if the file has another format."""

    def read(data: Mapping[str, Any]) -> Iterator[Conversation]:
        for user in data["users"]:
            turns: list[ConversationTurn] = []
            for memory in user["memories"]:
                created_at, kind = memory.get("created_at"), validate_memory_type(memory["memory_type"])
                at = None if created_at is None else aware(datetime.fromisoformat(created_at))
                name, text = str(memory["id"]), str(memory["content"])
                source = MemorySource.from_value(memory.get("source") or {})
                if source.trust is Trust.EXTERNAL and get_category_for_type(kind) is MemoryCategory.PROCEDURAL:
                    kind = MemoryType.FACTS.value  # such a text can only be saved as a fact
                turns.append(ConversationTurn(name, None, at, None, text, source.origin, kind))
            questions: list[ConversationQuestion] = []
            for query in user["queries"]:
                relevant = tuple(map(str, query["relevant"]))
                kind = str(query.get("kind", "unclassified"))
                answer = query.get("answer")
                questions.append(
                    ConversationQuestion(
                        text=str(query["query"]),
                        answer=None if answer is None else str(answer),
                        category=kind,
                        evidence=relevant,
                        names_evidence=bool(relevant),
                        unanswerable=answer is None and not relevant,
                        harmful=tuple(map(str, query.get("harmful", ()))),
                        useless=tuple(map(str, query.get("useless", ()))),
                    )
                )
            yield conversation_of(str(user["user_id"]), turns, questions)

    return parse_json(path, _ATOMIC, lambda data: list(read(data)))


def load_beam(path: Path, split: str | None = None, *, with_questions: bool = True) -> list[Conversation]:
    """The chats below ``path``: numbered folders, or folders of such; ``split`` names one of the latter.

    ``path`` may also be the folder of one chat. Raises InvalidInput if there are none, or a file in them cannot be read
    or is not in BEAM's format.
    """
    if split is None and (path / "chat.json").is_file():
        return [_chat(path, with_questions=with_questions)]
    root = path if split is None or path.name == split else path / split
    chats = _numbered(root) or [chat for folder in _folders(root) for chat in _numbered(folder)]
    if not chats:
        raise InvalidInput(f"{root} contains no BEAM chats; give the folder of the numbered folders, or the one above")
    return [_chat(chat, with_questions=with_questions) for chat in chats]


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []


def _numbered(path: Path) -> list[Path]:
    return sorted((folder for folder in _folders(path) if folder.name.isdecimal()), key=lambda chat: int(chat.name))


def _chat(folder: Path, *, with_questions: bool) -> Conversation:
    turns = parse_json(folder / "chat.json", _BEAM_CHAT, lambda batches: tuple(_messages(batches)))

    def asked(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[ConversationQuestion]:
        for ability, entry in ((ability, entry) for ability, found in data.items() for entry in found):
            sources: Any = entry.get("source_chat_ids")
            named = tuple(_ids(sources))
            superseded: Iterable[str] = ()
            if isinstance(sources, dict):
                given = cast("dict[str, Any]", sources)
                newer = set(_ids(given.get("updated_info")))
                superseded = (name for name in _ids(given.get("original_info")) if name not in newer)
            answer = next((str(entry[name]) for name in _BEAM_ANSWERS if entry.get(name) is not None), None)
            rubric = tuple(map(str, entry.get("rubric") or ()))
            yield ConversationQuestion(
                text=str(entry["question"]),
                answer=answer,
                category=ability,
                evidence=named,
                names_evidence=bool(named),
                superseded=tuple(superseded),
                rubric=rubric,
                unanswerable=ability == _ABSTENTION,  # its ideal answer says that nobody said so
            )

    questions: list[ConversationQuestion] = []
    if with_questions:
        questions = parse_json(folder / "probing_questions.json", _BEAM_QUESTIONS, lambda data: list(asked(data)))
    return conversation_of(f"{folder.parent.name}-{folder.name}", turns, questions)


def _ids(evidence: Any) -> Iterator[str]:
    """The message ids in ``evidence``, which may be a list, or an object of lists, of any depth."""
    if isinstance(evidence, int | str):
        yield str(evidence)
    elif evidence is not None:
        parts: Iterable[Any] = cast("dict[str, Any]", evidence).values() if isinstance(evidence, dict) else evidence
        for part in parts:
            yield from _ids(part)


def _messages(batches: Sequence[Mapping[str, Any]]) -> Iterator[ConversationTurn]:
    """The messages; a time anchor holds until the next one."""
    at: datetime | None = None
    for number, batch in enumerate(batches, 1):
        at = _day(batch.get("time_anchor")) or at
        session = f"batch-{batch.get('batch_number', number)}"
        for turn in batch["turns"]:
            for message in cast("list[Mapping[str, Any]]", turn if isinstance(turn, list) else [turn]):
                at = _day(message.get("time_anchor")) or at
                is_user = message["role"] == "user"
                text = _MARKER.sub("", message["content"]) if is_user else message["content"]
                if text.strip():
                    origin = Origin.USER if is_user else Origin.AGENT
                    yield ConversationTurn(str(message["id"]), session, at, None, text, origin)


def _day(anchor: Any) -> datetime | None:
    """The day of a time anchor such as ``March-15-2024``; None if it names none."""
    for form in _DAYS if isinstance(anchor, str) else ():
        try:
            return datetime.strptime(anchor.strip(), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def load_locomo(path: Path) -> list[Conversation]:
    """The samples of a file, or a single one. Raises InvalidInput if it cannot be read or has another format."""

    def read(data: Any) -> Iterator[Conversation]:
        samples: list[Mapping[str, Any]] = [data] if isinstance(data, dict) else data
        for sample in samples:
            questions: list[ConversationQuestion] = []
            unreadable = 0
            for entry in sample.get("qa", []):
                items: list[Any] = entry.get("evidence") or []
                named: list[list[tuple[str, str]]] = [_DIALOGUE_ID.findall(str(item)) for item in items]
                unreadable += sum(not ids for ids in named)
                answer, category = entry.get("answer"), entry.get("category")
                questions.append(
                    ConversationQuestion(
                        text=str(entry["question"]),
                        answer=None if answer is None else str(answer),
                        category="uncategorized" if category is None else str(category),
                        evidence=tuple(f"D{int(session)}:{int(turn)}" for ids in named for session, turn in ids),
                        names_evidence=bool(named),
                        in_overall=str(category) != ADVERSARIAL,
                        unanswerable=answer is None and (str(category) == ADVERSARIAL or not named),
                    )
                )
            sample_id, said, turns = str(sample["sample_id"]), sample["conversation"], list[ConversationTurn]()
            for number, name in sorted((int(match[1]), name) for name in said if (match := _SESSION.match(name))):
                at = datetime.strptime(said[f"session_{number}_date_time"].strip(), _SPOKEN_AT).replace(tzinfo=UTC)
                for turn in said[name]:
                    caption = f" [shares a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
                    origin = Origin.AGENT if turn["speaker"].casefold() in _AGENTS else Origin.USER
                    turns.append(
                        ConversationTurn(str(turn["dia_id"]), name, at, turn["speaker"], turn["text"] + caption, origin)
                    )
            yield conversation_of(sample_id, turns, questions, unreadable)

    return parse_json(path, _LOCOMO, lambda data: list(read(data)))


def questions_about(service: AgentMemoryStoreService, user: str, path: Path) -> Conversation:
    """The user's memories as a conversation, with the questions in ``path``, one JSON object per line.

    Raises InvalidInput, naming the line, for anything else there, and for evidence that is in no memory or in several.
    """
    memories, _ = service.sync.list_memories(user, limit=None)
    if not memories:
        raise InvalidInput(f"{user!r} has no memories in this store; name another --user or --url")
    turns: list[ConversationTurn] = []
    for memory in memories:
        value = memory.value
        happened = value.get("valid_from")
        origin = MemorySource.from_value(value.get("source") or {}).origin
        turns.append(
            ConversationTurn(
                id=memory.id,
                session=value.get("session_id"),
                at=datetime.fromisoformat(happened) if happened else memory.created_at,
                speaker=None,
                text=memory.content,
                # The store has accepted these memories once: with this origin, another system accepts them too.
                origin=Origin.AGENT if origin is Origin.AGENT else Origin.APPLICATION,
                memory_type=str(value["memory_type"]),
            )
        )
    return conversation_of(user, reversed(turns), _questions(path, turns))


def conversations_with(name: str, place: Path, path: Path, zone: tzinfo = UTC) -> list[Conversation]:
    """All messages in ``place``, in any of FORMATS, as one conversation, with the questions in ``path``.

    Raises InvalidInput as `load_transcript` and `questions_about` do.
    """
    said = load_transcript(name, place, zone=zone, strict=True).messages
    # Whoever is named is a speaker of the conversation, whose words the questions are about.
    speakers = {Role.USER: Origin.USER, Role.ASSISTANT: Origin.AGENT}
    turns = [
        ConversationTurn(
            id=str(at),
            session=message.session_id,
            at=message.at,
            speaker=message.author or message.role.value,
            text=message.text,
            origin=speakers[message.role] if message.author else message.origin,
        )
        for at, message in enumerate(said, 1)
        if message.role is not Role.TOOL and message.text.strip()
    ]
    if not turns:
        raise InvalidInput(f"{place} contains no messages with text")
    return [conversation_of(place.stem, turns, _questions(path, turns))]


def _questions(path: Path, turns: Sequence[ConversationTurn]) -> list[ConversationQuestion]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, error) from error
    questions: list[ConversationQuestion] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path}, line {number} is not JSON ({error}); write {_FORM}") from error
        where = f"{path}, line {number}"
        fields: dict[str, Any] = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        query, kind, answer = fields.get("query"), fields.get("kind", "unclassified"), fields.get("answer")
        relevant = fields.get("relevant", None if answer is None else [])
        parts = cast("list[Any]", relevant) if isinstance(relevant, list) else [None]
        texts = [part for part in (query, kind, *parts) if isinstance(part, str) and part.strip()]
        if len(texts) < len(parts) + 2 or not isinstance(answer, str | None):
            raise InvalidInput(f"{where} is not a question; write {_FORM}, with an empty list if no memory answers it")
        evidence = tuple(_id_of(where, part, turns) for part in map(str, parts))
        is_open = answer is None and not evidence
        questions.append(
            ConversationQuestion(
                str(query), answer, str(kind), evidence, names_evidence=bool(evidence), unanswerable=is_open
            )
        )
    if not questions:
        raise InvalidInput(f"{path} contains no questions; write one per line: {_FORM}")
    return questions


def _id_of(where: str, part: str, turns: Sequence[ConversationTurn]) -> str:
    """The id of the turn that ``part`` means: by its id, or by text that no other turn contains."""
    if any(turn.id == part for turn in turns):
        return part
    wanted = _plain(part)
    found = [turn for turn in turns if wanted in _plain(turn.text)]
    if len(found) == 1:
        return found[0].id
    if not found:
        raise InvalidInput(f"{where}: no memory has the id or contains the text {part!r:.{_SHOWN}}")
    ids = ", ".join(turn.id for turn in found[:3])
    raise InvalidInput(
        f"{where}: {len(found)} memories contain {part!r:.{_SHOWN}}; write more of the text, or an id ({ids})"
    )


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
