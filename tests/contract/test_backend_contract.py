"""The Backend protocol, on every database and, where it promises as much, on LangGraph's stores."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from databases import BACKEND_KINDS, CLUSTER, SHARED_KINDS, database
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from mongo_support import KIND as MONGODB
from mongo_support import mongodb
from postgres_server import PARTITIONED
from retrieval_support import floats, packed
from support import case

from inference_core.errors import ScopeTooLarge, StoreError, StoreUnavailable, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, DocumentMetadata
from inference_core.retrieval.vectors import pack_tokens
from inference_core.stores.backend import (
    EXTRA,
    Backend,
    Check,
    Outcome,
    PageRequest,
    Put,
    Remove,
    Rewrite,
    Row,
    SetVector,
    Write,
    apart,
)
from inference_core.stores.backends.foreign import ForeignBackend
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.stores.factory import open_backend
from inference_core.stores.indexing.indexes import IndexCache
from inference_core.stores.writer import SHARE, GroupWriter

SEALED = "file-sealed"
"""A file store whose lines are compressed and encrypted."""
KEYED = ("keyed-sqlite", "keyed-memory")
"""Databases whose rows are encrypted with a key for each user."""
OWN = (*BACKEND_KINDS, PARTITIONED, SEALED, *KEYED, MONGODB)
FOREIGN = ("foreign-memory", "foreign-sqlite")
START = datetime(2026, 1, 1, tzinfo=UTC)
USER: Namespace = ("u", "semantic")
VECTOR = packed((1, 0), (0, 1))
TOKENS = pack_tokens([floats((1, 0, 0), (0, 1, 0))])
HOSTILE = (
    "'",
    '"',
    "%",
    "_",
    "a_b",
    "axb",
    "a%",
    "abc",
    "A",
    "a",
    "'; DROP TABLE memory_rows; --",
    '","',
    '["u","semantic"]',
    "\\",
    "\n",
    "*",
    " ",
    "\u00e9",
    "e\u0301",
    "\u202eabc",
    "\U0001f469\u200d\U0001f52c",
    "x" * 900,
)


def make(kind: str, folder: Path) -> Iterator[Backend]:
    if kind == "foreign-sqlite":
        with SqliteStore.from_conn_string(str(folder / "langgraph.db")) as store:
            store.setup()
            yield ForeignBackend(store)
        return
    if kind == "foreign-memory":
        yield ForeignBackend(InMemoryStore())
        return
    if kind == MONGODB:
        with mongodb() as backend:
            yield backend
        return
    if kind == SEALED:
        with closing(open_backend(f"file:///{folder / 'sealed'}?compress=zstd", encryption_key=bytes(32))) as backend:
            yield backend
        return
    keys = f"sqlite:///{folder / 'keys.db'}" if kind in KEYED else None
    with (
        database(kind.removeprefix("keyed-"), folder) as url,
        closing(open_backend(url, keys=keys, encryption_key=bytes(32) if keys else None)) as backend,
    ):
        yield backend


@pytest.fixture(params=(*OWN, *FOREIGN))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from make(request.param, tmp_path)


@pytest.fixture(params=OWN)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from make(request.param, tmp_path)


@pytest.fixture(params=FOREIGN)
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from make(request.param, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "memory.db")
    yield backend
    backend.close()


def put(
    key: str,
    *,
    namespace: Namespace = USER,
    at: float = 0,
    text: str | None = None,
    kind: str = "",
    expected: int | None = None,
    created_at: datetime | None = None,
    situation: DocumentMetadata | None = None,
    tokens: bytes | None = None,
    **value: Any,
) -> Put:
    document = Document.of(text, situation or DocumentMetadata())._replace(tokens=tokens) if text else None
    return Put(
        namespace=namespace,
        key=key,
        value=json.dumps(value | ({"memory_type": kind} if kind else {})),
        document=document,
        kind=kind,
        created_at=created_at,
        updated_at=START + timedelta(seconds=at),
        expected=expected,
    )


def vector(key: str, version: int, model: str = "m1", tokens: bytes | None = None) -> SetVector:
    return SetVector(namespace=USER, key=key, version=version, model=model, vector=VECTOR, tokens=tokens)


def done(backend: Backend, *writes: Write) -> list[int]:
    versions: list[int] = []
    for outcome in backend.apply(list(apart(backend, writes))):
        assert isinstance(outcome, list), outcome
        versions += outcome
    return versions


def refused(outcome: Outcome) -> Exception:
    assert isinstance(outcome, Exception)
    return outcome


def one(backend: Backend, key: str, namespace: Namespace = USER) -> Row | None:
    (row,) = backend.get([(namespace, key)])
    return row


def some(backend: Backend, key: str, namespace: Namespace = USER) -> Row:
    row = one(backend, key, namespace)
    assert row is not None
    return row


def plain(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.value.items() if name != EXTRA}


def keys(rows: list[Row]) -> list[str]:
    return [row.key for row in rows]


def changed(backend: Backend, since: int = 0, namespace: Namespace = USER) -> dict[str, Document | None]:
    backend.heads([namespace])
    found = list(backend.changes(namespace, since))
    assert len({change.key for change in found}) == len(found)
    assert [change.seq for change in found] == sorted({change.seq for change in found})
    assert all(change.seq > since for change in found)
    return {change.key: change.document for change in found}


def test_get_answers_in_the_order_of_the_keys(backend: Backend):
    done(backend, put("a", n=1), put("b", n=2))
    rows = backend.get([(USER, "b"), (USER, "none"), (USER, "a"), (("x",), "a"), (USER, "b")])
    assert [row and row.key for row in rows] == ["b", None, "a", None, "b"]
    assert backend.get([]) == []
    row = some(backend, "a")
    assert (row.namespace, row.version, plain(row)) == (USER, 1, {"n": 1})
    assert row.created_at.tzinfo is not None
    assert row.updated_at.tzinfo is not None


def test_values_come_back_as_they_were(backend: Backend):
    value: dict[str, Any] = {
        "t": "Ünï \U0001f600 '\"%_\n",
        "n": 2**63,
        "f": 0.1,
        "x": None,
        "l": [1, [True, {"a": []}]],
        "": {"": ""},
    }
    done(backend, put("a", **value))
    assert plain(some(backend, "a")) == value


def test_a_changed_answer_changes_nothing_stored(own: Backend):
    done(own, put("a", tags=["x"]))
    some(own, "a").value["tags"].append("y")
    assert some(own, "a").value == {"tags": ["x"]}


@pytest.mark.parametrize("expected", [None, 0])
def test_a_put_of_a_new_key(backend: Backend, expected: int | None):
    assert done(backend, put("a", expected=expected)) == [1]


@pytest.mark.parametrize("expected", [None, 2])
def test_a_put_over_the_expected_version(backend: Backend, expected: int | None):
    done(backend, put("a"))
    done(backend, put("a"))
    assert done(backend, put("a", n=3, expected=expected)) == [3]
    assert plain(some(backend, "a")) == {"n": 3}


@pytest.mark.parametrize("write", [put("a", n=9, expected=0), put("a", n=9, expected=1), put("a", n=9, expected=3)])
def test_a_put_over_another_version_is_refused(backend: Backend, write: Put):
    done(backend, put("a", n=1))
    done(backend, put("a", n=2))
    (outcome,) = backend.apply([[write]])
    assert isinstance(outcome, VersionConflict)
    assert (some(backend, "a").version, plain(some(backend, "a"))) == (2, {"n": 2})


def test_a_put_that_expects_something_where_nothing_is_is_refused(backend: Backend):
    (outcome,) = backend.apply([[put("a", expected=1)]])
    assert isinstance(outcome, VersionConflict)
    assert one(backend, "a") is None


@pytest.mark.parametrize("expected", [None, 1])
def test_delete(backend: Backend, expected: int | None):
    done(backend, put("a", text="tea"))
    assert done(backend, Remove(namespace=USER, key="a", expected=expected)) == [0]
    assert (one(backend, "a"), backend.count([USER]), backend.page(PageRequest([USER], limit=9))) == (None, 0, [])


@pytest.mark.parametrize("expected", [None, 0])
def test_deleting_what_is_not_there(backend: Backend, expected: int | None):
    assert done(backend, Remove(namespace=USER, key="a", expected=expected)) == [0]
    assert changed(backend) == {}


@pytest.mark.parametrize("expected", [0, 2])
def test_a_delete_of_another_version_is_refused(backend: Backend, expected: int):
    done(backend, put("a"))
    (outcome,) = backend.apply([[Remove(namespace=USER, key="a", expected=expected)]])
    assert isinstance(outcome, VersionConflict)
    assert some(backend, "a").version == 1


@pytest.mark.parametrize("text", ["tea", None])
def test_a_rewrite_changes_neither_version_nor_times(own: Backend, text: str | None):
    made = put("a", n=1, at=5, kind="facts", text=text, tokens=TOKENS if text else None)
    done(own, made, put("b", n=2))
    before, head = some(own, "a"), own.heads([USER])[0]
    document = made.document and made.document._replace(text="mate", model="m1", vector=VECTOR)
    rewrite = Rewrite(namespace=USER, key="a", version=1, value='{"n":9}', document=document)
    assert done(own, rewrite) == [1]
    assert some(own, "a") == replace(before, value={"n": 9}, seq=head + 1)
    assert own.tokens([(USER, "a")]) == [TOKENS if text else None]
    assert changed(own)["a"] == (document and document._replace(tokens=None))
    assert own.count([USER], kinds=frozenset({"facts"})) == 1
    for late in (replace(rewrite, version=2), replace(rewrite, key="none")):
        done(own, late)
    assert own.heads([USER]) == [head + 1]


@pytest.mark.parametrize(("expected", "is_refused"), [(0, True), (1, False), (2, True)])
def test_a_check_changes_nothing_but_whether_its_batch_is_applied(backend: Backend, expected: int, is_refused: bool):
    done(backend, put("a", text="tea"))
    place = (USER[0] if backend.capabilities.split else "v", "episodic")
    heads, other = backend.heads([USER, place]), put("b", namespace=place)
    for key, wanted, refused in (("a", expected, is_refused), ("none", 0, False), ("none", 1, True)):
        check = Check(namespace=USER, key=key, expected=wanted)
        assert [isinstance(outcome, VersionConflict) for outcome in backend.apply([[check]])] == [refused]
    assert backend.heads([USER, place]) == heads
    outcomes = backend.apply([[other, Check(namespace=USER, key="a", expected=expected)]])
    assert [isinstance(outcome, VersionConflict) for outcome in outcomes] == [is_refused]
    if backend.capabilities.atomic:
        assert (backend.get([(place, "b")]) == [None]) is is_refused


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_nothing_follows_a_check_that_another_process_overtook(kind: str, tmp_path: Path):
    gates: Namespace = ("v", "gates")
    with database(kind, tmp_path) as url, closing(open_backend(url)) as one, closing(open_backend(url)) as other:
        for turn in range(4):
            gate = replace(put(f"gate{turn}"), namespace=gates)
            one.apply([[gate]])
            check = Check(namespace=gates, key=gate.key, expected=1)
            began = threading.Event()

            def passing(turn: int = turn, check: Check = check, began: threading.Event = began) -> None:
                for number in range(500):
                    if isinstance(one.apply([[check, put(f"{turn} {number}")]])[0], VersionConflict):
                        break
                    began.set()

            thread = threading.Thread(target=passing)
            thread.start()
            assert began.wait(60)
            other.apply([[gate]])
            passed = other.count([USER])
            thread.join()
            assert other.count([USER]) == passed


def test_the_version_grows_over_a_delete(own: Backend):
    versions = [done(own, put("a"))[0]]
    done(own, Remove(namespace=USER, key="a"))
    (outcome,) = own.apply([[put("a", expected=1)]])
    assert isinstance(outcome, VersionConflict)
    versions += done(own, put("a", expected=0))
    assert versions[1] > versions[0]
    assert some(own, "a").version == versions[1]


def test_one_bad_write_undoes_its_batch_and_only_its_batch(backend: Backend):
    done(backend, put("old", n=0))
    before = backend.heads([("v", "semantic")])
    outcomes = backend.apply(
        [
            [put("a", n=1), put("b", n=2)],
            [put("c", namespace=("v", "semantic")), put("old", n=9), put("a", expected=7)],
            [Remove(namespace=USER, key="old"), put("d", n=4)],
        ]
    )
    assert outcomes[0] == [1, 1]
    assert isinstance(outcomes[1], VersionConflict)
    assert outcomes[2] == [0, 1]
    assert sorted(keys(backend.page(PageRequest([USER], limit=9)))) == ["a", "b", "d"]
    assert one(backend, "c", ("v", "semantic")) is None
    assert backend.count([("v", "semantic")]) == 0
    assert backend.heads([("v", "semantic")]) == before


UNSTORABLE: dict[str, Put] = {
    "surrogate key": put("\ud800"),
    "surrogate label": put("a", namespace=("\ud800", "semantic")),
    "no kind": replace(put("b"), kind=cast("Any", None)),
    "large number": replace(put("b"), value=cast("Any", 2**70)),
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_write_that_cannot_be_stored_fails_alone(sqlite: SqliteBackend, name: str):
    outcomes = sqlite.apply([[put("a")], [put("x"), UNSTORABLE[name]], [put("c")]])
    assert isinstance(refused(outcomes[1]), StoreError)
    assert (outcomes[0], outcomes[2]) == ([1], [1])
    assert sorted(keys(sqlite.page(PageRequest([USER], limit=9)))) == ["a", "c"]


def test_the_writes_of_a_batch_see_each_other(own: Backend):
    gone = Remove(namespace=USER, key="a", expected=2)
    assert done(own, put("a", expected=0), put("a", expected=1), gone, put("b"), put("a", n=3, expected=0)) == [
        1,
        2,
        0,
        1,
        some(own, "a").version,
    ]
    assert plain(some(own, "a")) == {"n": 3}
    assert set(changed(own)) == {"a", "b"}


def test_regression_the_writes_of_a_batch_see_each_other_in_a_foreign_store(foreign: Backend):
    """Each was computed from the rows before the batch: the Remove did nothing, and every Put was version 1."""
    assert done(foreign, put("a", expected=0), put("a", expected=1), put("b"), Remove(namespace=USER, key="b")) == [
        1,
        2,
        1,
        0,
    ]
    assert (some(foreign, "a").version, one(foreign, "b")) == (2, None)
    assert done(foreign, put("b"), vector("b", 1)) == [1, 1]
    assert some(foreign, "b").value[EXTRA]["model"] == "m1"


def test_an_empty_batch(backend: Backend):
    assert backend.apply([]) == []
    assert backend.apply([[]]) == [[]]


def test_concurrent_writers_of_one_key_take_turns(own: Backend):
    done(own, put("a", n=0))

    def add(_: int) -> None:
        while True:
            row = some(own, "a")
            (outcome,) = own.apply([[put("a", n=row.value["n"] + 1, expected=row.version)]])
            if isinstance(outcome, list):
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert (some(own, "a").version, some(own, "a").value) == (41, {"n": 40})


def test_scopes_are_exact(backend: Backend):
    namespaces: list[Namespace] = [
        ("u", "episodic"),
        ("u", "episodic", "a"),
        ("u", "episodic", "a", "b"),
        ("u", "episodic2"),
        ("u", "Episodic"),
        ("u",),
        ("u2", "episodic"),
    ]
    done(
        backend,
        *(
            put("same", namespace=namespace, n=number, text=f"tea {number}")
            for number, namespace in enumerate(namespaces)
        ),
    )
    for number, namespace in enumerate(namespaces):
        assert [plain(row) for row in backend.page(PageRequest([namespace], limit=9))] == [{"n": number}]
        assert backend.count([namespace]) == 1
        assert plain(some(backend, "same", namespace)) == {"n": number}
        assert list(changed(backend, namespace=namespace)) == ["same"]
    done(backend, Remove(namespace=namespaces[0], key="same"))
    assert backend.count(namespaces) == len(namespaces) - 1
    assert backend.page(PageRequest([namespaces[0]], limit=9)) == []


def test_namespaces_match_whole_labels(backend: Backend):
    users = ["u1", "u10", "u", "u%", "u_", "U1", '"u1"']
    done(
        backend,
        *(put("k", namespace=(user, "semantic")) for user in users),
        put("k", namespace=("u1", "semantic", "x")),
    )
    named = [(user, "semantic") for user in users] + [("u1", "semantic", "x")]
    for asked in ((), *((user,) for user in users if user != "u10")):
        with case(str(asked)):
            assert backend.namespaces(asked) == sorted(name for name in named if name[: len(asked)] == asked)
    assert backend.namespaces(("u1", "semantic")) == [("u1", "semantic"), ("u1", "semantic", "x")]
    assert backend.namespaces(("u1", "sem")) == []
    assert backend.namespaces(("nobody",)) == []


def test_namespaces_without_rows_are_not_listed(own: Backend):
    done(own, put("a"), put("b", namespace=("v",)))
    done(own, Remove(namespace=USER, key="a"), Remove(namespace=("w",), key="none"))
    own.get([(("x",), "none")])
    assert own.namespaces() == [("v",)]


def test_more_namespaces_than_a_page(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inference_core.stores.backends.foreign._PAGE", 50)  # no other backend lists by pages
    done(backend, *(put("k", namespace=(f"u{number:04}", "semantic")) for number in range(105)))
    assert backend.namespaces() == [(f"u{number:04}", "semantic") for number in range(105)]


def test_the_newest_come_first_and_ties_are_ordered_by_key(backend: Backend):
    other: Namespace = ("u", "semantic", "x")
    entries = [(f"k{number:02}", number % 5, USER if number % 2 else other) for number in range(25)]
    done(backend, *(put(key, at=at, namespace=namespace) for key, at, namespace in reversed(entries)))
    wanted = [key for key, _, _ in sorted(entries, key=lambda entry: (-entry[1], entry[0]))]
    assert keys(backend.page(PageRequest([USER, other], limit=99))) == wanted
    pages = [keys(backend.page(PageRequest([USER, other], limit=4, offset=offset))) for offset in range(0, 28, 4)]
    assert [len(page) for page in pages] == [4, 4, 4, 4, 4, 4, 1]
    assert [key for page in pages for key in page] == wanted
    assert backend.page(PageRequest([USER, other], limit=4, offset=25)) == []
    assert backend.page(PageRequest([], limit=4)) == []
    assert backend.page(PageRequest([USER], limit=0)) == []


def test_an_update_does_not_make_a_row_new(backend: Backend):
    done(backend, put("a", at=0), put("b", at=1))
    done(backend, put("a", at=9))
    assert keys(backend.page(PageRequest([USER], limit=9))) == ["b", "a"]


def test_kinds_filter_before_the_cut(backend: Backend):
    done(backend, *(put(f"k{number}", at=number, kind="facts" if number % 3 else "goals") for number in range(9)))
    assert keys(backend.page(PageRequest([USER], kinds=frozenset({"goals"}), limit=2))) == ["k6", "k3"]
    assert keys(backend.page(PageRequest([USER], kinds=frozenset({"goals"}), limit=2, offset=2))) == ["k0"]
    assert len(backend.page(PageRequest([USER], kinds=frozenset({"goals", "facts"}), limit=99))) == 9
    assert backend.page(PageRequest([USER], kinds=frozenset(), limit=99)) == []
    assert backend.page(PageRequest([USER], kinds=frozenset({"GOALS", "' OR 1=1 --"}), limit=99)) == []


def test_count(backend: Backend):
    other: Namespace = ("u", "episodic")
    done(backend, put("a"), put("b"), put("c", namespace=other))
    assert [backend.count(namespaces) for namespaces in ([USER], [other], [USER, other], [("x",)], [])] == [
        2,
        1,
        3,
        0,
        0,
    ]


def test_changes_tell_each_key_once_and_only_what_is_new(backend: Backend):
    assert backend.heads([USER, ("x",)]) == [0, 0]
    done(backend, put("a", text="green tea", kind="facts"), put("b", text="oolong"), put("c"))
    (first,) = backend.heads([USER])
    start = changed(backend)
    assert start["a"] is not None
    assert start["a"].terms == "green tea"
    assert (set(start), start["c"]) == ({"a", "b", "c"}, None)
    assert changed(backend, first) == {}
    done(backend, put("a", text="black tea"), put("d", text="mate"))
    done(backend, put("a", text="white tea"), Remove(namespace=USER, key="b"))
    (second,) = backend.heads([USER])
    assert second > first
    later = changed(backend, first)
    assert {key: found and found.terms for key, found in later.items()} == {"a": "white tea", "b": None, "d": "mate"}
    assert changed(backend, second) == {}
    assert set(changed(backend)) == {"a", "b", "c", "d"}


def test_a_row_has_the_number_of_its_last_write(own: Backend):
    def numbers() -> dict[str, int]:
        page = {row.key: row.seq for row in own.page(PageRequest([USER], limit=9))}
        assert page == {key: some(own, key).seq for key in page}
        return page

    done(own, put("a", text="Rex"), put("b", at=1))
    done(own, put("b", namespace=("u", "episodic")))
    assert numbers() == {"a": 1, "b": 2}
    done(own, vector("a", 1), put("c"), Remove(namespace=USER, key="c"))
    assert numbers() == {"a": 3, "b": 2}
    assert own.heads([USER]) == [5]
    assert {change.key: change.seq for change in own.changes(USER, 0)} == {"b": 2, "a": 3, "c": 5}


def test_what_a_process_keeps_says_of_which_epoch_it_is(own: Backend):
    done(own, put("a", text="Rex"), put("b"))
    heads = own.heads([USER, ("u", "empty")])
    epochs = {*(change.epoch for change in own.changes(USER, 0)), some(own, "a").epoch, *(one.epoch for one in heads)}
    assert epochs == {heads[0].epoch}
    done(own, put("c"))
    assert own.heads([USER])[0].epoch == heads[0].epoch, "a write begins no epoch"


def test_a_foreign_store_numbers_no_writes(foreign: Backend):
    done(foreign, put("a"))
    assert some(foreign, "a").seq == 0


def test_a_change_tells_a_row_without_text_from_one_that_is_gone(backend: Backend):
    done(backend, put("text", text="Rex"), put("none"), put("gone", text="Bello"))
    backend.heads([USER])
    done(backend, Remove(namespace=USER, key="gone"))
    backend.heads([USER])
    found = {change.key: (change.document is not None, change.is_there) for change in backend.changes(USER, 0)}
    assert found == {"text": (True, True), "none": (False, True), "gone": (False, False)}


def test_changes_carry_kind_and_creation_time(backend: Backend):
    done(backend, put("a", text="tea", kind="facts", at=5))
    backend.heads([USER])
    (change,) = backend.changes(USER, 0)
    assert (change.kind, change.created_at) == ("facts", (START + timedelta(seconds=5)).timestamp())


def test_a_vector_is_added_to_the_version_it_was_made_of(backend: Backend):
    done(backend, put("a", text="tea"))
    (head,) = backend.heads([USER])
    assert done(backend, vector("a", 1)) == [1]
    document = changed(backend, head)["a"]
    assert document is not None
    assert (document.terms, document.model, document.vector) == ("tea", "m1", VECTOR)
    assert some(backend, "a").version == 1


def test_a_vector_of_an_older_text_is_skipped(backend: Backend):
    done(backend, put("a", text="tea"))
    done(backend, put("a", text="mate"))
    assert done(backend, vector("a", 1), vector("none", 1)) == [2, 0]
    document = changed(backend)["a"]
    assert document is not None
    assert (document.terms, document.vector) == ("mate", None)
    done(backend, Remove(namespace=USER, key="a"))
    assert done(backend, vector("a", 2)) == [0]
    assert changed(backend)["a"] is None


def test_a_row_without_text_gets_no_vector(own: Backend):
    done(own, put("a"))
    assert done(own, vector("a", 1)) == [1]
    assert changed(own) == {"a": None}


def tokens(backend: Backend, *keys: str) -> list[bytes | None]:
    return backend.tokens([(USER, key) for key in keys])


def test_tokens_are_kept_beside_their_text(own: Backend):
    done(own, put("a", text="tea", tokens=TOKENS), put("b", text="mate"), put("c"))
    done(own, put("d", namespace=("v", "semantic"), text="tea", tokens=b"other"))
    assert tokens(own, "c", "a", "none", "b", "a", "d") == [None, TOKENS, None, None, TOKENS, None]
    assert own.tokens([(("v", "semantic"), "d"), (("x",), "a")]) == [b"other", None]
    assert own.tokens([]) == []


def test_tokens_come_with_the_vector(own: Backend):
    done(own, put("a", text="tea"), put("b", text="mate", tokens=TOKENS))
    done(own, vector("a", 1, tokens=TOKENS), vector("b", 1, tokens=b"newer"))
    assert tokens(own, "a", "b") == [TOKENS, b"newer"]
    done(own, vector("a", 1, "m2"))
    assert tokens(own, "a") == [None]


FORGETTING: dict[str, Write] = {
    "delete": Remove(namespace=USER, key="a"),
    "another text": put("a", text="mate"),
    "no text": put("a", n=1),
    "a vector alone": vector("a", 1),
}


@pytest.mark.parametrize("name", FORGETTING)
def test_tokens_go_with_their_text(own: Backend, name: str):
    done(own, put("a", text="tea", tokens=TOKENS), put("b", text="tea", tokens=TOKENS))
    done(own, FORGETTING[name])
    assert tokens(own, "a", "b") == [None, TOKENS]


def test_tokens_do_not_come_back_with_their_key(own: Backend):
    done(own, put("a", text="tea", tokens=TOKENS))
    done(own, Remove(namespace=USER, key="a"), put("a", text="tea"))
    assert tokens(own, "a") == [None]
    done(own, put("a", text="tea", tokens=b"newer"))
    assert tokens(own, "a") == [b"newer"]


def test_tokens_of_an_older_text_are_skipped(own: Backend):
    done(own, put("a", text="tea"), put("a", text="mate", tokens=TOKENS))
    done(own, vector("a", 1, tokens=b"older"), vector("none", 1, tokens=b"none"))
    assert tokens(own, "a", "none") == [TOKENS, None]


def test_tokens_of_a_batch_that_is_undone_are_undone(own: Backend):
    done(own, put("a", text="tea", tokens=TOKENS))
    (outcome,) = own.apply([[put("a", text="mate", tokens=b"newer"), put("b", expected=7)]])
    assert isinstance(outcome, VersionConflict)
    assert tokens(own, "a") == [TOKENS]


def test_more_tokens_than_one_statement_holds(sqlite: SqliteBackend):
    done(sqlite, *(put(f"k{number}", text="tea", tokens=b"%d" % number) for number in range(1_203)))
    assert tokens(sqlite, *(f"k{number}" for number in range(1_203))) == [b"%d" % number for number in range(1_203)]


def test_changes_leave_tokens_out(backend: Backend):
    done(backend, put("a", text="tea", tokens=TOKENS), put("b", text="mate"))
    done(backend, vector("b", 1, tokens=TOKENS))
    assert [document and document.tokens for document in changed(backend).values()] == [None, None]


def test_a_row_without_text_gets_no_tokens(own: Backend):
    done(own, put("a"))
    done(own, vector("a", 1, tokens=TOKENS))
    assert tokens(own, "a") == [None]


def test_a_foreign_store_keeps_no_tokens(foreign: Backend):
    done(foreign, put("a", text="tea", tokens=TOKENS), put("b", text="mate"))
    done(foreign, vector("b", 1, tokens=TOKENS))
    assert tokens(foreign, "a", "b", "none") == [None, None, None]
    assert foreign.tokens([]) == []


SITUATIONS: dict[str, DocumentMetadata] = {
    "default": DocumentMetadata(),
    "all": DocumentMetadata("s", by_assistant=True, happened_at=1_700_000_000.125, importance=0.75),
    "long ago": DocumentMetadata(
        "\u4f1a\u8a71 '\"%", by_assistant=False, happened_at=-62_135_596_800.0, importance=0.0
    ),
    "whole numbers": DocumentMetadata("s", by_assistant=False, happened_at=7, importance=1),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_changes_carry_the_situation(backend: Backend, name: str):
    situation = SITUATIONS[name]
    done(backend, put("a", text="tea", situation=situation))
    document = changed(backend)["a"]
    assert document is not None
    assert document.situation == situation
    assert isinstance(document.situation.by_assistant, bool)
    done(backend, vector("a", 1))
    document = changed(backend)["a"]
    assert document is not None
    assert (document.situation, document.vector) == (situation, VECTOR)
    done(backend, put("a", text="tea", situation=DocumentMetadata("other")))
    document = changed(backend)["a"]
    assert document is not None
    assert document.situation == DocumentMetadata("other")


@pytest.mark.parametrize(
    "stored",
    [None, "s", [], ["s", False, None], ["s", 1, None, 0.5], [5, False, None, 0.5], ["s", False, "now", 0.5], {"a": 1}],
    ids=str,
)
def test_a_situation_that_another_program_changed_is_none(stored: Any):
    store = InMemoryStore()
    backend = ForeignBackend(store)
    store.put(USER, "a", {EXTRA: {"text": "tea", "situation": stored}})
    document = changed(backend)["a"]
    assert document is not None
    assert (document.terms, document.situation) == ("tea", DocumentMetadata())


def test_an_update_forgets_the_vector_and_the_text(backend: Backend):
    done(backend, put("a", text="tea"))
    done(backend, vector("a", 1))
    done(backend, put("a", n=1))
    assert changed(backend)["a"] is None
    done(backend, put("a", text="mate"))
    document = changed(backend)["a"]
    assert document is not None
    assert (document.terms, document.vector) == ("mate", None)


def test_texts_without_a_vector_of_the_model_are_pending(backend: Backend):
    done(backend, put("a", text="tea"), put("b", text="mate"), put("c"), put("d", text="gone"))
    done(backend, vector("a", 1), vector("b", 1, "m2"), Remove(namespace=USER, key="d"))
    backend.heads([USER])
    assert {(row.namespace, row.key, row.version, row.text) for row in backend.pending("m1", 9)} == {
        (USER, "b", 1, "mate")
    }
    assert {row.key for row in backend.pending("m3", 9)} == {"a", "b"}
    assert len(backend.pending("m3", 1)) == 1


def test_texts_at_keys_are_pending_too(backend: Backend):
    done(backend, put("a", text="tea"), put("b", text="mate"), put("c"), put("d", text="gone"), put("e", text="milk"))
    done(backend, put("b", namespace=("bob", "semantic"), text="water"))
    done(backend, vector("a", 1), Remove(namespace=USER, key="d"))
    backend.heads([USER])
    keys = [(USER, key) for key in ("a", "b", "c", "d", "nobody's")]
    (waiting,) = backend.pending("m1", 9, keys)
    assert (waiting.namespace, waiting.key, waiting.version, waiting.text) == (USER, "b", 1, "mate")
    assert {row.key for row in backend.pending("m2", 9, keys)} == {"a", "b"}
    assert len(backend.pending("m2", 1, keys)) == 1
    assert backend.pending("m1", 9, []) == []


def test_meta(backend: Backend):
    assert backend.get_meta("color") is None
    backend.set_meta("color", "red")
    backend.set_meta("color", "blue'%")
    assert backend.get_meta("color") == "blue'%"
    assert backend.get_meta("colour") is None


def test_the_first_of_two_settings_stays_if_both_are_to_be_the_first(backend: Backend):
    """Two processes that open a new store at once would each work with a key of its own."""
    for value in ("red", "blue"):
        backend.set_meta("color", value, is_first=True)
        assert backend.get_meta("color") == "red"


def test_labels_and_keys_are_data(backend: Backend):
    labels = [text for text in HOSTILE if text.strip()]
    done(backend, *(put(key, namespace=(label, "s"), n=[label, key]) for label in labels for key in HOSTILE))
    for label in labels:
        assert sorted(keys(backend.page(PageRequest([(label, "s")], limit=99)))) == sorted(HOSTILE)
        found = backend.get([((label, "s"), key) for key in HOSTILE])
        assert [row and plain(row) for row in found] == [{"n": [label, key]} for key in HOSTILE]
        assert backend.namespaces((label,)) == [(label, "s")]
    done(backend, Remove(namespace=("a_b", "s"), key="%"))
    assert backend.count([(label, "s") for label in labels]) == len(labels) * len(HOSTILE) - 1
    assert one(backend, "%", ("axb", "s")) is not None


CALLS: dict[str, Callable[[Backend], Any]] = {
    "apply": lambda backend: backend.apply([[put("a")]]),
    "get": lambda backend: backend.get([(USER, "a")]),
    "tokens": lambda backend: backend.tokens([(USER, "a")]),
    "newest": lambda backend: backend.page(PageRequest([USER], limit=1)),
    "count": lambda backend: backend.count([USER]),
    "namespaces": lambda backend: backend.namespaces(),
    "heads": lambda backend: backend.heads([USER]),
    "changes": lambda backend: list(backend.changes(USER, 0)),
    "pending": lambda backend: backend.pending("m", 1),
    "get_meta": lambda backend: backend.get_meta("a"),
    "set_meta": lambda backend: backend.set_meta("a", "b"),
}


def test_a_closed_store_refuses(own: Backend):
    done(own, put("a"))
    own.close()
    own.close()
    for name, call in CALLS.items():
        with case(name), pytest.raises(StoreUnavailable, match="closed"):
            call(own)


def test_a_foreign_store_belongs_to_its_maker(foreign: Backend):
    done(foreign, put("a"))
    foreign.close()
    assert some(foreign, "a").version == 1


def test_creation_time_is_kept_unless_it_is_given(own: Backend):
    early = START - timedelta(days=400, microseconds=7)
    done(own, put("a", at=0), put("b", at=0, created_at=early))
    done(own, put("a", at=5), put("b", at=5))
    assert [(row.created_at, row.updated_at) for row in (some(own, "a"), some(own, "b"))] == [
        (START, START + timedelta(seconds=5)),
        (early, START + timedelta(seconds=5)),
    ]
    done(own, put("a", at=6, created_at=early))
    assert some(own, "a").created_at == early
    done(own, Remove(namespace=USER, key="a"), put("a", at=7))
    assert some(own, "a").created_at == START + timedelta(seconds=7)


@pytest.mark.parametrize(
    "moment",
    [datetime.min, datetime.max, datetime(1969, 12, 31, 23, 59, 59, 999_999)],  # noqa: DTZ001, DTZ901 - naive on purpose
)
def test_instants_are_exact_and_naive_ones_are_utc(own: Backend, moment: datetime):
    done(own, put("a", created_at=moment))
    assert some(own, "a").created_at == moment.replace(tzinfo=UTC)
    assert keys(own.page(PageRequest([USER], limit=1))) == ["a"]


def test_an_instant_outside_of_the_calendar_fails_alone(backend: Backend):
    """The cause: what a time zone moves over the end of the calendar failed everybody's writes in some stores."""
    first = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
    outcomes = backend.apply([[put("a")], [put("x"), put("b", created_at=first)], [put("c")]])
    assert (outcomes[0], outcomes[2]) == ([1], [1])
    assert isinstance(refused(outcomes[1]), StoreError)
    assert sorted(keys(backend.page(PageRequest([USER], limit=9)))) == ["a", "c"]


