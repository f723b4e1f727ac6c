"""Users who share spaces see exactly what their roles say, whatever everybody does: a long random walk beside a model.

The model knows who has which role, what stands in each space and of whom, and what waits. After each step, one read
path of one user is compared with it: nothing may be shown that the model says is invisible, and nothing be missing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from agent_support import make_agent, patient_memory
from langgraph.checkpoint.memory import InMemorySaver

from inference_core import AgentMemoryStoreService, Space, Spaces, get_memory_tools, open_store
from inference_core.errors import ConfirmationNeeded, SpaceNotFound, UntrustedWrite
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.spaces import REFRESH_S
from inference_core.testing import FrozenClock, ScriptedChatModel

USERS: Final = ("ada", "bob", "eve@example.com", "eng")
SPACES: Final = ("eng", "ops", "ada")
GROUPS: Final = ("staff", "night")
ROLES: Final = ("read", "propose", "write", "admin")
QUERY: Final = "What is known about deploys?"
MOST: Final = 60
"""So many memories of an owner stand at once, so that a recall can return all of them."""
_TEXT: Final = re.compile(r"step \d+ of [\w@.]+ on deploys")
Owner = str | Space


@dataclass
class Model:
    """Who may see what."""

    roles: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])
    groups: dict[str, set[str]] = field(default_factory=lambda: {user: set[str]() for user in USERS})
    texts: dict[Owner, dict[str, str]] = field(default_factory=lambda: {one: {} for one in OWNERS})
    """By owner and id, what stands there now."""
    guides: set[str] = field(default_factory=set[str])
    """The ids of rules and pinned memories."""
    waiting: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in SPACES})
    had: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By id, what it has ever said."""
    ever: dict[Owner, set[str]] = field(default_factory=lambda: {one: set[str]() for one in OWNERS})

    def rank(self, user: str, space: str) -> int:
        """From 0, no role, to 4, admin."""
        held = [("user", user), *(("group", group) for group in self.groups[user])]
        found = [self.roles.get((*principal, space)) for principal in held]
        return max((ROLES.index(role) + 1 for role in found if role), default=0)

    def owners(self, user: str) -> list[Owner]:
        """Whose memories the user may see."""
        return [user, *(Space(name) for name in SPACES if self.rank(user, name))]

    def visible(self, user: str) -> set[str]:
        return {text for owner in self.owners(user) for text in self.texts[owner].values()}


OWNERS: Final[tuple[Owner, ...]] = (*USERS, *map(Space, SPACES))


