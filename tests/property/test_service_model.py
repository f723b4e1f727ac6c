"""The memory service against a dictionary: whatever is done to both, every agent of every user sees the same."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import pytest
from databases import KINDS as DATABASES
from databases import SHARED_KINDS, database
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from inference_core import AgentMemoryStoreService, MemoryStoreDocument, open_store
from inference_core.errors import InvalidInput
from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPE_TO_CATEGORY, MEMORY_TYPES
from inference_core.services.user_memories import count_user_memories, list_user_memories, purge_user_memories
from inference_core.testing import FrozenClock

Options = dict[str, Any]
Agent = str | None
AGENTS: list[Agent] = [None, "planner", "plan.ner%"]
USERS = ["ada", "Ada", "ada@example.com", "ad", "%", "_da", "../ada\n", "semantic", "langgraph", "~ada", "\u0430da"]
WORDS = ["zebra", "quartz", "violin", "harbor"]
START = datetime(2026, 1, 15, 23, 30, tzinfo=UTC)


class Place(NamedTuple):
    """Where a memory lies; ``owner`` is the agent whose own it is, None if it is shared."""

    category: str
    owner: Agent
    memory_id: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What an agent sees of a memory."""

    memory_id: str
    content: str
    kind: str
    category: str
    agent: Agent
    created_at: datetime
    updated_at: datetime
    topic: str | None = None
    session: str | None = None
    metadata: tuple[tuple[str, Any], ...] = ()
    expires_at: datetime | None = None

    def holds(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at

    def says(self, text: str) -> bool:
        return text.casefold() in f"{self.content}\n{self.topic or ''}".casefold()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.content.split())

    def repeats(self, other: Memory) -> bool:
        """Whether it says what ``other`` says, word by word, for the same time; an event also in the same session."""
        told = [(one.content.split(), one.kind, one.expires_at) for one in (self, other)]
        return told[0] == told[1] and (self.category != "episodic" or self.session == other.session)

    def with_what_is_new(self, other: Memory) -> Memory:
        """With what ``other``, which repeats it, knows besides."""
        metadata = tuple(sorted((dict(self.metadata) | dict(other.metadata)).items()))
        merged = replace(self, topic=self.topic or other.topic, metadata=metadata)
        return self if merged == self else replace(merged, updated_at=other.updated_at)

    def place(self, agent: Agent) -> Place:
        """Where ``agent`` writes it."""
        return Place(self.category, None if self.category == "semantic" else agent, self.memory_id)


def seen(document: MemoryStoreDocument) -> Memory:
    value, expires_at = document.value, document.value.get("expires_at")
    assert document.created_at is not None
    assert document.updated_at is not None
    return Memory(
        memory_id=document.id,
        content=document.content,
        kind=value["memory_type"],
        category=value["memory_category"],
        agent=value["agent_name"],
        created_at=document.created_at,
        updated_at=document.updated_at,
        topic=value["topic"],
        session=value["session_id"],
        metadata=tuple(sorted(document.metadata.items())),
        expires_at=datetime.fromisoformat(expires_at) if expires_at else None,
    )


class Model:
    """The memories of one user by their places."""

    def __init__(self) -> None:
        self.memories: dict[Place, Memory] = {}

    def visible(self, agent: Agent, category: str | None = None) -> dict[Place, Memory]:
        """What ``agent`` reads: what is shared and its own; by category, in each first what is shared."""
        order = {place: (MEMORY_CATEGORIES.index(place.category), place.owner is not None) for place in self.memories}
        return {
            place: self.memories[place]
            for place in sorted(self.memories, key=order.__getitem__)
            if place.owner in (None, agent) and category in (None, place.category)
        }

    def find(self, agent: Agent, memory_id: str, category: str | None = None) -> Place | None:
        return next((place for place in self.visible(agent, category) if place.memory_id == memory_id), None)

    def put(self, agent: Agent, memory: Memory) -> None:
        """``memory`` in place of all that ``agent`` reads under its id, as old as the first of them."""
        old = self.find(agent, memory.memory_id)
        created_at = self.memories[old].created_at if old else memory.created_at
        self.drop(place for place in self.visible(agent) if place.memory_id == memory.memory_id)
        self.memories[memory.place(agent)] = replace(memory, created_at=created_at)

    def drop(self, places: Iterable[Place]) -> int:
        return len([self.memories.pop(place) for place in list(places)])