def test_more_keys_than_one_statement_holds(sqlite: SqliteBackend):
    done(sqlite, *(put(f"k{number}", n=number) for number in range(1_203)))
    rows = sqlite.get([(USER, f"k{number}") for number in range(1_203)])
    assert [row and row.value["n"] for row in rows] == list(range(1_203))


def test_a_deleted_row_keeps_nothing_of_its_situation(sqlite: SqliteBackend):
    """Regression: a delete left the name of the session in the file."""
    done(sqlite, put("a", text="tea", situation=SITUATIONS["all"]))
    done(sqlite, Remove(namespace=USER, key="a"))
    with sqlite.connections.reader() as reader:
        kept = reader.execute("SELECT session, by_assistant, happened, importance FROM memory_rows").fetchall()
    assert kept == [tuple(DocumentMetadata())]


@pytest.mark.parametrize("column", ["session", "terms", "analyzer", "kind", "value"])
def test_a_damaged_row_gets_its_vector(sqlite: SqliteBackend, column: str):
    """Else it waits for ever, and no other text gets one in its transaction."""
    done(sqlite, put("a", text="tea"), put("b", text="mate"))
    with sqlite.connections.transaction() as writer:
        writer.execute(f"UPDATE memory_rows SET {column} = CAST(x'ff' AS TEXT) WHERE key = 'a'")
    done(sqlite, vector("a", 1), vector("b", 1))
    assert sqlite.pending("m1", 9) == []
    assert one(sqlite, "b") is not None


