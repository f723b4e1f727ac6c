"""The benchmark of remarks: a later message shares no word with the remark that it should remind of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference_core.retrieval.analysis import analyze, query_alternatives

REMARKS = Path(__file__).parents[2] / "benchmarks" / "context" / "remarks.json"
PAIRS = [
    pytest.param(remark, later, id=f"{language}-{style}-{number}")
    for language, styles in json.loads(REMARKS.read_text(encoding="utf-8"))["pairs"].items()
    for style, pairs in styles.items()
    for number, (remark, later) in enumerate(pairs)
]


def terms(text: str) -> set[str]:
    return {*analyze(text), *(form for forms in query_alternatives(text) for form in forms)}


@pytest.mark.parametrize(("remark", "later"), PAIRS)
def test_shares_no_word_with_the_later_message(remark: str, later: str) -> None:
    assert terms(remark).isdisjoint(terms(later))