class Walk:
    """The users, on two services that know of each other by the database alone."""

    def __init__(
        self, memories: list[AgentMemoryStoreService], clock: FrozenClock, model: Model, ledger: Ledger, seed: int
    ) -> None:
        self.memories = memories
        self.services: list[Any] = [one.sync for one in memories]
        self.clock, self.model, self.ledger = clock, model, ledger
        self.random = random.Random(seed)
        self.agents = {user: self._agent(user) for user in USERS}
        self.number = 0

    def _agent(self, user: str) -> Any:
        script = ScriptedChatModel(turns=["done"])
        memory = patient_memory(self.memories[1], user_id=user, profile=True, receipts=False)
        return script, make_agent(script, middleware=[memory], checkpointer=InMemorySaver())

    def step(self) -> None:
        """One change, by anybody, and one look at what anybody sees."""
        self.number += 1
        change = self.random.choice(CHANGES)
        change(self)
        self.clock.advance(timedelta(seconds=REFRESH_S))  # so long another process may take to notice
        self.random.choice(LOOKS)(self, self.random.choice(USERS), self.random.choice(self.services))

    def begin(self) -> None:
        """Everybody has a role somewhere, and something is there."""
        for name, user in product(SPACES, USERS):
            role = self.model.roles["user", user, name] = self.random.choice(ROLES)
            self.services[0].grant(Space(name), role, user=user)
        for owner in OWNERS:
            self.number += 1
            text = self.fresh(owner if isinstance(owner, str) else owner.name)
            self.noted(owner, self.services[0].save_memory(owner, text, "facts"), text)

    def fresh(self, owner: str) -> str:
        return f"step {self.number} of {owner} on deploys"

    def member(self) -> tuple[str, str, Space, int]:
        """A user, a space, the user in it, and the rank there."""
        user, name = self.random.choice(USERS), self.random.choice(SPACES)
        return user, name, Space(name, member=user), self.model.rank(user, name)

    def some_id(self, owner: Owner) -> str:
        return self.random.choice([*self.model.texts[owner], "nothing"])

    def noted(self, owner: Owner, key: str, text: str, *, guide: bool = False) -> None:
        self.model.texts[owner][key] = text
        self.model.ever[owner].add(text)
        self.model.had.setdefault(key, set()).add(text)
        (self.model.guides.add if guide else self.model.guides.discard)(key)

    # Changes.

    def grant(self) -> None:
        kind, name = self.random.choice(("user", "group")), self.random.choice(SPACES)
        principal, role = self.random.choice(USERS if kind == "user" else GROUPS), self.random.choice(ROLES)
        by = self.random.choice([None, *USERS])
        try:
            self.services[0].grant(Space(name, member=by), role, **{kind: principal})
        except SpaceNotFound:
            assert by is not None
            assert self.model.rank(by, name) < 4
        else:
            assert by is None or self.model.rank(by, name) == 4
            self.model.roles[kind, principal, name] = role

    def revoke(self) -> None:
        kind, name = self.random.choice(("user", "group")), self.random.choice(SPACES)
        principal = self.random.choice(USERS if kind == "user" else GROUPS)
        there = self.model.roles.pop((kind, principal, name), None) is not None
        assert self.services[0].revoke(Space(name), **{kind: principal}) == there

    def move(self) -> None:
        """The directory changes."""
        self.model.groups[self.random.choice(USERS)] ^= {self.random.choice(GROUPS)}

    def save_own(self) -> None:
        user = self.random.choice(USERS)
        text, pinned = self.fresh(user), self.random.random() < 0.1
        self.noted(user, self.services[0].save_memory(user, text, "facts", pinned=pinned), text)
        if len(self.model.texts[user]) > MOST:
            self.services[0].delete_user_memories(user)
            self.model.texts[user].clear()

    def save(self) -> None:
        user, name, member, rank = self.member()
        guide, pinned = self.random.random() < 0.3, self.random.random() < 0.1
        kind, text = ("instructions" if guide else "facts"), self.fresh(name)
        try:
            key = self.random.choice(self.services).save_memory(member, text, kind, pinned=pinned, session_id="said")
        except SpaceNotFound:
            assert rank < 2
        except ConfirmationNeeded as waits:
            assert rank == 2 or (rank == 3 and (guide or pinned))
            self.model.waiting[name][waits.pending_id] = text
        else:
            assert rank == 4 or (rank == 3 and not (guide or pinned)), user
            self.noted(Space(name), key, text, guide=guide or pinned)
        if len(self.model.texts[Space(name)]) > MOST or len(self.model.waiting[name]) > MOST:
            self.services[0].delete_user_memories(Space(name))
            self.model.texts[Space(name)].clear()
            self.model.waiting[name].clear()

    def update(self) -> None:
        _, name, member, rank = self.member()
        key, text = self.some_id(Space(name)), self.fresh(name)
        is_guide, is_there = key in self.model.guides, key in self.model.texts[Space(name)]
        try:
            done = self.random.choice(self.services).update_memory(member, key, text)
        except SpaceNotFound:
            assert rank < 3
        except UntrustedWrite:
            assert rank == 3
            assert is_there
            assert is_guide
        else:
            assert rank == 4 or (rank == 3 and not (is_there and is_guide))
            assert done == is_there
            if done:
                self.noted(Space(name), key, text, guide=is_guide)

    def delete(self) -> None:
        _, name, member, rank = self.member()
        key = self.some_id(Space(name))
        is_guide, is_there = key in self.model.guides, key in self.model.texts[Space(name)]
        try:
            done = self.random.choice(self.services).delete_memory(member, key)
        except SpaceNotFound:
            assert rank < 3
        except UntrustedWrite:
            assert (rank, is_there, is_guide) == (3, True, True)
        else:
            assert rank == 4 or (rank == 3 and not (is_there and is_guide))
            assert done == is_there
            self.model.texts[Space(name)].pop(key, None)

    def steal(self) -> None:
        """What stands in a space is no user's own, under whatever id: nothing changes."""
        user, key = self.random.choice(USERS), self.some_id(Space(self.random.choice(SPACES)))
        assert not self.services[0].update_memory(user, key, "stolen")
        assert not self.services[0].delete_memory(user, key)
        tools = get_memory_tools(self.memories[0], user, include_tools=["update_memory_store", "delete_memory_store"])
        for tool, given in zip(tools, ({"memory_id": key, "content": "stolen"}, {"memory_id": key}), strict=True):
            assert tool.invoke(given).startswith("✗")

    def review(self) -> None:
        _, name, member, rank = self.member()
        key = self.random.choice([*self.model.waiting[name], "nothing"])
        approves = self.random.random() < 0.6
        service = self.random.choice(self.services)
        try:
            done = (service.approve_pending if approves else service.reject_pending)(member, key)
        except SpaceNotFound:
            assert rank < 4
            return
        assert rank == 4
        text = self.model.waiting[name].pop(key, None)
        assert done == ([key] if text else [])
        if text and approves:
            found = service.get_memory(Space(name), key)
            self.noted(
                Space(name), key, text, guide=found.memory_type == "instructions" or bool(found.value.get("pinned"))
            )

    def erase(self) -> None:
        """Rarely: all of a user, also the roles, goes; the spaces keep what they hold."""
        if self.random.random() < 0.8:
            return
        user = self.random.choice(USERS)
        backend = self.memories[0].scope.engine.backend
        receipt = erase([backend], user, self.ledger)
        assert not any(place.left for places in receipt.places.values() for place in places.values())
        self.model.texts[user].clear()
        self.model.ever[user].clear()
        for principal in [one for one in self.model.roles if one[:2] == ("user", user)]:
            del self.model.roles[principal]
        self.agents[user] = self._agent(user)

    # Looks. Each is one read path of the user, by the service.

    def recall(self, user: str, service: Any) -> None:
        query = self.random.choice((QUERY, ""))
        assert self.texts(service.recall_memories(user, query, k=1_000)) == self.model.visible(user)

    def get(self, user: str, service: Any) -> None:
        owner = self.random.choice(OWNERS)
        key = self.some_id(owner)
        found = service.get_memory(user, key)
        there = self.model.texts[owner].get(key) if owner in self.model.owners(user) else None
        assert (found and found.content) == there

    def list_own(self, user: str, service: Any) -> None:
        assert self.texts(service.list_memories(user, limit=None)[0]) == set(self.model.texts[user].values())

    def context(self, user: str, service: Any) -> None:
        block = service.format_context_for_prompt(user, QUERY, max_memories=1_000, max_tokens=100_000)
        self.is_told(user, block)

    def past(self, user: str, service: Any) -> None:
        """What was replaced or deleted in a space is shown to its admins alone."""
        key = self.some_id(self.random.choice(OWNERS))
        why = service.why(user, key)
        shown = [one for one in (why.memory, why.removed and why.removed.document) if one]
        found = self.texts([*service.get_memory_history(user, key), *shown, *why.earlier])
        past = [user, *(Space(name) for name in SPACES if self.model.rank(user, name) == 4)]
        assert found <= self.model.visible(user) | {text for one in past for text in self.model.ever[one]}

    def tool(self, user: str, service: Any) -> None:
        (tool,) = get_memory_tools(service, user, include_tools=["recall_memories_store"])
        told = tool.invoke({"query": QUERY, "max_results": 50})
        self.is_told(user, told)
        assert len(set(_TEXT.findall(told))) == min(50, len(self.model.visible(user)))

    def turn(self, user: str, _: Any) -> None:
        """In one long thread, whose profile stays as it is as long as its memories are there, corrected beside it."""
        script, agent = self.agents[user]
        config = {"configurable": {"thread_id": "one for all turns"}}
        agent.invoke({"messages": [("user", "What about deploys?")]}, config)
        kept = {
            text for owner in self.model.owners(user) for key in self.model.texts[owner] for text in self.model.had[key]
        }
        self.is_told(user, "".join(message.text for message in script.requests[-1]), kept)
        script.requests.clear()

    def pending(self, user: str, service: Any) -> None:
        name = self.random.choice(SPACES)
        rank, found = self.model.rank(user, name), set[str]()
        with suppress(SpaceNotFound):
            found = {one.document.content for one in service.list_pending(Space(name, member=user))}
            assert rank == 4
        assert found == (set(self.model.waiting[name].values()) if rank == 4 else set())

    def roles(self, user: str, service: Any) -> None:
        ranks = {name: self.model.rank(user, name) for name in SPACES}
        assert service.get_spaces(user) == {name: ROLES[rank - 1] for name, rank in ranks.items() if rank}

    def space(self, user: str, service: Any) -> None:
        name = self.random.choice(SPACES)
        member, there = Space(name, member=user), set(self.model.texts[Space(name)].values())
        try:
            found, total = service.list_memories(member, limit=None)
        except SpaceNotFound:
            assert self.model.rank(user, name) == 0
        else:
            assert self.model.rank(user, name) > 0
            assert service.count_memories(member)["total"] == total == len(there)
            assert self.texts(found) == there
            assert self.texts(service.recall_memories(member, QUERY, k=1_000)) == there

    def is_told(self, user: str, text: str, also: Collection[str] = ()) -> None:
        """Nothing in ``text`` is invisible to the user; something is told if there is anything."""
        told, visible = set(_TEXT.findall(text)), self.model.visible(user)
        assert told <= visible.union(also)
        assert told or not visible

    @staticmethod
    def texts(found: Any) -> set[str]:
        return {one.content for one in found}