def test_an_offset_beyond_all_rows(sqlite: SqliteBackend):
    done(sqlite, put("a"))
    assert sqlite.page(PageRequest([USER], limit=1, offset=10**30)) == []
    assert keys(sqlite.page(PageRequest([USER], limit=10**30))) == ["a"]


UNASKABLE: dict[str, Callable[[Backend], Any]] = {
    "tokens": lambda backend: backend.tokens([(USER, "\ud800")]),
    "key": lambda backend: backend.get([(USER, "\ud800")]),
    "label": lambda backend: backend.count([("\ud800",)]),
}


@pytest.mark.parametrize("name", UNASKABLE)
def test_a_question_that_cannot_be_asked(sqlite: SqliteBackend, name: str):
    done(sqlite, put("a"))
    with pytest.raises(StoreError):
        UNASKABLE[name](sqlite)
    assert sqlite.count([USER]) == 1


def test_a_failed_transaction_leaves_the_store_usable(sqlite: SqliteBackend):
    with pytest.raises(StoreError, match="SQLite cannot hold this"):
        sqlite.set_meta("a", cast("Any", None))
    sqlite.set_meta("a", "b")
    assert sqlite.get_meta("a") == "b"


def test_a_read_that_is_under_way_outlives_the_close(sqlite: SqliteBackend):
    done(sqlite, put("a", text="tea"), put("b", text="mate"))
    feed = iter(sqlite.changes(USER, 0))
    first = next(feed)
    sqlite.close()
    assert [first.key, *(change.key for change in feed)] == ["a", "b"]