def newest_first(memories: Iterable[Memory]) -> list[Memory]:
    return sorted(memories, key=lambda memory: (-memory.created_at.timestamp(), memory.memory_id))


def ids_of(memories: Sequence[Memory]) -> list[str]:
    return [memory.memory_id for memory in memories]


def changed(memory: Memory, now: datetime, **change: Any) -> Memory:
    """``memory`` after an update: what is given is new, a new type brings its category, metadata is merged."""
    kind = change.get("memory_type", memory.kind)
    routed = memory.category if kind == memory.kind else MEMORY_TYPE_TO_CATEGORY[kind].value
    return replace(
        memory,
        content=change.get("content", memory.content),
        kind=kind,
        category=change.get("category", routed),
        topic=change.get("topic", memory.topic) or None,
        metadata=tuple(sorted((dict(memory.metadata) | change.get("extra_metadata", {})).items())),
        updated_at=now,
    )


USER = st.sampled_from([0, 0, 0, 1, 2])
AGENT = st.sampled_from(AGENTS)
PICK = st.integers(0, 9)
TYPE = st.sampled_from(MEMORY_TYPES)
CATEGORY = st.sampled_from(MEMORY_CATEGORIES)
STEP = st.sampled_from([timedelta(hours=-1), timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)])
CONTENT = st.lists(st.sampled_from([*WORDS, "#"]), min_size=1, max_size=3).map(" ".join)
KIND = {"memory_type": TYPE, "category": CATEGORY}
ABOUT = {
    "topic": st.sampled_from(["", "orchid"]),
    "extra_metadata": st.dictionaries(st.sampled_from("ab"), st.integers(0, 2) | st.sampled_from(["x", None])),
}
ONCE = {
    "session_id": st.sampled_from(["s-1", "s-2"]),
    "life": st.sampled_from([timedelta(minutes=1), timedelta(days=1)]),
}
CHANGE = st.fixed_dictionaries({}, optional={"content": CONTENT, **KIND, **ABOUT})
DRAFT = st.fixed_dictionaries({"content": CONTENT, **ABOUT}, optional={**KIND, **ONCE})
KINDS = st.fixed_dictionaries({}, optional=KIND)
PAGE = {
    "search": st.sampled_from(["", "ZEB", "zebra quartz", "orchid", "%"]),
    "limit": st.none() | st.integers(0, 4),
    "offset": st.integers(0, 3),
}
POPULATION = st.lists(st.tuples(STEP, USER, AGENT, DRAFT), min_size=5, max_size=10)


