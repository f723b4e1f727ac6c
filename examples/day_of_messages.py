"""A day of messages: three users write 200 messages, a worker makes memories of them, a prompt gets its context.

    messages and answers (outbox) → worker (memories, goals, ideas, entities) → structured context

No agent is involved: the application hands over what was said and asks for the context. Runs without a key. With
AGENT_MEMORY_MODEL set, that model extracts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from html import unescape
from itertools import cycle, islice
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage

from inference_core import (
    AgentMemoryStoreService,
    ContextBuilder,
    MemorySettings,
    ModelExtractor,
    Worker,
    open_store,
)
from inference_core.agents.from_settings import make_chat_models
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

MESSAGES: Final = 200
ALICE, OFFICE = {"name": "Alice", "kind": "person"}, {"name": "Lisbon office", "kind": "place"}
TOLD: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "alice": {
        "Hi, I'm Alice, I run the Lisbon office with my colleague Rui.": {
            "content": "Alice runs the Lisbon office with her colleague Rui",
            "type": "facts",
            "entities": [ALICE, OFFICE, {"name": "Rui", "kind": "person"}],
            "relations": [{"source": "Rui", "name": "works_at", "target": "Lisbon office"}],
        },
        "We have to open the second office by June, nothing matters more.": {
            "content": "Alice wants to open a second office by June",
            "type": "goals",
            "importance": 0.9,
            "entities": [ALICE],
        },
        "And I want to learn Japanese one day.": {
            "content": "Alice wants to learn Japanese",
            "type": "goals",
            "importance": 0.4,
        },
        "What if we gave every new colleague a plant? I love the thought.": {
            "content": "Give every new colleague a plant",
            "type": "idea",
            "importance": 0.7,
        },
        "Please answer in bullet points from now on.": {
            "content": "Answer Alice in bullet points",
            "type": "preferences",
        },
    },
    "bruno": {
        "I'm allergic to peanuts, keep that in mind for the canteen.": {
            "content": "Bruno is allergic to peanuts",
            "type": "facts",
            "importance": 0.9,
        },
        "I'm training for the marathon in October.": {
            "content": "Bruno trains for the marathon in October",
            "type": "goals",
        },
    },
    "chen": {
        "My team moved from Jira to Linear last week.": {
            "content": "Chen's team moved from Jira to Linear",
            "type": "facts",
            "entities": [{"name": "Linear", "kind": "thing"}],
        },
    },
}
CHATTER: Final = (
    ("Is ticket {} done?", "Yes, ticket {} is closed."),
    ("Where is the agenda for meeting {}?", "The agenda of meeting {} is in the calendar."),
    ("Thanks, and file {}?", "File {} is in the shared folder."),
)
_SAID: Final = re.compile(r'<message id="(m\d+)" from="user"[^>]*>(.*?)</message>')


def conversations() -> Iterator[tuple[str, str, str]]:
    """User, message and answer, in turn until there are `MESSAGES` messages and answers in all."""
    told = {user: list(messages) for user, messages in TOLD.items()}
    for at, user in enumerate(islice(cycle(TOLD), MESSAGES // 2)):
        if at % 4 == 1 and told[user]:
            yield user, told[user].pop(0), "I'll keep that in mind."
        else:
            question, answer = CHATTER[at // len(TOLD) % len(CHATTER)]
            yield user, question.format(at), answer.format(at)


def picked(request: Sequence[BaseMessage]) -> AIMessage:
    """The script in place of a model: the memories that `TOLD` gives for the messages that it is shown."""
    known = {text: memory for messages in TOLD.values() for text, memory in messages.items()}
    shown = [(name, unescape(text)) for name, text in _SAID.findall(request[-1].text)]
    memories = [{**known[text], "sources": [name]} for name, text in shown if text in known]
    return call_tool("ExtractedMemories", memories=memories)


def main() -> None:
    """The day, the worker, and the context of a question in the evening."""
    name, clock = MemorySettings().model, FrozenClock()
    extractor = ModelExtractor(make_chat_models(name) if name else [ScriptedChatModel(turns=[picked], record=False)])
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        count = 0
        for user, message, answer in conversations():
            session = f"{user}, {clock.now():%d %B}"
            count += service.sync.add_messages(user, [("user", message)], session_id=session)
            clock.advance(timedelta(minutes=2))
            count += service.sync.add_completion(user, answer, session_id=session)
            clock.advance(timedelta(minutes=2))
        done = Worker.of(service, extractor).drain()
        print(f"{count} messages of {len(TOLD)} users, made memories in {done.batches} batches, {done.dead} failed")
        for user in TOLD:
            print(f"{user}: {service.sync.count_memories(user)['total']} memories")
        context = ContextBuilder(service, deadline=30).sync.build("alice", "How should I plan my week?")
        for section, items in context.sections.items():
            print(f"\n{section}")
            for item in items:
                print(f"  {item.text}")


if __name__ == "__main__":
    main()