def test_one_file_is_set_up_once_by_many(tmp_path: Path):
    start = threading.Barrier(6)

    def opened(number: int) -> None:
        start.wait()
        backend = SqliteBackend(tmp_path / "deep" / "er" / "memory.db", durable=bool(number % 2))
        done(backend, put(f"k{number}"))
        backend.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(opened, range(6)))
    backend = SqliteBackend(tmp_path / "deep" / "er" / "memory.db")
    assert backend.count([USER]) == 6
    assert backend.name.endswith("memory.db")
    backend.close()


NAMES = {
    "sqlite": "sqlite:///",
    "postgres": "postgresql://",
    "postgres-debian": "postgresql://",
    PARTITIONED: "postgresql://",
    "redis": "unix://",
    CLUSTER: "redis+cluster://",
    "memory": "memory://",
    "file": "file:///",
    SEALED: "file:///",
    "keyed-sqlite": "sqlite:///",
    "keyed-memory": "memory://",
    MONGODB: "mongodb://",
    "foreign-memory": "InMemoryStore",
    "foreign-sqlite": "SqliteStore",
}


@pytest.mark.parametrize("kind", [*OWN, *FOREIGN])
def test_what_a_backend_promises(kind: str, tmp_path: Path):
    for backend in make(kind, tmp_path):
        promised = backend.capabilities
        is_own = kind in OWN
        assert (promised.compare_and_set, promised.change_feed) == (is_own, is_own)
        assert promised.atomic is is_own or kind == MONGODB  # which depends on the server
        assert promised.durable is (is_own and not kind.endswith(("memory", "redis", CLUSTER)))
        assert promised.split is (kind == CLUSTER)
        assert backend.name.startswith(NAMES[kind])


