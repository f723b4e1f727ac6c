"""Reads chats in BEAM's format (Tavakoli et al., "Beyond a Million Tokens", arXiv 2510.27246).

A split is a folder of numbered folders, each with ``chat.json`` (batches of user and assistant messages with ids) and
``probing_questions.json`` (questions by ability, with the ids of their messages in ``source_chat_ids``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from inference_core.errors import InvalidInput
from inference_core.evaluation.conversations import (
    Conversation,
    ConversationTurn,
    Question,
    conversation_of,
    parse_json,
)
from inference_core.memory.trust import Origin

_CHAT: Final = "a BEAM chat, a list of batches with 'turns' of messages that have 'id', 'role' and 'content'"
_QUESTIONS: Final = "a file of BEAM questions, an object of lists by ability, each entry with a 'question'"
_MARKER: Final = re.compile(r"\s*->->[^\n>]*\Z")
_DAYS: Final = ("%B-%d-%Y", "%b-%d-%Y", "%B %d, %Y", "%Y-%m-%d")


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
        raise InvalidInput(f"{root} holds no BEAM chats; give the folder of the numbered folders, or the one above")
    return [_chat(chat, with_questions=with_questions) for chat in chats]


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []


def _numbered(path: Path) -> list[Path]:
    return sorted((folder for folder in _folders(path) if folder.name.isdecimal()), key=lambda chat: int(chat.name))


def _chat(folder: Path, *, with_questions: bool) -> Conversation:
    turns = parse_json(folder / "chat.json", _CHAT, lambda batches: tuple(_messages(batches)))
    questions: list[Question] = []
    if with_questions:
        questions = parse_json(
            folder / "probing_questions.json",
            _QUESTIONS,
            lambda data: [_question(entry, ability) for ability, found in data.items() for entry in found],
        )
    return conversation_of(f"{folder.parent.name}-{folder.name}", turns, questions)


def _question(entry: Mapping[str, Any], ability: str) -> Question:
    sources: Any = entry.get("source_chat_ids")
    named = tuple(_ids(sources))
    superseded: Iterable[str] = ()
    if isinstance(sources, dict):
        given = cast("dict[str, Any]", sources)
        newer = set(_ids(given.get("updated_info")))
        superseded = (name for name in _ids(given.get("original_info")) if name not in newer)
    answer = entry.get("answer", entry.get("ideal_answer"))
    text, answered = str(entry["question"]), None if answer is None else str(answer)
    return Question(text, answered, ability, named, bool(named), superseded=tuple(superseded))


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
