"""The conformance suite: our own stores keep all of it, and in other stores it finds what is wrong with them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance_support import URL_FILE, opened
from langgraph.store.base import GetOp, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

import inference_core.testing
from inference_core import MemoryStore, open_store
from inference_core.errors import ConfigurationError, MissingExtra
from inference_core.testing import StoreConformance
from inference_core.testing.conformance import runner
from inference_core.testing.conformance.__main__ import main
from inference_core.testing.conformance.runner import Outcome, verdicts
from inference_core.testing.conformance.subject import BrokenPromise, Factory, WatchedEmbeddings

HERE = "test_store_conformance"


class Ours(StoreConformance):
    strict = True
    crowd = 100
    writes = 10

    @pytest.fixture(autouse=True)
    def short_lives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Times of our stores are exact, so that they need not be long."""
        for name, seconds in {"_TICK_S": 0.1, "_BRIEF_S": 0.4, "_LONG_S": 1.2}.items():
            monkeypatch.setattr(runner, name, seconds)


class TestOurStores(Ours):
    factory = "conformance_support:opened"

    @pytest.fixture(autouse=True)
    def quick_starts(self, request: pytest.FixtureRequest, quick_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Processes that nobody kills are forked from one that has imported the package."""
        if "several_processes" in request.node.name:
            monkeypatch.setattr(sys, "executable", quick_python)

    @pytest.fixture
    def store(
        self, database_url: str, tmp_path: Path, embeddings: WatchedEmbeddings, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[MemoryStore]:
        (tmp_path / URL_FILE).write_text(database_url, encoding="utf-8")
        if database_url == "memory://":
            monkeypatch.setattr(TestOurStores, "factory", None)
        with opened(tmp_path, embeddings) as store:
            yield store


class TestWordsAlone(Ours):
    @pytest.fixture
    def store(self) -> Iterator[MemoryStore]:
        with open_store("memory://", embeddings=None) as store:
            yield store


class TestEncrypted(Ours):
    @pytest.fixture
    def store(self, tmp_path: Path, embeddings: WatchedEmbeddings) -> Iterator[MemoryStore]:
        keys = f"sqlite:///{tmp_path / 'keys.db'}"
        url = f"sqlite:///{tmp_path / 'memory.db'}"
        with open_store(url, keys=keys, encryption_key=bytes(32), embeddings=embeddings) as store:
            assert store.wait_ready(30)
            yield store


def in_memory(index: Any) -> InMemoryStore:
    return InMemoryStore(index=index)


class Faulty(InMemoryStore):
    """Does with each operation what `changed` says."""

    supports_ttl = True

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return super().batch([self.changed(op) for op in ops])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)

    def changed(self, op: Op) -> Op:
        raise NotImplementedError


class FoldsCase(Faulty):
    def changed(self, op: Op) -> Op:
        if isinstance(op, GetOp | PutOp):
            return op._replace(namespace=tuple(label.lower() for label in op.namespace))
        return op


class IgnoresOffset(Faulty):
    def changed(self, op: Op) -> Op:
        return op._replace(offset=0) if isinstance(op, SearchOp) else op


class KeepsTheDeleted(Faulty):
    def changed(self, op: Op) -> Op:
        return op._replace(key="") if isinstance(op, PutOp) and op.value is None else op


class Dumb(Faulty):
    def changed(self, op: Op) -> Op:
        raise ConnectionError("no answer")


FAULTS = {
    "FoldsCase": {"test_prefixes_are_whole_labels", "test_writes_stay_with_their_user"},
    "IgnoresOffset": {"test_pages_reach_everything"},
    "KeepsTheDeleted": {"test_put_get_delete", "test_writes_stay_with_their_user"},
    "Dumb": {"test_put_get_delete", "test_list_namespaces", "test_values_are_json"},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_store_is_caught(name: str) -> None:
    tried = [verdict for test in FAULTS[name] for verdict in verdicts(Factory(f"{HERE}:{name}"), test)]
    assert {verdict.promise.name for verdict in tried if verdict.outcome is Outcome.BROKEN} == FAULTS[name]


def test_a_table_of_what_a_store_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["langgraph.store.memory:InMemoryStore", "--only", "namespace"]) == 0
    assert capsys.readouterr().out == (
        'contract    kept    Invalid namespaces, such as () and ("a.b",), raise InvalidNamespaceError, and nothing is '
        "stored\n"
        "contract    kept    list_namespaces supports prefixes, suffixes, wildcards, max_depth, limit and offset\n"
        "robustness  BROKEN  Reading a missing key does not create its namespace\n"
        "                      namespaces: [('ghost', 'notes'), ('ghost', 'third')] instead of []\n"
        "robustness  BROKEN  A namespace is no longer listed once its last item is deleted\n"
        "                      namespaces: [('ada', 'notes')] instead of []\n"
        "contract: 2 of 2 kept, robustness: 0 of 2 kept\n"
    )
    assert main(["langgraph.store.memory:InMemoryStore", "--only", "deleting", "--strict"]) == 1
    assert main(["langgraph.store.memory:InMemoryStore", "--only", "copies"]) == 1


def test_the_findings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{HERE}:in_memory", "--only", "identical", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["promise"]["is_robustness"]) == ("broken", True)
    assert [one["outcome"] for one in found["findings"]] == ["broken", "broken"]
    assert "langgraph#8822" in found["promise"]["reason"]
    assert main([f"{HERE}:in_memory", "--only", "killed", "--json"]) == 0
    (untried,) = json.loads(capsys.readouterr().out)
    assert (untried["outcome"], untried["findings"][0]["note"]) == (
        "not applicable",
        "no factory that opens the same data again",
    )


@pytest.mark.parametrize("address", ["no_such_module:f", f"{HERE}:no_such_name", f"{HERE}:HERE", HERE, ""])
def test_an_address_that_leads_nowhere(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([address]) == 2
    assert capsys.readouterr().err


@asynccontextmanager
async def only_async(index: Any) -> AsyncGenerator[InMemoryStore]:
    class OnlyAsync(InMemoryStore):
        def batch(self, ops: Iterable[Op]) -> list[Result]:
            raise NotImplementedError

    yield OnlyAsync(index=index)


def test_a_store_with_one_face_is_tried_through_that() -> None:
    (verdict,) = verdicts(Factory(f"{HERE}:only_async"), "put_get")
    assert [finding.outcome for finding in verdict.findings] == [Outcome.UNTRIED, Outcome.KEPT]
    (verdict,) = verdicts(Factory(f"{HERE}:only_async"), "identical")
    assert verdict.notes() == ["ValueError: Number of embeddings (1) does not match number of indices (3) (async)"]


def test_robustness_is_reported_and_fails_only_if_strict() -> None:
    error = BrokenPromise("short")
    with pytest.raises(pytest.xfail.Exception, match="BrokenPromise: short"):
        StoreConformance().fall_short(error)
    (verdict,) = verdicts(Factory(f"{HERE}:in_memory"), "identical", Ours)
    assert verdict.outcome is Outcome.BROKEN


def test_a_class_without_a_store_says_what_is_missing(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store: Any = vars(StoreConformance)["store"]
    with pytest.raises(ConfigurationError, match="fixture `store`"):
        store._get_wrapped_function()(StoreConformance(), tmp_path, WatchedEmbeddings())


def test_pytest_is_needed_only_for_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "inference_core.testing.conformance.runner"
    monkeypatch.delitem(sys.modules, home)
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(MissingExtra, match=r"\[testing\]"):
        _ = inference_core.testing.StoreConformance
