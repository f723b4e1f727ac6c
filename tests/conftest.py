"""Shared fixtures: stores of every kind, a frozen clock, and the size of the run."""

from __future__ import annotations

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import coverage_support  # first: it ends the tracing of what is imported below
import postgres_server
import pytest
from commands import quick_commands
from databases import CLUSTER, KINDS, SHARED_KINDS, database
from deadlines import patient
from hypothesis_support import choose_size
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from inference_core import AgentMemoryStoreService, open_store
from inference_core.embeddings import local, multilingual
from inference_core.testing import FrozenClock

for _setting in [name for name in os.environ if name.startswith("AGENT_")]:
    del os.environ[_setting]  # tests expect the defaults, whatever is set where they run

TESTS = Path(__file__).parent
ALL_STORES = (*KINDS, "langgraph-memory", "langgraph-sqlite")
UNTRACED = frozenset({*ALL_STORES, CLUSTER, postgres_server.PARTITIONED}) - {"sqlite"}
"""The stores on which no coverage is measured; what differs on them, their backends, has a contract of its own."""
UNTRACED_OF = {
    "test_backend_contract.py": frozenset(
        {"sqlite", "keyed-sqlite", "postgres-debian", "memory", "file-sealed", "foreign-sqlite"}
        | {CLUSTER, postgres_server.PARTITIONED}
    ),
    "test_user_memories.py": frozenset(ALL_STORES) - {"langgraph-memory"},
}
"""In these modules it is only those; in the contract, they go through the code of another one."""
REACHED_BY_OTHERS = frozenset((TESTS / "untraced.txt").read_text("utf-8").split())
"""Modules and tests that reach what others reach too: without them the coverage of memory, retrieval and services is
the same, and that of the whole package two points less. Who doubts a line takes it out: it saves time, no more."""
SAMPLED = frozenset((TESTS / "sampled.txt").read_text("utf-8").split())
"""Tests of many like texts, damages or stores: a few of their cases run always, all with --full."""
SAMPLE = 5
"""So many cases of each of them."""
FACES = ("sync", "async")
OF_PROCESSES = frozenset({"test_several_processes_write_at_once", "test_a_killed_process_loses_nothing"})
"""With --full also through async methods, and on more stores: `faults` has the same of every database."""
STORES = frozenset({"any_store", "own_store", "database_url", "timed_store", "populated", "world", "limits", "kept"})
"""The fixtures whose parameters are kinds of stores."""
FURTHER = frozenset({"postgres", "redis", "file", "memory", "langgraph-sqlite"})
"""Stores on which all that sees only the protocol of stores runs with --full alone: what differs has contracts."""
OF_STORES = frozenset(
    {"test_backend_contract.py", "test_memory_store.py", "test_store_conformance.py", "test_langgraph_semantics.py"}
    | {"test_snapshot.py", "test_pages.py", "test_cold_recall.py", "test_time_to_live.py", "test_lifetimes.py"}
    | {"test_transfer.py", "test_earlier_versions.py", "test_sources.py", "test_other_packages.py"}
)
"""These contracts, and tests of faults, run on every store."""
ON_EACH_STORE = OF_STORES - {"test_memory_store.py", "test_store_conformance.py", "test_langgraph_semantics.py"}
"""Contracts of what each database does in its own way: each of their tests runs on every store.

The others see a backend through code that is the same above all of them: on the first store they run whole, and each
of their tests on one more in turn; with --full on all.
"""
STORES_IN_TURN = STORES | {"service", "url", "store", "shared_url"}
"""The fixtures whose stores take turns."""
IN_BOTH_FACES = frozenset({"sqlite", "langgraph-memory"})
"""On the other stores, contracts run through async methods with --full alone: what differs lies below both faces."""
FOLDERS = ("docs", "faults", "property", "security", "contract", "integration", "unit")
"""Those with the longest tests come first, so that no process is left alone with one of them."""
TRACED = frozenset({"unit", "contract", "integration"})
"""The folders whose tests coverage is measured with."""