CHANGES: Final = (
    *(Walk.grant, Walk.grant, Walk.revoke, Walk.move, Walk.save_own, Walk.save_own, Walk.save, Walk.save, Walk.save),
    *(Walk.update, Walk.delete, Walk.steal, Walk.review, Walk.review, Walk.erase),
)
LOOKS: Final = (
    *(Walk.recall, Walk.recall, Walk.get, Walk.list_own, Walk.context, Walk.past, Walk.tool, Walk.turn),
    *(Walk.pending, Walk.roles, Walk.space),
)


@pytest.fixture(params=["memory", "sqlite"])
def walk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Walk]:
    clock, model = FrozenClock(), Model()
    quiet: dict[str, Any] = {"embeddings": None, "clock": clock}
    in_memory = request.param == "memory"
    url = "memory://" if in_memory else f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, **quiet) as first, open_store(url, **quiet) as second:
        services = [
            AgentMemoryStoreService(store, spaces=Spaces(model.groups.__getitem__), clock=clock, timeout=None)
            for store in (first, first if in_memory else second)
        ]
        yield Walk(services, clock, model, Ledger(tmp_path / "erasures.jsonl"), seed=7)


def test_nobody_sees_more_or_less_than_the_roles_say(walk: Walk, full: bool) -> None:
    walk.begin()
    for _ in range(5_000 if full else 75):
        walk.step()
    assert all(walk.model.ever[Space(name)] for name in SPACES)
