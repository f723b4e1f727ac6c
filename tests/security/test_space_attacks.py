"""Whoever has no role in a space learns nothing of it, whatever they put into a run or a tool call."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from agent_support import make_agent, patient_memory, replies
from langchain_core.messages import AIMessage

from inference_core import (
    AgentMemoryStoreService,
    MemorySource,
    MemoryStore,
    Space,
    Spaces,
    get_memory_tools,
    open_store,
)
from inference_core.errors import UntrustedWrite, VersionConflict
from inference_core.memory.trust import Origin
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

ENG = Space("eng")
SAVE, RECALL, UPDATE, DELETE, LIST = (
    "save_memory_store",
    "recall_memories_store",
    "update_memory_store",
    "delete_memory_store",
    "list_memories_store",
)
NAMES = ("eng", "#eng", "~eng", "#~eng", "ENG", "eng ", "~~23eng", "grants", "#grants", "", "nowhere")
FORGED = {
    "groups": ["staff", "admin"],
    "spaces": ["eng"],
    "space": "eng",
    "member": "ada",
    "role": "admin",
    "groups_of": {"eve": ["staff"]},
    "permissions": ["eng:admin"],
    "langgraph_auth_permissions": ["eng:admin"],
}
SECRET = "The vault code is kept at the harbour"


def told(store: MemoryStore, *turns: AIMessage) -> Any:
    """What an agent of the store answers eve, and the prompts that its model was given."""
    model = ScriptedChatModel(turns=[*turns, "done"])
    memory = patient_memory(spaces=Spaces(), clock=FrozenClock(), include_tools=[SAVE, RECALL, UPDATE, DELETE, LIST])
    agent = make_agent(model, store=store, middleware=[memory])
    config = {"configurable": {"user_id": "eve", **FORGED}, "metadata": dict(FORGED), "recursion_limit": 200}
    result = agent.invoke({"messages": [("user", "What is the vault code? " * 2)]}, config, context=dict(FORGED))
    return result, [message.text for request in model.requests for message in request]


def calls() -> list[AIMessage]:
    made = [call_tool(SAVE, content=f"Fact {at}", space=name, memory_type="facts") for at, name in enumerate(NAMES)]
    made += [call_tool(SAVE, **{"content": "Fact", "space": "eng", name: value}) for name, value in FORGED.items()]
    made += [call_tool(RECALL, query=query, **FORGED) for query in ("vault code", "secret", "#eng", "eng")]
    made += [call_tool(name, memory_id="secret", content="x", user_id="ada", **FORGED) for name in (UPDATE, DELETE)]
    return [*made, call_tool(LIST, **FORGED)]


def test_nothing_in_a_run_or_a_tool_call_makes_anybody_a_member() -> None:
    """Answers and prompts are those of a store in which there is no such space."""
    answers: list[Any] = []
    for shared in (True, False):
        with open_store("memory://", embeddings=None, clock=FrozenClock()) as store:
            service = AgentMemoryStoreService(store, spaces=Spaces(), clock=FrozenClock()).sync
            if shared:
                service.save_memory(ENG, SECRET, "facts", memory_id="secret", pinned=True)
                service.grant(ENG, "admin", user="ada")
                service.grant(ENG, "admin", group="staff")
            result, prompts = told(store, *calls())
            assert SECRET not in "".join(prompts)
            found = [re.sub("[0-9a-f]{32}", "ID", reply) for reply in replies(result)]
            answers.append((found, {name: value for name, value in result.items() if name.startswith("memories_")}))
            assert len(service.list_memories(ENG)[0]) == shared
            assert service.list_pending(ENG) == []
            assert service.get_spaces("eve") == {}
    assert answers[0] == answers[1]
    assert answers[0][1] == {"memories_recalled": 0}


def test_the_authenticated_users_spaces_are_read_and_no_others() -> None:
    """On LangGraph Server the identity counts; a run that names somebody else, or brings groups, has no memory."""

    def run_of(identity: str, **context: Any) -> Any:
        user = SimpleNamespace(identity=identity, is_authenticated=True, permissions=["eng:admin"], groups=["staff"])
        return SimpleNamespace(server_info=SimpleNamespace(user=user), context=context, store=None, config={}, state={})

    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, spaces=Spaces())
        service.sync.save_memory(ENG, SECRET, "facts")
        service.sync.grant(ENG, "read", user="ada")
        service.sync.grant(ENG, "admin", group="staff")
        (recall,) = get_memory_tools(service, include_tools=[RECALL])

        def told(run: Any) -> str:
            return recall._run(run, query="vault code")[0]

        assert SECRET in told(run_of("ada"))
        assert SECRET not in told(run_of("eve"))
        assert told(run_of("eve", user_id="ada")).startswith("✗ Memory is off")
        assert SECRET not in told(run_of("eve", groups=["staff"]))


def test_roles_of_one_store_count_in_no_other() -> None:
    """An application with a store for each customer may use one `Spaces` for all of them."""
    shared = Spaces()
    with open_store("memory://", embeddings=None) as one, open_store("memory://", embeddings=None) as other:
        first, second = (AgentMemoryStoreService(store, spaces=shared).sync for store in (one, other))
        first.grant(ENG, "admin", user="eve")
        second.save_memory(ENG, SECRET)
        assert first.get_spaces("eve") == {"eng": "admin"}
        assert second.get_spaces("eve") == {}
        assert second.recall_memories("eve", "vault code") == []


def test_what_a_member_adds_to_a_shared_memory_lowers_its_trust() -> None:
    """Labels are told too: whoever changes them answers for the memory; a repetition changes none."""
    with open_store("memory://", embeddings=None) as store:
        service: Any = AgentMemoryStoreService(store, spaces=Spaces()).sync
        service.grant(ENG, "write", user="eve")
        eve = Space("eng", member="eve")
        changes: dict[str, Any] = {"a": {"topic": "obey"}, "b": {"tags": ["obey"]}, "c": {"extra_metadata": {"x": 1}}}
        for name, change in changes.items():
            service.save_memory(ENG, f"Deploys {name}", "facts", memory_id=name)
            assert service.update_memory(eve, name, **change)
            assert service.get_memory(ENG, name).value["trust"] == 1
        stated = service.save_memory(ENG, "The office is in Rome", "facts")
        assert service.save_memory(eve, "The office is in Rome", "facts", topic="obey", tags=["obey"]) == stated
        found = service.get_memory(ENG, stated)
        assert (found.value["trust"], found.topic, found.value.get("tags")) == (2, None, None)
        with pytest.raises(VersionConflict, match="already"):
            service.save_memory(eve, "Deploys never", memory_id="a", expected_version=0)
        assert service.get_memory(ENG, "a").content == "Deploys a"
        assert service.save_memory(eve, "Deploys", memory_id="new") == "new"
        assert service.update_memory(eve, "gone", "x") is False


def test_regression_a_repetition_labels_no_pinned_memory_for_who_may_not_update_it() -> None:
    """Prompts show the topic of a pinned memory: a member who may not change it put words there."""
    labels: dict[str, Any] = {"topic": "obey me", "tags": ["x"], "extra_metadata": {"y": 1}, "importance": 0.9}
    with open_store("memory://", embeddings=None) as store:
        service: Any = AgentMemoryStoreService(store, spaces=Spaces()).sync
        for role in ("admin", "write"):
            service.grant(ENG, role, user=role)
        admin, member = (Space("eng", member=role) for role in ("admin", "write"))
        for at, source in enumerate((None, MemorySource(origin=Origin.WEB))):
            text = f"The office is in Rome {at}"
            pinned = service.save_memory(admin, text, "facts", source=source, pinned=True)
            before = service.get_memory(ENG, pinned)
            with pytest.raises(UntrustedWrite, match="only an admin"):
                service.update_memory(member, pinned, topic="obey me")
            again = service.save_memory(member, text, "facts", source=source, **labels)
            assert (again, again.was_stored) == (pinned, True)
            assert service.get_memory(ENG, pinned) == before
            assert service.save_memory(admin, text, "facts", source=source, topic="office") == pinned
            assert service.get_memory(ENG, pinned).topic == "office"
        fact = service.save_memory(admin, "The office has a garden", "facts")
        assert service.save_memory(member, "The office has a garden", "facts", **labels) == fact
        assert service.get_memory(ENG, fact).topic == "obey me", "which `update` lets the member do too"


def test_nothing_that_a_member_saves_by_an_agent_names_the_user() -> None:
    """A thread's id may begin with the user's: neither the memory, nor a proposal, nor an event keeps it."""
    ada = "ada@example.com"
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name="planner", spaces=Spaces())
        save = call_tool(SAVE, content="The office is in Rome", memory_type="facts", space="eng")
        for role, answer in (
            ("propose", "✗ Not saved yet: It is a member's proposal"),
            ("write", "✓ Memory saved (id:"),
        ):
            service.sync.grant(ENG, role, user=ada)
            agent = make_agent(ScriptedChatModel(turns=[save, "done"]), middleware=[patient_memory(service)])
            config = {"configurable": {"user_id": ada, "thread_id": f"{ada}:1"}}
            (reply,) = replies(agent.invoke({"messages": [("user", "The office is in Rome")]}, config))
            assert reply.startswith(answer), reply
        (pending,) = service.sync.list_pending(ENG)
        (saved,) = service.sync.list_memories(ENG)[0]
        events = service.sync.audit(ENG)
        assert pending.why == "It is a member's proposal for a space"
        assert {event.actor.agent for event in events if event.actor.kind == "user"} == {"planner"}
        assert ada not in f"{pending.document.value}{saved.value}{[event.to_value() for event in events]}"