def pytest_configure(config: pytest.Config) -> None:
    """Tests leave little garbage in cycles; looking for it seldom is enough."""
    # Tests press Ctrl-C in this process and in their own, which a shell ignores in what it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gone = {*UNTRACED_OF, *OF_STORES} - {path.name for path in TESTS.rglob("test_*.py")}
    gone |= {name for name in SAMPLED if not (TESTS / name.partition("::")[0]).exists()}
    assert not gone, f"{gone} are no modules any more: name them anew in {__file__}"
    gc.set_threshold(20_000, 20, 50)
    choose_size(full=bool(config.getoption("--full")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What reaches nothing of its own runs without the tracing, which takes twice as long."""
    if not config.getoption("--full"):
        items[:] = of_the_short_run(items)
    for item in items:
        given = getattr(item, "callspec", None)
        values = given.params.values() if given else ()
        kinds = {value for value in values if isinstance(value, str)}
        is_further = kinds & UNTRACED_OF.get(item.path.name, UNTRACED)
        test = test_of(item)
        is_same = not REACHED_BY_OTHERS.isdisjoint((test, test.partition("::")[0]))
        if is_further or is_same or folder_of(item) not in TRACED:
            item.add_marker(pytest.mark.untraced)
    # Traced tests come after the others: turning the tracing on and off again and again takes long, too.
    items.sort(key=lambda item: (is_traced(item), FOLDERS.index(folder_of(item))))


def of_the_short_run(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """What is not for --full alone; each case of a test in one face, in turn; of a test that is sampled, some cases."""
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not is_for_full(item):
            tests[test_of(item)].append(item)
    return [
        item
        for name, cases in tests.items()
        for item in (sample(cases) if name in SAMPLED else on_stores(in_turn(cases)))
    ]


def in_turn(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Both faces run the same operation, so each case goes through one of them; both, if there is one on each store."""
    faces: defaultdict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in cases:
        faces[tuple(part for part in parts_of(item) if part not in FACES)].append(item)
    if len({tuple(part for part in case if part not in ALL_STORES) for case in faces}) == 1:
        return cases
    return [same[at % len(same)] for at, same in enumerate(faces.values())]


def on_stores(cases: list[pytest.Item]) -> list[pytest.Item]:
    """All cases on the first store whose coverage is measured; on each of the others one, in turn.

    Each of a contract's goes through one face; a case on another store, where it can, through the other.
    A test that sees only what all stores have in common runs on as many others as it has cases beside its faces.
    """
    module = cases[0].path.name
    if folder_of(cases[0]) not in TRACED or module == "test_backend_contract.py":
        return cases
    stores: defaultdict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in cases:
        given: Any = getattr(item, "callspec", None)
        used = sorted(STORES_IN_TURN & given.params.keys()) if given else ()
        stores[tuple(given.params[name] for name in used if isinstance(given.params[name], str))].append(item)
    first = next((used for used in stores if UNTRACED_OF.get(module, UNTRACED).isdisjoint(used)), None)
    if first is None:
        return cases
    start = sha256(test_of(cases[0]).encode()).digest()[0]
    variants: defaultdict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in stores[first]:
        variants[tuple(part for part in parts_of(item) if part not in FACES)].append(item)
    others = [same for used, same in stores.items() if used != first]
    if others and module not in ON_EACH_STORE:
        others = [others[(start + at) % len(others)] for at in range(min(len(others), len(variants)))]
    kept = [same[(start + 1 + at) % len(same)] for at, same in enumerate(others)]
    if folder_of(cases[0]) != "contract":
        return [item for item in cases if item in stores[first] or item in kept]
    kept += [same[(start + at) % len(same)] for at, same in enumerate(variants.values())]
    return [item for item in cases if item in kept]


def parts_of(item: pytest.Item) -> tuple[str, ...]:
    """The parts of a case's name: one for each of its parameters."""
    given: Any = getattr(item, "callspec", None)
    return tuple(given._idlist) if given else ()


def sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    """As many as SAMPLE says, the same ones whatever else runs; drawn by their names."""
    return sorted(cases, key=lambda item: sha256(item.name.encode()).digest())[:SAMPLE]


def test_of(item: pytest.Item) -> str:
    """The test of a case, as the lists name it."""
    return item.nodeid.partition("[")[0].removeprefix("tests/")


def is_for_full(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    params: dict[str, object] = given.params if given else {}
    stores = {value for name in STORES if isinstance(value := params.get(name), str)}
    is_async = any(isinstance(value, str) and value == "async" for value in params.values())
    is_of_processes = getattr(item, "originalname", "") in OF_PROCESSES
    return (
        # The contract of backends says what is its own; the others' code is the same above it.
        (CLUSTER in item.name and item.path.name != "test_backend_contract.py")
        or (is_of_processes and (is_async or not stores <= {"sqlite"}))
        or (folder_of(item) == "contract" and is_async and not stores <= IN_BOTH_FACES)
        or (folder_of(item) != "faults" and item.path.name not in OF_STORES and bool(stores & FURTHER))
        or item.get_closest_marker("full") is not None
    )


def folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def is_traced(item: pytest.Item) -> bool:
    return item.get_closest_marker("untraced") is None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Turns the tracing on or off for this test and its fixtures, where coverage is measured."""
    coverage_support.trace(item.config, is_traced(item))


@pytest.hookimpl(trylast=True)  # after pytest-cov has begun
def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several processes, the first alone measures what imports reach; the one that hands out tests, nothing."""
    if session.config.pluginmanager.hasplugin("dsession"):
        coverage_support.stop_tracing()
    elif coverage_support.WORKER not in (None, "gw0"):
        coverage_support.trace(session.config, False)


def pytest_collection_finish() -> None:
    """What was imported stays; the garbage collector need not look at it again and again."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the large sizes")


def pytest_unconfigure() -> None:
    postgres_server.close_all()


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the large sizes were asked for."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(autouse=True, scope="session")
def default_deadlines() -> Iterator[Mapping[str, float]]:
    """Has tests run with deadlines that no machine misses; gives those that the package has by default, by name."""
    with patient() as defaults:
        yield defaults


@pytest.fixture(autouse=True, scope="session")
def models_opened_once() -> Iterator[None]:
    """Each file of a model is opened once in this process, and each vocabulary read once: either takes a while."""
    open_session, sessions = local.open_session, dict[object, Any]()

    def opened(model: Path | bytes) -> Any:
        if isinstance(model, bytes):
            return open_session(model)
        stat = model.stat()
        key = (model, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if key not in sessions:
            sessions[key] = open_session(model)
        return sessions[key]

    with pytest.MonkeyPatch.context() as patched:
        for module in (local, multilingual):
            patched.setattr(module, "open_session", opened)
        patched.setattr(multilingual, "Unigram", cache(multilingual.Unigram))
        yield


@pytest.fixture
def quick_python() -> Iterator[str]:
    """A Python for programs of their own that need no signal: it starts with what the package imports."""
    with quick_commands() as folder:
        yield f"{folder}/python"


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'memory.db'}"


@pytest.fixture(params=(*KINDS, CLUSTER))
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, of every kind."""
    with database(request.param, tmp_path) as url:
        yield url


@pytest.fixture(autouse=True, scope="session")
def versions_read_once() -> Iterator[None]:
    """The version of each package that is installed is read once: doctor asks for thirty, a file each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metadata, "version", cache(metadata.version))
        yield


@pytest.fixture(params=SHARED_KINDS)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database that several processes can open; no store was ever there."""
    with database(request.param, tmp_path, is_new=True) as url:
        yield url


@pytest.fixture
def own_store(database_url: str) -> Iterator[BaseStore]:
    """A store of this package, without embeddings, on every kind of database."""
    with open_store(database_url, embeddings=None) as store:
        yield store


@pytest.fixture(params=ALL_STORES)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStore]:
    """A store of this package or of LangGraph, without embeddings."""
    if request.param == "langgraph-memory":
        yield InMemoryStore()
    elif request.param == "langgraph-sqlite":
        with SqliteStore.from_conn_string(str(tmp_path / "langgraph.db")) as store:
            store.setup()
            yield store
    else:
        with database(request.param, tmp_path) as url, open_store(url, embeddings=None) as store:
            yield store


@pytest.fixture
def service(any_store: BaseStore, clock: FrozenClock) -> AgentMemoryStoreService:
    """A memory service of the agent "planner" on every kind of store."""
    return AgentMemoryStoreService(store=any_store, agent_name="planner", clock=clock)
