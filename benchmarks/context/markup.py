"""What the middleware's prompt costs besides the contents of memories, in each form, for the same questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

from inference_core.agents.middleware.memory import DEFAULT_ENGINEER
from inference_core.context.items import ContextItem
from inference_core.context.render import COMPACT, XML, delimited, delimited_profile, fields_of
from inference_core.effects import run
from inference_core.evaluation.conversations import Conversation
from inference_core.memory.text import text_tokens
from inference_core.services.operations.prompt_context import TurnContext, TurnOptions, build_turn_context
from inference_core.stores.factory import open_store

from .noise import remembering

FORMS: Final = (XML, COMPACT)
"""The form before and after; the middleware's default is the second."""


def counters() -> dict[str, Callable[[str], int]]:
    """The package's own counter, and cl100k's if tiktoken and its file are on this machine."""
    found: dict[str, Callable[[str], int]] = {"ours": text_tokens}
    try:
        import tiktoken  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

        encoding: Any = tiktoken.get_encoding("cl100k_base")
    except (ImportError, OSError):
        return found

    def cl100k(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return found | {"cl100k": cl100k}


def markup_figures(users: Sequence[Conversation], embeddings: str | None) -> dict[str, dict[str, float]]:
    """By counter, for a prompt on average: tokens of markup in each of `FORMS`, their ``share``, and of contents.

    Markup is all of profile and block, with the elements around them, that is not the content of a memory.
    """
    counts = counters()
    sums = {name: dict.fromkeys((*FORMS, "contents", "lines"), 0.0) for name in counts}
    asked = 0
    for user in users:
        with closing(open_store("memory://", embeddings=embeddings)) as store:
            service, _ = remembering(store, user.id, user.turns)
            for question in user.questions:
                asked += 1
                for form in FORMS:
                    options = TurnOptions(engineer=DEFAULT_ENGINEER, form=form)
                    turn = run(build_turn_context(service.scope, user.id, question.text, options))
                    markup, contents = divided(turn)
                    for name, count in counts.items():
                        sums[name][form] += count(markup)
                        if form == FORMS[-1]:
                            sums[name]["contents"] += sum(map(count, contents))
                            sums[name]["lines"] += len(contents)
    means = {name: {what: total / max(asked, 1) for what, total in one.items()} for name, one in sums.items()}
    first, last = FORMS
    return {name: {**one, "share": one[last] / max(one[first], 1), "asked": asked} for name, one in means.items()}


def divided(turn: TurnContext) -> tuple[str, list[str]]:
    """What a request gets of memory in this turn without the contents, and these, as they stand in it."""
    records = {record.id: record for record in turn.records}
    standing = (ContextItem.of(records[line.id], source="") for line in turn.profile.lines)
    contents = [fields_of(item, turn.zone)["text"] for item in (*standing, *turn.context.items)]
    markup = f"{delimited_profile(turn.profile.text)}{delimited(turn.block)}" if turn.block else ""
    for content in contents:
        assert content in markup, content
        markup = markup.replace(content, "", 1)
    return markup, contents
