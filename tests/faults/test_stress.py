"""Thirty callers of five users at once on one store, sync and async: no error, nothing missing, twice or another's.

Callers go away in the midst of a call, give it too little time, save, update, delete, purge, list, page with filters,
count and recall. `stress_support.Truth` knows what each of them must see. Ten minutes on each database in the full run.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from databases import database
from stress_support import Known, Sight, Truth, word_of
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.effects import awake_s
from inference_core.errors import DeadlineExceeded, WriteUnknown
from inference_core.services.user_memories import list_user_memories, purge_user_memories

DATABASES = ("sqlite", "postgres", "redis")
USERS = [f"owner-{number}" for number in range(5)]
CALLERS = 30
KINDS = ("facts", "interaction", "workflow")
"""One of each category."""
OWN_IDS = 12
HEAVY = USERS[0]
"""Has many memories from the beginning, which nobody purges."""
STEADY, FULL_STEADY = 150, 4_500
"""How many; in the full run more than are ranked at once."""
SECONDS, FULL_SECONDS = 1.0, 600.0
PATIENCE_S = 60.0
MOST_OWN_THREADS = 30
"""Of the store, and of the event loop that callers share."""
WORDS = 1_000
"""So few, as what is kept of words, to analyse them quickly, would pass for a leak."""
MOST_GROWTH = 64 * 2**20
INDEX_BYTES = 32 * 2**20
METHODS = (
    "save_memory",
    "update_memory",
    "delete_memory",
    "get_memory",
    "recall_memories",
    "list_memories",
    "count_memories",
    "format_context_for_prompt",
    "search",
    "purge",
    "delete_user_memories",
)
CALLS = (*METHODS, "gone")
REST, REST_S = "rest", 0.02
"""No method: the caller waits while memory is measured."""


class Indifferent(HashingEmbeddings):
    """Finds all texts alike, so that a memory is found by its own word whatever else there is."""

    def embed_query(self, text: str) -> list[float]:
        return super().embed_query("")


class Gone:
    """The answer that a caller did not wait for."""


GONE = Gone()


@dataclass(frozen=True)
class Ask:
    """A call of a method, after ``hurry`` seconds of which the caller goes away."""

    method: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    hurry: float | None = None


Life = Generator[Ask, Any, None]


class Caller:
    """One caller of a user: a plan of calls, the same for sync and async, that checks what it is told."""

    def __init__(self, number: int, truth: Truth, done: threading.Event, resting: threading.Event) -> None:
        self.number = number
        self.user = USERS[number // 2 % len(USERS)]
        self.is_async = bool(number % 2)
        self.truth = truth
        self.done = done
        self.resting = resting
        self.chance = random.Random(number)
        self.made = self.written = 0
        self.rests = False
        self.ids: dict[str, Known] = {}

    def life(self) -> Life:
        """Calls until the end of the run."""
        reads = {self.read: 12, self.recall: 12, self.count: 6, self.tell: 4}
        lists = {self.list: 6, self.search: 6, self.turn_pages: 4}
        doing = {self.write: 50, **reads, **lists, self.purge: 0.0 if self.user == HEAVY else 0.5}
        while not self.done.is_set():
            (what,) = self.chance.choices([*doing], [*doing.values()])
            yield from what()
            self.rests = self.resting.is_set()
            while self.resting.is_set():
                yield Ask(REST)
            self.rests = False

    def write(self) -> Life:
        """Saves, updates or deletes one of the caller's own ids."""
        memory_id = self._own_id()
        known = self.ids[memory_id]
        is_there = None not in known.may_be
        deletes = is_there and self.chance.random() < 0.3
        content = None if deletes else self._content(memory_id, known)
        updates = not deletes and is_there and self.chance.random() < 0.5
        self.truth.begin_write(self.user, known)
        if deletes:
            answer = yield self._ask("delete_memory", memory_id)
        elif updates:
            answer = yield self._ask("update_memory", memory_id, content)
        else:
            answer = yield self._ask("save_memory", content, known.kind, memory_id=memory_id)
        if updates and answer is False:  # a purge came first
            content = None
        if not self.truth.end_write(self.user, known, content, is_confirmed=answer is not GONE):
            del self.ids[memory_id]

    def read(self) -> Life:
        """Gets one of the caller's own memories by its id."""
        memory_id = self._own_id()
        before = self._sight_of(memory_id)
        answer = yield self._ask("get_memory", memory_id)
        if answer is not GONE:
            self._judge("get", before, [answer] if answer else [])

    def recall(self) -> Life:
        """Asks for the word of one of the caller's own memories."""
        memory_id = self._own_id()
        before = self._sight_of(memory_id)
        answer = yield self._ask("recall_memories", self.ids[memory_id].word, 5, backfill=self.chance.random() < 0.5)
        if answer is not GONE:
            self._judge("recall", before, answer)

    def list(self) -> Life:
        """Lists all memories of the user, of any caller."""
        kind = self.chance.choice((None, *KINDS))
        before = self.truth.sight(self.user, kind)
        answer = yield self._ask("list_memories", memory_type=kind, limit=None)
        if answer is not GONE:
            self._judge("list", before, answer[0])

    def turn_pages(self) -> Life:
        """Lists the user's memories page by page."""
        kind = self.chance.choice((None, *KINDS))
        limit = self.chance.randint(20, 200)
        before = self.truth.sight(self.user, kind)
        found: list[Any] = []
        after: str | None = None
        while True:
            answer = yield self._ask("list_memories", memory_type=kind, limit=limit, after=after)
            if answer is GONE:
                return
            found += answer[0]
            if (after := answer[0].next_cursor) is None:
                break
        self._judge("pages", before, found)

    def search(self) -> Life:
        """Reads all items of one type by LangGraph's search with a filter."""
        kind = self.chance.choice(KINDS)
        before = self.truth.sight(self.user, kind)
        answer = yield Ask("search", ((self.user,),), {"filter": {"memory_type": kind}, "limit": 10_000})
        if answer is not GONE:
            self.truth.judge("search", self.user, before, [(item.key, item.value["content"]) for item in answer])

    def count(self) -> Life:
        """Counts the user's memories."""
        before = self.truth.sight(self.user)
        answer = yield self._ask("count_memories")
        if answer is not GONE:
            self.truth.judge_count(self.user, before, answer["total"])

    def tell(self) -> Life:
        """Asks for the text of a prompt."""
        answer = yield self._ask("format_context_for_prompt", self.ids[self._own_id()].word)
        if answer is not GONE and any(other in answer for other in USERS if other != self.user):
            self.truth.complaints.append(f"a prompt of {self.user} tells another's: {answer}")

    def purge(self) -> Life:
        """Removes all that the user has."""
        begun = self.truth.begin_purge(self.user)
        answer = yield Ask(self.chance.choice(("purge", "delete_user_memories")), (self.user,))
        if answer is not GONE:
            self.truth.end_purge(self.user, begun)

    def _own_id(self) -> str:
        if len(self.ids) < OWN_IDS:
            self.made += 1
            number = self.number * 1_000_000 + self.made
            memory_id = f"m{number}"
            kind = KINDS[self.made % len(KINDS)]
            self.ids[memory_id] = self.truth.add(self.user, memory_id, kind, word_of(number))
        return self.chance.choice([*self.ids])

    def _content(self, memory_id: str, known: Known) -> str:
        self.written += 1
        return f"{self.user} {memory_id} {known.word} v{self.written % WORDS}"

    def _ask(self, method: str, *args: Any, **options: Any) -> Ask:
        hurry = self.chance.random() * 0.02 if self.chance.random() < 0.1 else None
        return Ask(method, (self.user, *args), options, hurry)

    def _sight_of(self, memory_id: str) -> Sight:
        return {name: one for name, one in self.truth.sight(self.user).items() if name == memory_id}

    def _judge(self, what: str, before: Sight, found: Any) -> None:
        self.truth.judge(what, self.user, before, [(document.id, document.content) for document in found])