def test_regression_a_large_scope_of_a_foreign_store_is_not_ranked_but_listed_and_erased():
    """A user with more rows, such as audit events, could neither be listed nor erased."""
    store = InMemoryStore()
    backend = ForeignBackend(store, max_rows=1_000)
    done(backend, *(put(f"k{number}") for number in range(1_000)))
    assert backend.heads([USER]) == [1_000]
    done(backend, put("one more"))
    with pytest.raises(ScopeTooLarge, match="more than 1000 rows, too many to search"):
        backend.heads([USER])
    assert (backend.count([USER]), len(backend.page(PageRequest([USER], limit=2_000)))) == (1_001, 1_001)
    backend.erase(USER[0])
    assert (list(backend.inspect()), store.search(USER)) == ([], [])


def test_a_foreign_store_that_is_held_weakly_may_go():
    store = InMemoryStore()
    backend = ForeignBackend(store, weakly=True)
    done(backend, put("a"))
    del store
    with pytest.raises(StoreUnavailable, match="is gone"):
        backend.get([(USER, "a")])


def test_errors_of_a_foreign_store_are_translated(tmp_path: Path):
    with SqliteStore.from_conn_string(str(tmp_path / "langgraph.db")) as store:
        store.setup()
        backend = ForeignBackend(store)
        store.conn.close()
        with pytest.raises(StoreUnavailable, match="SqliteStore: ProgrammingError"):
            backend.get([(USER, "a")])
        (outcome,) = backend.apply([[put("a")]])
        assert isinstance(outcome, StoreUnavailable)


