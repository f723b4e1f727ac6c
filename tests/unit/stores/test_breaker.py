"""The circuit breaker: open after five failures in a row, closed by any answer of the database."""

from __future__ import annotations

import time

import pytest

from inference_core.drivers import Plan, run
from inference_core.errors import StoreError, StoreUnavailable, VersionConflict
from inference_core.stores.breaker import PATIENCE, Breaker


def failing(error: StoreError) -> Plan[None]:
    raise error
    yield  # makes it a plan


def answering() -> Plan[str]:
    return "answer"
    yield  # makes it a plan


def opened() -> Breaker:
    breaker = Breaker("Reading it")
    for _ in range(PATIENCE):
        with pytest.raises(StoreUnavailable, match="away"):
            run(breaker.guarded(failing(StoreUnavailable("away"))))
    return breaker


def test_it_refuses_after_five_failures_until_a_call_is_answered() -> None:
    breaker = opened()
    with pytest.raises(StoreUnavailable, match="Reading it failed 5 times"):
        run(breaker.guarded(answering()))
    time.sleep(0.15)
    assert run(breaker.guarded(answering())) == "answer"
    assert not breaker.is_open


def test_a_refusal_of_the_database_is_an_answer() -> None:
    breaker = opened()
    time.sleep(0.15)
    with pytest.raises(VersionConflict):
        run(breaker.guarded(failing(VersionConflict("changed"))))
    assert run(breaker.guarded(answering())) == "answer"
