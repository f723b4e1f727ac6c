"""The examples' chat model: the configured one, or a script in its place, so that they run without a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from inference_core import AgentSettings
from inference_core.testing import ScriptedChatModel

_MEMORY = re.compile(r"^(?:  - \[[^]]*\]|- \d\S+) (.*?)(?: \(type: \w+\))?(?: \[\w+: .*)?$", re.MULTILINE)


def chat_model(turns: Sequence[Any]) -> Any:
    """The model that AGENT_MODEL names (``provider:model``); without one, a script of ``turns``."""
    name = AgentSettings().model
    if name is None:
        return ScriptedChatModel(turns=turns)
    from langchain.chat_models import init_chat_model  # noqa: PLC0415 - slow, and only for a real model

    return init_chat_model(name)


def announce() -> None:
    """Says who replies."""
    name = AgentSettings().model
    print(f"Model: {name}" if name else "Model: none (AGENT_MODEL). A script replies; the memory is real.")


def what_i_know(messages: Sequence[BaseMessage]) -> str:
    """A reply for scripts: the memories that stand in the prompt, so that it shows what the model was given."""
    return "I know: " + ("; ".join(_MEMORY.findall(prompt_of(messages))) or "nothing yet")


def prompt_of(messages: Sequence[BaseMessage]) -> str:
    """The text of system and user that the model was given: memory stands behind either."""
    return "\n".join(message.text for message in messages if isinstance(message, SystemMessage | HumanMessage))
