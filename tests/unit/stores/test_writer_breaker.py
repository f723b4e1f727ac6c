"""The circuit breaker: open after five failures in a row, closed by any answer of the database."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from inference_core.errors import StoreBusy, StoreError, StoreUnavailable, VersionConflict
from inference_core.stores.writer import PATIENCE, Breaker


def opened() -> Breaker:
    breaker = Breaker("Reading it")
    for _ in range(PATIENCE):
        with pytest.raises(StoreUnavailable, match="away"), breaker:
            raise StoreUnavailable("away")
    return breaker


def test_it_refuses_after_five_failures_until_a_call_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("inference_core.stores.writer.time", SimpleNamespace(monotonic=lambda: now))
    breaker = opened()
    with pytest.raises(StoreUnavailable, match="Reading it failed 5 times"):
        breaker.check()
    now += 0.15
    breaker.check()
    with pytest.raises(StoreUnavailable, match="Reading it failed 5 times"):
        breaker.check()
    with breaker:
        pass  # the database answers
    breaker.check()
    assert not breaker.is_open


@pytest.mark.parametrize("error", [VersionConflict("changed"), StoreBusy("others were faster")])
def test_a_refusal_of_the_database_is_an_answer(error: StoreError) -> None:
    breaker = opened()
    with pytest.raises(type(error)), breaker:
        raise error
    breaker.check()


def test_an_error_that_is_not_the_stores_says_nothing_about_it() -> None:
    breaker = opened()
    with pytest.raises(ZeroDivisionError), breaker:
        raise ZeroDivisionError
    assert breaker.is_open
