"""Answers of bad form (T5): none breaks anything, and what can be recovered of them is."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest
from extraction_support import NOW, ROME, Driver, arun_now, reply_of, said
from langchain_core.messages import AIMessage
from support import load

from inference_core.effects import run
from inference_core.errors import ModelError
from inference_core.ingestion.extraction.extractor import ModelExtractor
from inference_core.outbox.messages import Candidate
from inference_core.testing import ScriptedChatModel

CASES = load("bad_model_outputs.json")
BAR = 0.9
MAX_SECONDS = 5.0


@cache
def by_run() -> list[tuple[dict[str, Any], list[Candidate], float]]:
    """Each case, what `run` makes of it, and the seconds that it takes."""
    found: list[tuple[dict[str, Any], list[Candidate], float]] = []
    for case in CASES:
        started = time.process_time()
        found.append((case, recovered(case), time.process_time() - started))
    return found


def recovered(case: dict[str, Any], drive: Driver = run) -> list[Candidate]:
    """The candidates of a case; none if its answers hold nothing usable."""
    model = ScriptedChatModel(turns=[reply_of(case), AIMessage(case.get("repair", "unexpected"))])
    try:
        given = drive(ModelExtractor([model]).extract([said()], [ROME], NOW))
    except ModelError:
        return []
    finally:
        assert len(model.requests) <= 2
    return list(given.candidates)


def test_the_corpus_is_large_and_its_names_differ():
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("face", ["run", pytest.param("arun", marks=pytest.mark.full)])
def test_nine_in_ten_of_what_is_recoverable_are_recovered_and_nothing_breaks(face: str):
    wanted = kept = 0
    lost: list[str] = []
    for case, by_one_face, _ in by_run():
        contents = [one.content for one in (by_one_face if face == "run" else recovered(case, arun_now))]
        wanted += len(case["recoverable"])
        kept += sum(content in contents for content in case["recoverable"])
        lost += [case["name"]] * (not {*case["recoverable"]} <= {*contents})
    assert kept >= BAR * wanted, lost


def test_nothing_is_made_up_and_nothing_that_was_not_offered_is_touched():
    for case, found, _ in by_run():
        assert {one.content for one in found} <= {*case["recoverable"]}, case["name"]
        assert {one.target for one in found} <= {None, ROME.memory_id}


def test_large_answers_are_read_in_time():
    for case, _, seconds in by_run():
        assert seconds < MAX_SECONDS, case["name"]