def test_a_foreign_store_is_safe_for_threads():
    backend = ForeignBackend(InMemoryStore())
    done(backend, *(put(f"k{number}") for number in range(2_000)))
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                backend.namespaces()
                backend.count([USER])
        except StoreError as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    end = time.monotonic() + 1.5
    number = 0
    while time.monotonic() < end and not failures:
        number += 1
        done(backend, put("k", namespace=(f"u{number}", "semantic")), put(f"more{number % 500}"))
    stop.set()
    reader.join()
    assert not failures


def test_rows_that_another_program_put_into_a_foreign_store():
    store = InMemoryStore()
    backend = ForeignBackend(store)
    values: dict[str, dict[str, Any]] = {
        "memory": {"content": "likes tea", "memory_type": "facts", "created_at": "2020-05-01T00:00:00"},
        "bad date": {"content": "x", "created_at": "not a date"},
        "no text": {"content": 5, "memory_type": 7, EXTRA: "not ours"},
    }
    for key, value in values.items():
        store.put(USER, key, value)
    assert {row.key: row.version for row in backend.page(PageRequest([USER], limit=9))} == dict.fromkeys(values, 1)
    assert keys(backend.page(PageRequest([USER], limit=9)))[-1] == "memory"
    assert keys(backend.page(PageRequest([USER], kinds=frozenset({"facts"}), limit=9))) == ["memory"]
    assert {key: found and found.terms for key, found in changed(backend).items()} == {
        "memory": "like tea",
        "bad date": "x",
        "no text": None,
    }
    assert done(backend, put("memory", n=1, expected=1)) == [2]


