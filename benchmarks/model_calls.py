"""Calls and tokens of a model per 100 messages of a conversation, at the default batch sizes.

``--data FILE`` is in LoCoMo's format and not in the repository. The first conversation's messages are captured session
by session, one speaker as the user and the other as the assistant, and processed with a scripted model: one memory for
every third message of the user. `inference-core stats` counts calls and tokens; where, as here, the model reports none,
it estimates tokens from words.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage
from report import Row, publish
from timing import scratch

from inference_core import AgentMemoryStoreService, ModelExtractor, open_store
from inference_core.cli import main as command_line
from inference_core.effects import run
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.formats import load_locomo
from inference_core.ingestion.extraction.schema import ExtractedMemories
from inference_core.ingestion.worker import Pipeline, Worker
from inference_core.outbox.messages import ConversationMessage, Role
from inference_core.outbox.outbox import Partition
from inference_core.testing import ScriptedChatModel, call_tool

_EVERY: Final = 3
_HUNDRED: Final = 100
_USER: Final = "user"
_SAID: Final = re.compile(r'<message id="(m\d+)" from="user"[^>]*>(.*?)</message>')


def answer(request: Sequence[BaseMessage]) -> AIMessage:
    """A memory for every third message of the user."""
    chosen = _SAID.findall(request[-1].text)[::_EVERY]
    entries = [
        {"content": unescape(text), "type": "facts", "topic": "life", "sources": [name], "importance": 0.5}
        for name, text in chosen
    ]
    return call_tool(ExtractedMemories.__name__, memories=entries)


def messages_of(conversation: Conversation) -> list[ConversationMessage]:
    """The turns as messages of a user and an assistant."""
    user = conversation.turns[0].speaker
    return [
        replace(turn.message(conversation.id), author=None, role=Role.USER if turn.speaker == user else Role.ASSISTANT)
        for turn in conversation.turns
    ]


def measured(conversation: Conversation) -> dict[str, Any]:
    """What `inference-core stats` says afterwards, and how many messages there were."""
    messages = messages_of(conversation)
    with scratch() as folder:
        url = f"sqlite:///{folder / 'memory.db'}"
        with open_store(url, embeddings=None) as store:
            model = ScriptedChatModel(turns=[answer], record=False)
            pipeline = Pipeline(AgentMemoryStoreService(store).scope, ModelExtractor([model]))
            for at in range(0, len(messages), 2):
                run(pipeline.outbox.put(Partition(_USER), messages[at : at + 2]))
            Worker(pipeline).drain()
        shown = StringIO()
        with redirect_stdout(shown):
            command_line(["stats", "--user", _USER, "--url", url, "--json"])
    return {"messages": len(messages), **json.loads(shown.getvalue())}


def table(found: dict[str, Any]) -> list[Row]:
    """The report's rows."""
    hundreds = found["messages"] / _HUNDRED
    rows: list[Row] = [("messages", f"{found['messages']}", "", None), ("memories", f"{found['memories']}", "", None)]
    for name, what in (
        ("model_calls", "calls of the model per 100 messages"),
        ("input_tokens", "tokens of its prompts per 100 messages"),
        ("output_tokens", "tokens of its answers per 100 messages"),
    ):
        rows.append((what, f"{found[name] / hundreds:,.1f}", "", None))
    return rows


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(prog="sh scripts/bench model_calls", description=__doc__)
    command.add_argument("--data", type=Path, required=True, help="a file in LoCoMo's format")
    found = measured(load_locomo(command.parse_args().data)[0])
    return int(not publish("model_calls", table(found), found))


if __name__ == "__main__":
    sys.exit(main())
