"""Errors as problems."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from server_support import Served

from inference_core import errors
from inference_core.server.api.routes import Call
from inference_core.server.problems import STATUSES, answer, name_of, problem_of, status_of

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.InferenceCoreError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_of_the_package_has_a_status(kind: type[errors.InferenceCoreError]):
    assert 400 <= status_of(kind) < 600
    assert name_of(kind).replace("-", "") == kind.__name__.lower()


def test_the_table_says_whose_fault_it_is():
    assert [status_of(one) for one in (errors.SecretFound, errors.UntrustedWrite, errors.WriteUnknown)] == [
        422,
        403,
        503,
    ]
    assert set(STATUSES) <= set(CLASSES)


def test_a_problem_is_valid_json_whatever_it_says():
    made = answer({"app": FastAPI()}, problem_of(422, "x", "lone \ud800"))
    assert json.loads(bytes(made.body))["detail"] == "lone \\ud800"
    assert made.media_type == "application/problem+json"


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (errors.StoreUnavailable("host db-7 is down"), 503, None),
        (errors.WriteUnknown("host db-7"), 503, "Idempotency-Key"),
        (errors.VersionConflict("at version 2, not 1"), 409, "at version 2"),
        (errors.StoreError("disk of db-7"), 500, None),
        (RuntimeError("Ada's secret"), 500, None),
    ],
)
async def test_failures_of_the_server_tell_nothing_of_its_inside(
    server: Served,
    error: Exception,
    status: int,
    told: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    async def fails(*_: Any, **__: Any) -> None:
        raise error

    async with server.client("ada") as client:
        await client.get("/v1/memories")  # the key is known now
        monkeypatch.setattr(Call, "run", fails)
        answer = await client.get("/v1/memories/1")
    assert answer.status_code == answer.json()["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in answer.headers) == isinstance(error, errors.StoreUnavailable)
    assert told is None or told in answer.json()["detail"]
    assert "db-7" not in answer.text
    assert "secret" not in answer.text
    assert "failed at" in caplog.text or not isinstance(error, RuntimeError)