def test_a_queued_write_can_be_taken_back():
    backend = InMemoryBackend()
    writer = GroupWriter(backend, max_batches=1)
    with backend._lock:
        first, second, third = (writer.submit([put(key)]) for key in "abc")
        assert second.cancel()
    assert (first.result(60), third.result(5)) == ([1], [1])
    writer.close()
    assert keys(backend.page(PageRequest([USER], limit=9))) == ["a", "c"]
    with pytest.raises(StoreUnavailable, match="closed"):
        writer.submit([put("d")])


def test_regression_who_writes_thousands_holds_up_nobody(monkeypatch: pytest.MonkeyPatch):
    """A save waited until all writes of another user had been committed that were queued before it."""
    backend = InMemoryBackend()
    writer = GroupWriter(backend, max_batches=70)
    taken: list[list[str]] = []
    apply = backend.apply

    def noted(batches: Sequence[Sequence[Write]]) -> Sequence[Outcome]:
        taken.append([batch[0].namespace[0] for batch in batches if batch])
        return apply(batches)

    monkeypatch.setattr(backend, "apply", noted)
    with backend._lock:
        noisy = [writer.submit([put(f"k{number}")]) for number in range(300)]
        others = [writer.submit([put("k", namespace=(f"user{number}", "semantic"))]) for number in range(3)]
        nothing = writer.submit([])
    assert [one.result(60) for one in [*noisy, *others, nothing]] == [[1]] * 303 + [[]]
    writer.close()
    assert max(map(len, taken)) <= 70
    assert max(map(len, taken[:2])) <= 1 + SHARE + 4
    assert {"user0", "user1", "user2"} <= {user for transaction in taken[:2] for user in transaction}
    rows = backend.page(PageRequest([USER], limit=400))
    assert [row.key for row in sorted(rows, key=lambda row: row.seq)] == [f"k{number}" for number in range(300)]