class Stress:
    """All callers on ``store``, for ``seconds``, beside ``steady`` memories of one user; what went wrong."""

    def __init__(self, store: MemoryStore, seconds: float, steady: int) -> None:
        self.store = store
        self.seconds = seconds
        self.truth = Truth(USERS)
        self.done = threading.Event()
        self.resting = threading.Event()
        self.errors: list[str] = []
        self.calls: Counter[str] = Counter()
        self.threads = 0
        self.growth = 0
        contents = {f"s{at}": f"{HEAVY} s{at} {word_of(at)} steady" for at in range(steady)}
        self.truth.add_there(HEAVY, contents, "facts")
        service = AgentMemoryStoreService(store, timeout=None).sync
        for memory_id, content in contents.items():
            service.save_memory(HEAVY, content, "facts", f"session{int(memory_id[1:]) % 50}", memory_id=memory_id)

    def run(self) -> None:
        """Runs the callers to their end; memory is compared after a fifth of the time and at the end."""
        callers = [Caller(number, self.truth, self.done, self.resting) for number in range(CALLERS)]
        alone, together = [one for one in callers if not one.is_async], [one for one in callers if one.is_async]
        with ThreadPoolExecutor(CALLERS) as pool:
            jobs = [pool.submit(self._live, caller) for caller in alone]
            jobs.append(pool.submit(asyncio.run, self._live_together(together)))
            time.sleep(self.seconds / 5)
            before = self._bytes_at_rest(callers)
            time.sleep(self.seconds * 4 / 5)
            late = time.monotonic() + PATIENCE_S  # a busy machine: until each call was made at least once
            while min(self.calls[name] for name in CALLS) == 0 and time.monotonic() < late:
                time.sleep(0.1)
            self.threads = threading.active_count()
            self.growth = self._bytes_at_rest(callers) - before
            self.done.set()
            for job in jobs:
                job.result()

    def _bytes_at_rest(self, callers: list[Caller]) -> int:
        """What is taken of the memory while nobody calls: the answers that callers have just then can be 100 MB."""
        self.resting.set()
        late = time.monotonic() + PATIENCE_S
        while not all(caller.rests for caller in callers) and time.monotonic() < late:
            time.sleep(REST_S)
        taken = resident_bytes()
        self.resting.clear()
        return taken

    def _live(self, caller: Caller) -> None:
        life = caller.life()
        answer: Any = None
        with suppress(StopIteration):
            while True:
                asked = life.send(answer)
                answer = None  # freed before the next call
                try:
                    answer = self._answer(asked)
                except Exception as error:  # noqa: BLE001 - the test's finding
                    answer = self._failed(asked, error)

    async def _live_together(self, callers: list[Caller]) -> None:
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(self._live_async(caller))

    async def _live_async(self, caller: Caller) -> None:
        life = caller.life()
        answer: Any = None
        with suppress(StopIteration):
            while True:
                asked = life.send(answer)
                answer = None
                try:
                    answer = await self._answer_async(asked, is_cancelled=caller.chance.random() < 0.5)
                except Exception as error:  # noqa: BLE001 - the test's finding
                    answer = self._failed(asked, error)

    def _answer(self, asked: Ask) -> Any:
        if asked.method == REST:
            return time.sleep(REST_S)
        self.calls[asked.method] += 1
        if asked.method == "purge":
            return purge_user_memories(self.store, *asked.args)
        if asked.method == "search":
            return self.store.search(*asked.args, **asked.options)
        service = AgentMemoryStoreService(self.store, timeout=asked.hurry or PATIENCE_S)
        return getattr(service.sync, asked.method)(*asked.args, **asked.options)

    async def _answer_async(self, asked: Ask, *, is_cancelled: bool) -> Any:
        if asked.method == REST:
            return await asyncio.sleep(REST_S)
        if asked.method == "purge":
            return await asyncio.to_thread(self._answer, asked)
        self.calls[asked.method] += 1
        if asked.method == "search":
            return await self.store.asearch(*asked.args, **asked.options)
        hurry = None if is_cancelled else asked.hurry
        service = AgentMemoryStoreService(self.store, timeout=hurry or PATIENCE_S)
        call = asyncio.ensure_future(getattr(service, asked.method)(*asked.args, **asked.options))
        if is_cancelled and asked.hurry is not None:
            await asyncio.wait([call], timeout=asked.hurry)
            call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            self.calls["gone"] += 1
            return GONE

    def _failed(self, asked: Ask, error: Exception) -> Gone:
        if asked.hurry is not None and isinstance(error, DeadlineExceeded | WriteUnknown):
            self.calls["gone"] += 1
        else:
            self.errors.append(f"{asked.method} {'in a hurry' if asked.hurry else ''}: {error!r}")
        return GONE


