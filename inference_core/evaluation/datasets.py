"""The data sets by name, and their splits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inference_core.errors import InvalidInput
from inference_core.evaluation import DATASETS
from inference_core.evaluation.atomic import load_atomic
from inference_core.evaluation.beam import load_beam
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.locomo import load_locomo
from inference_core.ingestion import FORMATS
from inference_core.ingestion.messages import Transcript
from inference_core.ingestion.transcripts import read_messages

_HALVES: Final = ("all", "first-half", "second-half")


def load_dataset(name: str, path: Path, split: str = "all", limit: int | None = None) -> list[Conversation]:
    """The conversations of a data set, at most ``limit`` of the ``split``: all, first-half or second-half.

    The halves follow the order of the conversations, the first one gets the odd one; any other split is the name of a
    folder of BEAM. Raises InvalidInput for an unknown name or split, or if nothing is left or can be read.
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
        raise InvalidInput(f"The split {split!r} of {path} holds no questions; choose another split or file")
    return chosen


def load_transcript(name: str, path: Path) -> Transcript:
    """The messages of all conversations in a file of LoCoMo's format, or of the chats in a folder of BEAM.

    Raises InvalidInput for an unknown name or if it cannot be read.
    """
    if name not in FORMATS:
        raise InvalidInput(f"Unknown format {name!r}; known: {', '.join(FORMATS)}")
    if name == "messages":
        return read_messages(path)
    conversations = load_locomo(path) if name == "locomo" else load_beam(path.resolve(), with_questions=False)
    messages = [turn.message(conversation.id) for conversation in conversations for turn in conversation.turns]
    return Transcript(messages, len(messages))
