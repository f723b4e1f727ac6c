"""Answers of bad form (T5): none breaks anything, and what can be recovered of them is."""

from __future__ import annotations

import time
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


@pytest.mark.parametrize("drive", [run, arun_now], ids=["run", "arun"])
def test_nine_in_ten_of_what_is_recoverable_are_recovered_and_nothing_breaks(drive: Driver):
    wanted = kept = 0
    lost: list[str] = []
    for case in CASES:
        contents = [one.content for one in recovered(case, drive)]
        wanted += len(case["recoverable"])
        kept += sum(content in contents for content in case["recoverable"])
        lost += [case["name"]] * (not {*case["recoverable"]} <= {*contents})
    assert kept >= BAR * wanted, lost


def test_nothing_is_made_up_and_nothing_that_was_not_offered_is_touched():
    for case in CASES:
        found = recovered(case)
        assert {one.content for one in found} <= {*case["recoverable"]}, case["name"]
        assert {one.target for one in found} <= {None, ROME.memory_id}


def test_large_answers_are_read_in_time():
    for case in CASES:
        started = time.process_time()
        recovered(case)
        assert time.process_time() - started < MAX_SECONDS, case["name"]
