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
from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question, parse_json, resolved
from inference_core.memory.trust import Origin

_CHAT: Final = "a BEAM chat, a list of batches with 'turns' of messages that have 'id', 'role' and 'content'"
_QUESTIONS: Final = "a file of BEAM questions, an object of lists by ability, each entry with a 'question'"
_MARKER: Final = re.compile(r"\s*->->[^\n>]*\Z")
_TIMES: Final = ("%B-%d-%Y", "%b-%d-%Y", "%B %d, %Y", "%Y-%m-%d")


def load_beam(path: Path, split: str | None = None, *, with_questions: bool = True) -> list[Conversation]:
    """The chats below ``path``: numbered folders, or folders of such; ``split`` names one of the latter.

    ``path`` may also be the folder of one chat. Raises InvalidInput if there are none, or a file in them cannot be read
    or is not in BEAM's format.
    """
    return [_conversation(chat, with_questions=with_questions) for chat in _found(path, split)]


def _found(path: Path, split: str | None) -> list[Path]:
    """The folders of the chats."""
    if split is None and (path / "chat.json").is_file():
        return [path]
    roots = [path] if split is None or path.name == split else [path / split]
    chats = [chat for root in roots for chat in _chats(root)] or [
        chat for folder in _folders(roots[0]) for chat in _chats(folder)
    ]
    if not chats:
        raise InvalidInput(f"{roots[0]} holds no BEAM chats; give the folder of the numbered folders, or the one above")
    return chats


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []


def _chats(path: Path) -> list[Path]:
    return sorted((folder for folder in _folders(path) if folder.name.isdecimal()), key=lambda chat: int(chat.name))


def _conversation(folder: Path, *, with_questions: bool) -> Conversation:
    turns = parse_json(folder / "chat.json", _CHAT, lambda batches: tuple(_turns(batches)))
    name = f"{folder.parent.name}-{folder.name}"
    if not with_questions:
        return Conversation(name, turns, (), 0)
    read = parse_json(
        folder / "probing_questions.json",
        _QUESTIONS,
        lambda data: [_question(entry, ability, turns) for ability, found in data.items() for entry in found],
    )
    questions = tuple(question for question, _ in read)
    return Conversation(name, turns, questions, sum(lost for _, lost in read))


def _question(entry: Mapping[str, Any], ability: str, turns: Sequence[ConversationTurn]) -> tuple[Question, int]:
    """The question, and how many of its evidence ids could not be resolved."""
    named = list(_ids(entry.get("source_chat_ids")))
    usable, unknown = resolved(named, turns)
    answer = entry.get("answer", entry.get("ideal_answer"))
    text, answered = str(entry["question"]), None if answer is None else str(answer)
    return Question(text, answered, ability, usable, bool(named), superseded=_updated(entry, turns)), unknown


def _updated(entry: Mapping[str, Any], turns: Sequence[ConversationTurn]) -> tuple[str, ...]:
    """The messages whose statement others of the evidence update."""
    ids: Any = entry.get("source_chat_ids")
    if not isinstance(ids, dict):
        return ()
    given = cast("dict[str, Any]", ids)
    newer = set(_ids(given.get("updated_info")))
    return tuple(name for name in resolved(_ids(given.get("original_info")), turns)[0] if name not in newer)


def _turns(batches: Sequence[Mapping[str, Any]]) -> Iterator[ConversationTurn]:
    at: datetime | None = None
    for number, batch in enumerate(batches, 1):
        at = _moment(batch.get("time_anchor")) or at
        session = f"batch-{batch.get('batch_number', number)}"
        for message in _messages(batch["turns"]):
            at = _moment(message.get("time_anchor")) or at
            is_user = message["role"] == "user"
            text = _MARKER.sub("", message["content"]) if is_user else message["content"]
            if text.strip():
                origin = Origin.USER if is_user else Origin.AGENT
                yield ConversationTurn(str(message["id"]), session, at, None, text, origin)


def _messages(turns: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    for turn in turns:
        yield from turn if isinstance(turn, list) else [turn]


def _moment(anchor: Any) -> datetime | None:
    """The day that a time anchor such as ``March-15-2024`` names; None if it names none."""
    for form in _TIMES if isinstance(anchor, str) else ():
        try:
            return datetime.strptime(anchor.strip(), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def _ids(evidence: Any) -> Iterator[str]:
    """The message ids in ``evidence``, which may be a list, or an object of lists, of any depth."""
    if isinstance(evidence, int | str):
        yield str(evidence)
    elif evidence is not None:
        parts: Iterable[Any] = cast("dict[str, Any]", evidence).values() if isinstance(evidence, dict) else evidence
        for part in parts:
            yield from _ids(part)