def test_a_transaction_that_hangs_refuses_later_writes_until_it_ends():
    backend = InMemoryBackend()
    writer = GroupWriter(backend, hang_s=0.5)
    with backend._lock:
        hanging = writer.submit([put("a")])
        queued = writer.submit([put("b")])
        while writer._busy_s() < 0.5:
            time.sleep(0.01)
        with pytest.raises(StoreUnavailable, match="hangs in an earlier write"):
            writer.submit([put("c")])
    assert (hanging.result(60), queued.result(5)) == ([1], [1])
    assert writer.submit([put("c")]).result(60) == [1]
    writer.close()


def test_a_failed_transaction_is_told_to_everybody_in_it():
    backend = InMemoryBackend()
    writer = GroupWriter(backend)
    backend.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        writer.submit([put("a")]).result(60)
    writer.close()
    GroupWriter(backend).close()


def test_an_index_that_was_dropped_while_in_use_is_not_counted(own: Backend):
    done(own, put("a", text="tea"), put("b", namespace=("v", "semantic"), text="mate"))
    cache = IndexCache(own, "", max_bytes=0, wake=lambda _: None)
    (first,) = cache.views([USER])
    (second,) = cache.views([("v", "semantic")])
    assert (len(first), len(second)) == (1, 1)
    assert cache.pool([("v", "semantic")], [second]).views == [second]
    assert cache.nbytes == first.nbytes
    assert list(cache._shards) == [USER[0]]
    assert cache.views([]) == []


def test_an_index_follows_a_store_that_was_set_back(own: Backend):
    done(own, *(put(f"k{number}", text=f"tea {number}") for number in range(5)))
    cache = IndexCache(own, "", 10**9, wake=lambda _: None)
    assert cache.views([USER])[0].seq == own.heads([USER])[0]
    older = InMemoryBackend()
    done(older, put("k0", text="mate"))
    cache._backend = older
    (view,) = cache.views([USER])
    assert (view.seq, view.keys) == (1, ["k0"])
    assert cache.nbytes > 0


class Failover(InMemoryBackend):
    """Another server answers than the one that gave the heads, as behind a pooler, or while an old one still runs."""

    is_under_way = True

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        self._rows.epoch = 1
        yield from super().changes(namespace, since)
        self._rows.epoch = 1 - self.is_under_way


def test_an_index_of_changes_of_another_epoch_is_not_kept():
    backend = Failover()
    done(backend, put("a", text="tea"))
    cache = IndexCache(backend, "", 10**9, wake=lambda _: None)
    (view,) = cache.views([USER])
    assert (view.keys, view.epoch) == (["a"], 0)
    assert not cache._shards["u"].indexes
    backend.is_under_way = False
    assert [cache.views([USER])[0].epoch for _ in range(3)] == [0, 1, 1]
    assert cache._shards["u"].indexes[USER].epoch == 1


def test_an_index_does_not_keep_what_was_replaced(sqlite: SqliteBackend):
    cache = IndexCache(sqlite, "", 10**9, wake=lambda _: None)
    sizes: list[int] = []
    for number in range(400):
        done(sqlite, put(f"k{number % 3}", text=f"tea number{number}"))
        sizes.append(cache.views([USER])[0].slots)
    assert max(sizes) < 100
    (view,) = cache.views([USER])
    assert (view.document_frequency("number1"), view.document_frequency("number399")) == (0, 1)