def resident_bytes() -> int:
    """What this process takes of the memory, without what the allocator only keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def check_what_is_there(store: MemoryStore, truth: Truth) -> None:
    """Of each user what must be there, in no namespace twice, found by its word."""
    service = AgentMemoryStoreService(store, timeout=PATIENCE_S).sync
    for user, expected in truth.expected().items():
        entries, total = list_user_memories(store, user, limit=None)
        found = {entry["key"]: entry["content"] for entry in entries}
        assert len(found) == len(entries) == total
        wrong = {name: (found.get(name), may) for name, may in expected.items() if found.get(name) not in may}
        assert wrong == {}
        assert set(found) <= set(expected)
        for name in list(found)[:20]:
            assert name in {hit.id for hit in service.recall_memories(user, found[name].split()[2])}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts memory as Linux does")
@pytest.mark.parametrize(
    "kind", [DATABASES[0], *(pytest.param(kind, marks=pytest.mark.full) for kind in DATABASES[1:])]
)
def test_nobody_is_harmed_by_what_others_do(kind: str, tmp_path: Path, full: bool) -> None:
    """One caller's disconnect, deadline, write or purge was another's error, missing row or double (many causes)."""
    awake_s()  # the process's clock beats for good
    before = set(threading.enumerate())
    with database(kind, tmp_path) as url:
        with open_store(url, embeddings=Indifferent(), index_bytes=INDEX_BYTES) as store:
            stress = Stress(store, *((FULL_SECONDS, FULL_STEADY) if full else (SECONDS, STEADY)))
            stress.run()
        with open_store(url, embeddings=Indifferent()) as store:
            check_what_is_there(store, stress.truth)
    assert stress.errors == []
    assert stress.truth.complaints == []
    assert min(stress.calls[name] for name in CALLS) > 0, stress.calls
    assert stress.threads - len(before) <= CALLERS + MOST_OWN_THREADS
    assert stress.growth <= MOST_GROWTH
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) - before == set()
