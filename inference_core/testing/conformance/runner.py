"""All promises, tested on the stores of a factory without pytest, and `StoreConformance`, the same as a pytest class.

The promises here go beyond the contract: reliable timestamps, expiry, no traces of deleted items, nothing stored in
part.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest import SkipTest

from langgraph.store.base import Item, PutOp, SearchOp

from inference_core.errors import ConfigurationError, MissingExtra
from inference_core.testing.conformance.contract import ItemContract, SearchContract
from inference_core.testing.conformance.robustness import SearchRobustness, SharedRobustness
from inference_core.testing.conformance.subject import (
    MODES,
    NS,
    Factory,
    Location,
    Made,
    Mode,
    NotApplicable,
    Promise,
    Promises,
    Robustness,
    Subject,
    WatchedEmbeddings,
    expect,
    expect_equal,
    expect_invalid_namespace,
    expect_same,
    fail,
    is_refused,
    promises_of,
    trying,
)

_MINUTE_S: Final = 60.0
_TICK_S: Final = 1.1
"""Long enough for timestamps in whole seconds to change."""
_BRIEF_S: Final = 1.2
_LONG_S: Final = 2.4


class TimeRobustness(Robustness):
    """When an item was created and updated, and when it expires."""

    def test_updates_keep_the_creation_time(self, subject: Subject) -> None:
        """An update keeps created_at and advances updated_at.

        InMemoryStore and SqliteStore reset created_at, so that the age of a memory is lost.
        """
        subject.put(NS, "a", {"n": 1})
        first = _got(subject, "a")
        time.sleep(_TICK_S)
        subject.put(NS, "a", {"n": 2})
        second = _got(subject, "a")
        expect_equal(second.created_at, first.created_at, "created_at after an update")
        expect(second.updated_at > first.updated_at, "updated_at did not move")

    def test_times_have_a_zone(self, subject: Subject) -> None:
        """Timestamps are timezone-aware and current.

        SqliteStore returns naive timestamps: comparing one with an aware timestamp raises TypeError.
        """
        subject.put(NS, "a", {"n": 1})
        for item in (_got(subject, "a"), *subject.search(NS)):
            expect(item.created_at.tzinfo and item.updated_at.tzinfo, f"{item.updated_at!r} is naive")
            away = abs(datetime.now(UTC) - item.updated_at)
            expect(away < timedelta(minutes=1), f"updated_at differs from now by {away}")

    def test_times_are_finer_than_a_second(self, subject: Subject) -> None:
        """Items that were put 50 ms apart have different timestamps, in the right order.

        SqliteStore stores whole seconds: what an agent learnt within one second has no order.
        """
        for key in "abc":
            subject.put(NS, key, {"n": 1})
            time.sleep(0.05)
        times = [_got(subject, key).updated_at for key in "abc"]
        expect(times[0] < times[1] < times[2], f"timestamps do not rise: {[f'{at:%H:%M:%S.%f}' for at in times]}")

    def test_expired_items_are_gone(self, subject: Subject) -> None:
        """An expired item is not returned, even before it is swept, and reading it does not revive it.

        SqliteStore and PostgresStore return it until a sweep, which nothing starts by default, and a get extends its
        life. PostgresStore hides it if it was opened with ttl={"omit_expired": True}.
        """
        subject.expiring().put(NS, "kept", {"text": "tea"})
        for key in ("got", "peeked"):
            subject.put(NS, key, {"text": "tea"}, ttl=_BRIEF_S / _MINUTE_S)
        time.sleep(_BRIEF_S / 2)
        subject.get(NS, "peeked", refresh_ttl=False)
        time.sleep(_BRIEF_S)
        expect_equal(subject.value(NS, "got"), None, "get of an expired item")
        expect_equal(subject.value(NS, "peeked", refresh_ttl=False), None, "get after a get without refresh_ttl")
        expect_equal(subject.keys(NS), ["kept"], "search")
        expect_equal(subject.keys(NS, query="tea"), ["kept"], "search with a query")

    def test_reading_extends_a_life(self, subject: Subject) -> None:
        """Reading an item restarts its time to live, even one of a few seconds.

        PostgresStore stores whole minutes: 0.2 becomes 0, and with omit_expired the first read makes the item expire.
        """
        subject.expiring()
        started = time.monotonic()
        for key in ("got", "found"):
            subject.put(NS, key, {"n": 1}, ttl=_LONG_S / _MINUTE_S)
        time.sleep(_LONG_S / 2)
        subject.get(NS, "got")
        half_way = subject.keys(NS)
        if time.monotonic() - started > _LONG_S * 0.9:
            raise NotApplicable("this machine is too slow for a time to live of seconds")
        expect_same(half_way, ["found", "got"], "keys half-way through the time to live")
        time.sleep(_LONG_S / 2 + 0.3)
        reached = time.monotonic() - started
        if reached > _LONG_S * 1.4:
            raise NotApplicable("this machine is too slow for a time to live of seconds")
        expect_same(subject.keys(NS, refresh_ttl=False), ["found", "got"], "keys after the original time to live")


def _got(subject: Subject, key: str) -> Item:
    item = subject.get(NS, key)
    if item is None:
        fail(f"{key!r} is not there")
    return item


class TraceRobustness(Robustness):
    """Vectors and namespaces that outlive their items; values that are neither rejected nor stored unchanged."""

    def test_no_vector_after_index_false(self, subject: Subject) -> None:
        """After put(index=False), the item is no longer found by its former text.

        InMemoryStore (langgraph#8214), SqliteStore and PostgresStore keep the old vector: a secret that was replaced is
        still found, with a score of 1.
        """
        subject.ranking().put(NS, "a", {"text": "secret saxophone"})
        subject.put(NS, "a", {"text": "plain piano"}, index=False)
        _expect_unranked(subject, "secret saxophone")

    def test_no_vector_of_a_removed_field(self, subject: Subject) -> None:
        """After a put without the indexed field, the item is no longer found by its former text."""
        subject.ranking().put(NS, "a", {"text": "secret saxophone", "m": 1}, index=["text"])
        subject.put(NS, "a", {"m": 2}, index=["text"])
        _expect_unranked(subject, "secret saxophone")

    def test_no_vector_after_a_delete(self, subject: Subject) -> None:
        """A delete removes the vector too: a new item under the same key is not found by the old text.

        SqliteStore leaves vectors behind (foreign_keys is off), and a later put brings them back.
        """
        subject.ranking().put(NS, "a", {"text": "secret saxophone"})
        subject.delete(NS, "a")
        expect_equal(subject.keys(NS, query="secret saxophone"), [], "after the delete")
        subject.put(NS, "a", {"text": "plain piano"}, index=False)
        _expect_unranked(subject, "secret saxophone")

    def test_reading_leaves_no_namespace(self, subject: Subject) -> None:
        """Reading a missing key does not create its namespace.

        InMemoryStore lists a namespace that was only read: a lookup appears as a user.
        """
        subject.get(("ghost", "notes"), "a")
        subject.search(("ghost", "other"))
        subject.delete(("ghost", "third"), "a")
        expect_equal(subject.list_namespaces(), [], "namespaces")

    def test_deleting_leaves_no_namespace(self, subject: Subject) -> None:
        """A namespace is no longer listed once its last item is deleted.

        InMemoryStore lists it forever: the name of an erased user remains.
        """
        subject.put(NS, "a", {"n": 1})
        subject.delete(NS, "a")
        expect_equal(subject.list_namespaces(), [], "namespaces")

    def test_nan_and_infinity(self, subject: Subject) -> None:
        """NaN and infinity are either rejected or stored unchanged.

        SqliteStore turns them into null.
        """
        _expect_kept_or_refused(subject, {"nan": float("nan"), "infinity": float("inf"), "inner": [[float("-inf")]]})

    def test_nul_and_lone_surrogates(self, subject: Subject) -> None:
        """Text with NUL characters or lone surrogates is either rejected or stored unchanged.

        Tools and web pages return such text; a rejected put must leave the previous value in place.
        """
        _expect_kept_or_refused(subject, {"nul": "a\x00b", "surrogate": "\ud800", "inner": [{"k": "\udfff"}]})

    def test_large_integers(self, subject: Subject) -> None:
        """Integers beyond 64 bits are either rejected or stored unchanged.

        An account number that was turned into a float is a different number.
        """
        _expect_kept_or_refused(subject, {"63 bits": 2**63, "64 bits": -(2**64), "200 bits": 2**200})

    def test_what_is_not_json(self, subject: Subject) -> None:
        """Dates, sets and bytes are either rejected or stored unchanged.

        SqliteStore turns dates into text: what is read is not what was put.
        """
        odd = {"date": datetime(2026, 1, 1, tzinfo=UTC), "set": {1}, "bytes": b"x"}
        _expect_kept_or_refused(subject, odd)

    def test_a_refused_batch_leaves_nothing(self, subject: Subject) -> None:
        """If one put of a batch is rejected, none of its puts is stored.

        Half a batch is a state that no caller asked for.
        """
        bad = {"o": object(), "nul": "\x00", "nan": float("nan"), "surrogate": "\ud800"}
        puts = [PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", bad), PutOp(NS, "c", {"n": 1})]
        left = "" if is_refused(subject.batch, puts) else "abc"
        expect_same(subject.keys(NS), left, "keys")

    def test_odd_keys(self, subject: Subject) -> None:
        """Any string used as a key is either rejected or kept apart from all other keys.

        Keys come from file names, titles and models.
        """
        kept: dict[str, dict[str, Any]] = {}
        for key in ("", " ", "a", "A", "a ", "a\x00", "\ud800", "é", "e\u0301", "k" * 5_000, "'", "%", "../x"):
            if not is_refused(subject.put, NS, key, {"key": ascii(key)}):
                kept[key] = {"key": ascii(key)}
        for key, value in kept.items():
            expect_equal(subject.value(NS, key), value, f"the value of {ascii(key)[:20]}")
        expect_equal(len(subject.keys(NS, limit=100)), len(kept), "number of items")

    def test_raw_batches_are_checked(self, subject: Subject) -> None:
        """Operations passed directly to batch are validated like method calls.

        InMemoryStore accepts ("a.b",) in a raw batch; no method call can read that item again.
        """
        for op in (PutOp(("a.b",), "k", {"n": 1}), SearchOp(("a.b",)), PutOp(("",), "k", {"n": 1})):
            expect_invalid_namespace(f"{type(op).__name__} of an invalid namespace", subject.batch, [op])


def _expect_unranked(subject: Subject, query: str) -> None:
    ranked = [(item.key, item.score) for item in subject.search(NS, query=query) if item.score is not None]
    expect_equal(ranked, [], f"ranked by {query!r}")


def _expect_kept_or_refused(subject: Subject, values: dict[str, Any]) -> None:
    for name, odd in values.items():
        subject.put(NS, name, {"before": True})
        if is_refused(subject.put, NS, name, {"odd": odd}):
            expect_equal(subject.value(NS, name), {"before": True}, f"the item after its {name} was rejected")
        else:
            expect_equal(repr(subject.value(NS, name)), repr({"odd": odd}), name)


class EveryPromise(ItemContract, SearchContract, SearchRobustness, TraceRobustness, TimeRobustness, SharedRobustness):
    """What LangGraph documents, and where stores are known to fall short."""


class Outcome(StrEnum):
    """Whether a store keeps a promise."""

    KEPT = "kept"
    BROKEN = "broken"
    UNTRIED = "not applicable"


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """The result of testing a promise in one mode; ``note`` says how it was broken, or why it was not tested."""

    mode: Mode
    outcome: Outcome
    note: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and its results, one for each mode."""

    promise: Promise
    findings: tuple[PromiseResult, ...]

    @property
    def outcome(self) -> Outcome:
        """Broken if any mode breaks it, kept if any keeps it."""
        outcomes = {finding.outcome for finding in self.findings}
        return next(one for one in (Outcome.BROKEN, Outcome.KEPT, Outcome.UNTRIED) if one in outcomes)

    def notes(self) -> list[str]:
        """The reasons for the outcome, without duplicates; each names its modes, unless it holds for all of them."""
        shown = [finding for finding in self.findings if finding.outcome is self.outcome and finding.note]
        modes = {
            note: [result.mode for result in shown if result.note == note]
            for note in dict.fromkeys(f.note for f in shown)
        }
        return [f"{note} ({', '.join(names)})" if len(names) < len(MODES) else note for note, names in modes.items()]


def verdicts(factory: Factory, only: str = "", kind: type[Promises] = EveryPromise) -> Iterator[Verdict]:
    """Tests the promises of ``kind`` whose names contain ``only``, each on a new store. Raises ConfigurationError."""
    factory.function()
    for promise in promises_of(kind):
        if only in promise.name:
            test, findings = getattr(kind(), promise.name), list[PromiseResult]()
            for mode in MODES:
                started, outcome, note = time.perf_counter(), Outcome.KEPT, ""
                with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
                    place, embeddings = Location(Path(folder), factory), WatchedEmbeddings()
                    try:
                        with trying(factory.make(place.folder, embeddings), mode, embeddings, place) as subject:
                            test(subject)
                    except SkipTest as reason:
                        outcome, note = Outcome.UNTRIED, str(reason)
                    except AssertionError as error:
                        outcome, note = Outcome.BROKEN, " ".join(str(error).split())
                    except Exception as error:  # noqa: BLE001 - whatever a store raises breaks the promise
                        text = " ".join(str(error).split())
                        outcome, note = Outcome.BROKEN, f"{type(error).__name__}: {text}"[:300]
                findings.append(PromiseResult(mode, outcome, note, time.perf_counter() - started))
            yield Verdict(promise, tuple(findings))


try:
    import pytest
except ImportError as error:
    raise MissingExtra("StoreConformance", "testing") from error


class StoreConformance(EveryPromise):
    """Tests of a LangGraph store, each through its sync and its async methods; subclass it as ``Test…``.

    Override the fixture ``store``: an empty store for each test, or a context manager of one (an async one is entered
    on the suite's event loop). Or set ``factory`` to the address of such a function, ``"module:function"``, with the
    parameters that `Factory` names: then the promises about several processes are tested too. A broken robustness
    promise is an expected failure (``pytest -rx`` lists it), unless ``strict`` is set.
    """

    factory: ClassVar[str | None] = None

    @pytest.fixture
    def embeddings(self) -> WatchedEmbeddings:
        """The suite's embeddings, for the store's index; promises about vectors are skipped without them."""
        return WatchedEmbeddings()

    @pytest.fixture
    def store(self, tmp_path: Path, embeddings: WatchedEmbeddings) -> Made:
        """The store to test."""
        if self.factory is None:
            raise ConfigurationError('Override the fixture `store`, or set `factory` to "module:function"')
        return Factory(self.factory).make(tmp_path, embeddings)

    @pytest.fixture(params=MODES)
    def subject(
        self, request: pytest.FixtureRequest, store: Made, embeddings: WatchedEmbeddings, tmp_path: Path
    ) -> Iterator[Subject]:
        """The store through one of its modes."""
        place = Location(tmp_path, Factory(self.factory) if self.factory else None)
        with trying(store, request.param, embeddings, place) as subject:
            yield subject

    def fall_short(self, error: Exception) -> None:
        """Reports a broken robustness promise."""
        pytest.xfail(f"{type(error).__name__}: {error}")
