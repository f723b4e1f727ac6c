"""Where windows are kept: never half changed."""

from __future__ import annotations

import pytest
from langchain_core.messages import AnyMessage
from short_term_support import USER, dialogue, resumed

from inference_core import MemoryStore
from inference_core.effects import run
from inference_core.errors import VersionConflict
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term import agent_memory
from inference_core.short_term.blocks.memory import UserSession, scope_of
from inference_core.stores.backend import Remove

SESSION = UserSession(USER, "s1")
NOTHING = agent_memory.StoredWindow([], [], 0)


@pytest.fixture
def scope(store: MemoryStore) -> MemoryScope:
    return scope_of(store)


def replaced(
    scope: MemoryScope, old: agent_memory.StoredWindow, messages: list[AnyMessage]
) -> agent_memory.StoredWindow:
    return run(agent_memory.replace_window(scope, SESSION, old, messages))


def test_a_window_is_replaced_as_a_whole(scope: MemoryScope):
    messages = dialogue(3)
    first = replaced(scope, NOTHING, messages)
    assert run(agent_memory.read_window(scope, SESSION)) == first
    second = replaced(scope, first, messages[2:])
    assert run(agent_memory.read_window(scope, SESSION)) == second
    assert second.version == first.version + 1
    assert scope.engine.backend.count([agent_memory.session_namespace(SESSION)]) == 5
    with pytest.raises(VersionConflict):
        replaced(scope, first, [])


def test_who_reads_while_it_changes_reads_it_again(scope: MemoryScope):
    messages = dialogue(3)
    first = replaced(scope, NOTHING, messages)
    reading = agent_memory.read_window(scope, SESSION)
    listed = reading.send(None).start().result()
    second = replaced(scope, first, messages[2:])
    wait = reading.send(listed)
    assert run(resumed(reading, wait)) == second


def test_a_message_that_is_gone_is_left_out(scope: MemoryScope):
    first = replaced(scope, NOTHING, dialogue(2))
    run(scope.engine.write([Remove(namespace=agent_memory.session_namespace(SESSION), key=first.keys[1])]))
    there = run(agent_memory.read_window(scope, SESSION))
    assert [one.id for one in there.messages] == ["m0", "m2", "m3"]
    assert replaced(scope, there, there.messages).version == first.version + 1


def test_a_session_is_removed_with_all_its_messages(store: MemoryStore, scope: MemoryScope):
    replaced(scope, NOTHING, dialogue(300))
    run(agent_memory.write_system(scope, SESSION, dialogue(1)[0]))
    run(agent_memory.remove_session(scope, SESSION))
    assert store.engine.backend.namespaces() == []
