"""What readers see while the database fails under them or others write: a whole view, never half of one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from inference_core import AgentMemoryStoreService, MemoryStore
from inference_core.effects import run
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.retrieval.documents import Change
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.services.operations.scope import put_of
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing import indexes
from inference_core.stores.indexing.indexes import Snapshot
from inference_core.stores.indexing.search import Search, SearchResult

USER = "ada"
MANY = 4_500
"""More than are ranked at once, so that the rest is ranked when somebody asks for it."""
ROUNDS = 20
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


class Failing(InMemoryBackend):
    """Loses its connection after ``left`` more changes were read; once."""

    left: int | None = None

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        for change in super().changes(namespace, since):
            if self.left is not None:
                if self.left == 0:
                    self.left = None
                    raise StoreUnavailable("the connection was lost")
                self.left -= 1
            yield change


def service_on(backend: InMemoryBackend) -> SyncMemoryService:
    engine = StoreEngine(backend)
    return AgentMemoryStoreService(MemoryStore(engine), timeout=None).sync


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    # Only who asks reads changes: an index that followed a slow write by itself would leave fewer of them to fail at.
    monkeypatch.setattr(indexes, "_FOLLOW_S", 3_600.0)
    with closing(Failing()) as backend:
        yield backend


def contents(service: SyncMemoryService, query: str) -> set[str]:
    return {found.content for found in service.recall_memories(USER, query, 20)}


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("was_loaded", [False, True], ids=["first load", "later load"])
def test_a_connection_lost_while_an_index_loads_leaves_the_last_view(failing: Failing, after: int, was_loaded: bool):
    """The index had taken in keys and its head before the columns: every later recall of the user raised ValueError."""
    service = service_on(failing)
    kept = [service.save_memory(USER, f"zebra {number}", "facts") for number in range(3)]
    if was_loaded:
        assert contents(service, "zebra") == {"zebra 0", "zebra 1", "zebra 2"}
    service.update_memory(USER, kept[0], "zebra 0, striped")
    service.delete_memory(USER, kept[1])
    service.save_memory(USER, "zebra 3", "facts")
    service.save_memory(USER, "zebra 4", "facts")
    failing.left = after
    with pytest.raises(StoreUnavailable, match="the connection was lost"):
        service.recall_memories(USER, "zebra", 20)
    expected = {"zebra 0, striped", "zebra 2", "zebra 3", "zebra 4"}
    assert contents(service, "zebra") == expected
    service.save_memory(USER, "zebra 5", "facts")
    assert contents(service, "zebra") == expected | {"zebra 5"}
    assert service.list_memories(USER)[1] == 5


def filled(backend: InMemoryBackend) -> SyncMemoryService:
    """A service of one user with many memories in many sessions."""
    service = service_on(backend)
    run(service.scope.engine.write([put_of(note(number)) for number in range(MANY)]))
    return service


def note(number: int) -> MemoryRecord:
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
    return MemoryRecord(
        id=f"m{number}",
        content=f"note {WORDS[number % 12]} {WORDS[number * 7 % 12]} w{number}",
        memory_type=MemoryType.FACTS,
        category=MemoryCategory.SEMANTIC,
        namespace=(USER, "semantic"),
        created_at=now,
        updated_at=now,
        session_id=f"s{number % 300}",
    )


def test_a_view_stays_as_it_is_while_others_write():
    """What was ranked late read an index that another thread had changed since: IndexErrors, and rows of nobody's."""
    with closing(InMemoryBackend()) as backend, ThreadPoolExecutor(1) as other:
        service = filled(backend)
        namespaces = service.scope.namespaces.read_scopes(USER)
        search = Search(groups=[namespaces], text="w17 w25", limit=100, backfill=True)

        def looked_at(snapshot: Snapshot) -> tuple[list[str], list[str]]:
            before = keys(snapshot.search(search))
            other.submit(change, service, before[0], before[50]).result()
            return before, keys(snapshot.search(search))

        before, after = run(service.scope.engine.read(namespaces, looked_at, text=search.text))
        now = keys(run(service.scope.engine.search(search)))
    gone = {before[0], before[50]}
    left = [key for key in before if key not in gone]
    assert [key for key in after if key not in gone][: len(left)] == left  # others take the places of what is gone
    assert not gone & set(now)
    assert "new" in {*now}


def change(service: SyncMemoryService, *gone: str) -> None:
    """Deletes and saves, and has the user's index take it in."""
    for key in gone:
        assert service.delete_memory(USER, key)
    service.save_memory(USER, "note w17 w25", "facts", session_id="s1", memory_id="new")
    service.recall_memories(USER, "w17", 1)


def keys(result: SearchResult) -> list[str]:
    return [found.row.key for found in result.groups[0]]


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("threads_switch_often")
def test_readers_beside_a_writer_of_the_same_user():
    """283 IndexErrors beside 2,136 recalls: the index was read after its lock was free."""
    with closing(InMemoryBackend()) as backend, ThreadPoolExecutor(3) as pool:
        service = filled(backend)
        done = threading.Event()

        def write() -> None:
            for _ in range(ROUNDS):
                made = service.save_memory(USER, "note new alpha", "facts", session_id="s1")
                service.recall_memories(USER, "alpha", 1)
                service.delete_memory(USER, made)
                service.recall_memories(USER, "alpha", 1)
            done.set()

        def read() -> int:
            rounds = 0
            while not done.is_set():
                found = service.recall_memories(USER, "w17 w25", 20, backfill=True)
                assert {hit.content.split()[-1] for hit in found[:2]} == {"w17", "w25"}
                rounds += 1
            return rounds

        writer, *readers = pool.submit(write), pool.submit(read), pool.submit(read)
        writer.result()
        assert sum(reader.result() for reader in readers) > 0