class MemoryMachine(RuleBasedStateMachine):
    """One store, three users, three agents each; ``kind`` and ``is_async`` choose the store and the face."""

    kind: ClassVar[str]
    is_async: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        folder = self.resources.enter_context(TemporaryDirectory())
        self.url = self.resources.enter_context(database(self.kind, Path(folder)))
        self.loop = asyncio.new_event_loop() if self.is_async else None
        self.clock = FrozenClock(START)
        self.models: dict[str, Model] = {}
        self.once: set[Place] = set()  # saved without an id, and not changed since
        self.serial = 0
        self.open()

    def open(self) -> None:
        self.store = open_store(self.url, embeddings=None, durable=False)
        timeout = 60 if self.is_async else None
        self.services = {
            agent: AgentMemoryStoreService(self.store, agent_name=agent, clock=self.clock, timeout=timeout)
            for agent in AGENTS
        }

    def teardown(self) -> None:
        try:
            self.agree_on_all()
        finally:
            self.store.close()
            if self.loop:
                self.loop.close()
            self.resources.close()

    def ask(self, agent: Agent, name: str, *args: Any, **options: Any) -> Any:
        """Calls an operation of ``agent``'s service through the face of this run."""
        service = self.services[agent]
        if self.loop:
            return self.loop.run_until_complete(getattr(service, name)(*args, **options))
        return getattr(service.sync, name)(*args, **options)

    def listed(self, agent: Agent, user: str, **options: Any) -> tuple[list[Memory], int]:
        documents, total = self.ask(agent, "list_memories", user, **options)
        return [seen(document) for document in documents], total

    def user(self, number: int) -> tuple[str, Model]:
        return list(self.models.items())[number]

    def some_id(self, user: str, agent: Agent, pick: int) -> str:
        """An id, which `get_memory` knows or not: mostly one that the agent reads, else one of others or nobody's."""
        model = self.models[user]
        own = [place.memory_id for place in model.visible(agent)]
        others = [place.memory_id for one in self.models.values() for place in one.memories]
        known = own if own and pick < 7 else ["m-1", "%", "nobody", *others]
        memory_id = known[pick % len(known)]
        place = model.find(agent, memory_id)
        document = self.ask(agent, "get_memory", user, memory_id)
        assert (document and seen(document)) == (place and model.memories[place])
        return memory_id

    def agree(self, user: str) -> None:
        """Service and model show the same of ``user`` to every agent."""
        for agent in AGENTS:
            expected = self.models[user].visible(agent).values()
            memories, total = self.listed(agent, user, limit=None)
            assert Counter(memories) == Counter(expected)
            assert ids_of(memories) == ids_of(newest_first(expected))
            assert total == len(expected)

    def agree_on_all(self) -> None:
        """Service and model show the same of every user, to every agent and to the application."""
        for user, model in self.models.items():
            self.agree(user)
            for agent in AGENTS:
                counts = Counter(place.category for place in model.visible(agent))
                by_category = {category: counts[category] for category in MEMORY_CATEGORIES}
                assert self.ask(agent, "count_memories", user) == {**by_category, "total": counts.total()}
            entries, total = list_user_memories(self.store, user, limit=None)
            assert total == len(model.memories) == count_user_memories(self.store, user)["total"]
            assert Counter((entry["memory_category"], entry["key"], entry["content"]) for entry in entries) == Counter(
                (place.category, place.memory_id, memory.content) for place, memory in model.memories.items()
            )

    @initialize(names=st.lists(st.sampled_from(USERS), min_size=3, max_size=3, unique=True), population=POPULATION)
    def populate(self, names: list[str], population: list[tuple[timedelta, int, Agent, Options]]) -> None:
        self.models = {name: Model() for name in names}
        for step, number, agent, draft in population:
            self.clock.advance(step)
            self.write(number, agent, None, **draft)

    def write(self, number: int, agent: Agent, memory_id: str | None, **draft: Any) -> Memory:
        user, model = self.user(number)
        now = self.clock.now()
        self.serial += 1
        content = draft.pop("content").replace("#", f"note{self.serial}x")
        life = draft.pop("life", None)
        options = {**draft, "content": content, "expires_at": now + life if life else None}
        saved = self.ask(agent, "save_memory", user, memory_id=memory_id, **options)
        assert saved == (memory_id or saved)
        kind = draft.get("memory_type", "general")
        memory = Memory(
            memory_id=saved,
            content=content,
            kind=kind,
            category=draft.get("category", MEMORY_TYPE_TO_CATEGORY[kind].value),
            agent=agent,
            created_at=now,
            updated_at=now,
            topic=draft.get("topic") or None,
            session=draft.get("session_id"),
            metadata=tuple(sorted(draft.get("extra_metadata", {}).items())),
            expires_at=options["expires_at"],
        )
        if memory_id is None:
            return self.saved_once(model, memory.place(agent), memory, was_stored=saved.was_stored)
        model.put(agent, memory)
        self.once.discard(memory.place(agent))
        return memory

    def saved_once(self, model: Model, place: Place, memory: Memory, *, was_stored: bool) -> Memory:
        """What stands in ``place`` after a save without an id: what said the same with what is new, else ``memory``."""
        unchanged = [old for old in self.once & model.memories.keys() if old[:2] == place[:2]]
        assert was_stored or not any(model.memories[old].repeats(memory) for old in unchanged)
        assert was_stored == (place in model.memories)
        if was_stored:
            assert memory.repeats(model.memories[place])
            memory = model.memories[place].with_what_is_new(memory)
        else:
            self.once.add(place)
        model.memories[place] = memory
        return memory

    @rule(number=USER, agent=AGENT, pick=st.none() | PICK, draft=DRAFT)
    def save(self, number: int, agent: Agent, pick: int | None, draft: Options) -> None:
        user, _ = self.user(number)
        memory_id = None if pick is None else self.some_id(user, agent, pick)
        saved = self.write(number, agent, memory_id, **draft)
        self.agree(user)
        self.finds(user, agent, saved.content.split()[-1])

    @rule(number=USER, agent=AGENT, pick=PICK, change=CHANGE)
    def update(self, number: int, agent: Agent, pick: int, change: Options) -> None:
        user, model = self.user(number)
        memory_id = self.some_id(user, agent, pick)
        if not change:
            with pytest.raises(InvalidInput):
                self.ask(agent, "update_memory", user, memory_id)
            return
        place = model.find(agent, memory_id)
        if place is not None:
            old = model.memories[place]
            new = changed(old, self.clock.now(), **change)
            target = place if new.category == old.category else new.place(agent)
            new = replace(new, agent=new.agent or target.owner)
            if target != place and target in model.memories:
                with pytest.raises(InvalidInput, match="Another memory"):
                    self.ask(agent, "update_memory", user, memory_id, **change)
                return
            del model.memories[place]
            self.once.discard(place)
            model.memories[target] = new
        assert self.ask(agent, "update_memory", user, memory_id, **change) is (place is not None)
        self.agree(user)

    @rule(number=USER, agent=AGENT, pick=PICK, category=CATEGORY)
    def move(self, number: int, agent: Agent, pick: int, category: str) -> None:
        self.update(number, agent, pick, {"category": category})

    @rule(number=USER, agent=AGENT, pick=PICK, category=st.none() | CATEGORY)
    def delete(self, number: int, agent: Agent, pick: int, category: str | None) -> None:
        user, model = self.user(number)
        memory_id = self.some_id(user, agent, pick)
        place = model.find(agent, memory_id, category)
        assert self.ask(agent, "delete_memory", user, memory_id, category) is (place is not None)
        model.drop([place] if place else [])
        self.agree(user)

    @rule(number=USER, agent=AGENT, kinds=KINDS)
    def delete_all(self, number: int, agent: Agent, kinds: Options) -> None:
        user, model = self.user(number)
        doomed = self.of_kinds(user, agent, **kinds)
        assert self.ask(agent, "delete_user_memories", user, **kinds) == model.drop(doomed)
        self.agree(user)

    @rule(number=USER, category=st.sampled_from([*MEMORY_CATEGORIES, None]))
    def purge(self, number: int, category: str | None) -> None:
        user, model = self.user(number)
        doomed = [place for place in model.memories if category in (None, place.category)]
        assert purge_user_memories(self.store, user, category) == model.drop(doomed)
        self.agree(user)

    def of_kinds(
        self, user: str, agent: Agent, memory_type: str | None = None, category: str | None = None
    ) -> dict[Place, Memory]:
        visible = self.models[user].visible(agent, category)
        return {place: memory for place, memory in visible.items() if memory_type in (None, memory.kind)}

    @rule(number=USER, agent=AGENT, kinds=KINDS, view=st.fixed_dictionaries(PAGE))
    def page(self, number: int, agent: Agent, kinds: Options, view: Options) -> None:
        user, _ = self.user(number)
        matching = [memory for memory in self.of_kinds(user, agent, **kinds).values() if memory.says(view["search"])]
        every, total = self.listed(agent, user, **kinds, **view | {"limit": None, "offset": 0})
        assert Counter(every) == Counter(matching)
        assert ids_of(every) == ids_of(newest_first(matching))
        end = None if view["limit"] is None else view["offset"] + view["limit"]
        assert self.listed(agent, user, **kinds, **view) == (every[view["offset"] : end], total)
        assert total == len(matching)

    @rule(number=USER, agent=AGENT, word=st.sampled_from([*WORDS, "orchid", "unheard"]), kinds=KINDS)
    def recall(self, number: int, agent: Agent, word: str, kinds: Options) -> None:
        user, _ = self.user(number)
        memories = self.finds(user, agent, word, **kinds)
        few = self.ask(agent, "recall_memories", user, word, 2, **kinds)
        assert [seen(document) for document in few] == memories[:2]

    def finds(self, user: str, agent: Agent, word: str, **kinds: str) -> list[Memory]:
        """Recall gives all that holds ``word`` and nothing else, of equal contents one."""
        now = self.clock.now()
        current = [memory for memory in self.of_kinds(user, agent, **kinds).values() if memory.holds(now)]
        matching = [memory for memory in current if word in {*memory.words, memory.topic}]
        found = self.ask(agent, "recall_memories", user, word, 1_000, **kinds)
        memories = [seen(document) for document in found]
        assert Counter(memories) <= Counter(matching)
        assert Counter(memory.words for memory in memories) == Counter({memory.words for memory in matching})
        return memories

    @rule(number=USER, agent=AGENT, types=st.lists(TYPE, max_size=3, unique=True), most=st.integers(1, 3))
    def context(self, number: int, agent: Agent, types: list[str], most: int) -> None:
        user, model = self.user(number)
        current = [memory for memory in model.visible(agent).values() if memory.holds(self.clock.now())]
        by_type = {
            kind: newest_first(memory for memory in current if memory.kind == kind)
            for kind in types or ("preferences", "facts", "instructions")
        }
        documents = self.ask(agent, "get_user_context_with_timestamps", user, types, most)
        found = {kind: [seen(document) for document in group] for kind, group in documents.items()}
        expected = {kind: ids_of(group)[:most] for kind, group in by_type.items() if group}
        assert {kind: ids_of(group) for kind, group in found.items()} == expected
        assert all(Counter(group) <= Counter(by_type[kind]) for kind, group in found.items())
        contents = {kind: [memory.content for memory in group] for kind, group in found.items()}
        assert self.ask(agent, "get_user_context", user, types, most) == contents

    @rule(number=USER, agent=AGENT, query=st.sampled_from([None, "", "zebra", "unheard"]))
    def prompt(self, number: int, agent: Agent, query: str | None) -> None:
        """The prompt block tells all that holds, each content once, or one that says it and more."""
        user, model = self.user(number)
        current = [memory for memory in model.visible(agent).values() if memory.holds(self.clock.now())]
        block = self.ask(agent, "format_context_for_prompt", user, query, max_memories=1_000)
        sections = re.findall(r"<(\w+)_memory>\n(.*?)</\1_memory>", block, re.DOTALL)
        told = [
            (category, content)
            for category, section in sections
            for content in re.findall(r"^  - \[.*?\] (.*) \(type: ", section, re.MULTILINE)
        ]
        assert Counter(told) <= Counter({(memory.category, memory.content) for memory in current})
        meant = [frozenset(content.split()) for _, content in told]
        assert all(any(words.issuperset(memory.words) for words in meant) for memory in current)

    @rule(step=STEP)
    def tick(self, step: timedelta) -> None:
        self.clock.advance(step)

    @precondition(lambda self: self.kind in SHARED_KINDS)
    @rule(number=USER)
    def restart(self, number: int) -> None:
        self.store.close()
        self.open()
        self.agree(self.user(number)[0])


@pytest.mark.parametrize(
    ("kind", "is_async"),
    [
        pytest.param(
            kind,
            is_async,
            id=f"{kind}-{'async' if is_async else 'sync'}",
            # What differs among databases lies below the service.
            marks=[] if kind == "sqlite" else [pytest.mark.full],
        )
        for kind in DATABASES
        for is_async in (False, True)
    ],
)
def test_the_service_is_a_dictionary(kind: str, is_async: bool, full: bool):
    machine = type("Machine", (MemoryMachine,), {"kind": kind, "is_async": is_async})
    options = settings(
        max_examples=1_250 if full else 4,
        stateful_step_count=50 if full else 20,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    run_state_machine_as_test(
        machine if full else seed(2 * DATABASES.index(kind) + is_async)(machine), settings=options
    )
