"""A report's three forms."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from inference_core.errors import InvalidInput, MissingExtra
from inference_core.evaluation.experiment import MEASURES, Figures, Relevance, RetrievalSummary
from inference_core.evaluation.report import RetrievalReport

MEANS: dict[str, float | None] = dict.fromkeys(MEASURES, 2 / 3)
NOTHING: dict[str, float | None] = dict.fromkeys(MEASURES)
FULL = RetrievalReport(
    "locomo",
    "bm25",
    "all",
    RetrievalSummary(
        overall=Figures(3, MEANS, (0.12345, 0.98765)),
        by_category={"1": Figures(2, MEANS, (0.5, 0.75)), "5": Figures(1, {**MEANS, "MRR": 0.125}, None)},
        session_any=0.87654321,
        latency_p50=1.23456,
        latency_p95=7.0,
        questions=4,
        dropped=2,
        unanswerable=1,
        unanswerable_relevance=Relevance(0.25, 0.2, 0.5),
        calibration_error=0.04321,
    ),
)
EMPTY = RetrievalReport(
    "atomic",
    "dense",
    "second-half",
    RetrievalSummary(Figures(0, NOTHING, None), {}, None, None, None, 0, 1, 0, None, None),
)


def test_json_has_fractions_of_four_digits():
    found = FULL.to_json()
    assert (found["dataset"], found["system"], found["split"]) == ("locomo", "bm25", "all")
    assert found["overall"] == dict.fromkeys(MEASURES, 0.6667)
    assert list(found["by_category"]) == ["1", "5"]
    assert found["by_category"]["5"]["MRR"] == 0.125
    assert found["latency_ms"] == {"p50": 1.235, "p95": 7.0}
    assert (found["questions"], found["questions_overall"], found["dropped"]) == (4, 3, 2)
    assert found["questions_by_category"] == {"1": 2, "5": 1}
    assert found["session_any@5"] == 0.8765
    assert found["confidence"]["R@10"] == [0.1235, 0.9877]
    assert found["confidence"]["by_category"] == {"1": {"R@10": [0.5, 0.75]}, "5": {"R@10": None}}
    assert found["calibration_error"] == 0.0432
    assert found["unanswerable"] == {"questions": 1, "relevance": {"mean": 0.25, "median": 0.2, "max": 0.5}}


def test_what_was_not_counted_is_null():
    found = json.loads(json.dumps(EMPTY.to_json(), allow_nan=False))
    assert found["overall"] == dict.fromkeys(MEASURES)
    assert found["latency_ms"] == {"p50": None, "p95": None}
    assert found["confidence"]["R@10"] is None
    assert found["unanswerable"]["relevance"] is found["calibration_error"] is None


def test_markdown_is_a_table_in_percent():
    lines = FULL.to_markdown().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert {len(row) for row in table} == {len(MEASURES) + 3}
    assert table[2] == ["**overall**", "3", *["66.7"] * 7, "12.3-98.8"]
    assert table[4] == ["5", "1", *["66.7"] * 5, "12.5", "66.7", "-"]
    assert "1.2 ms (p50), 7.0 ms (p95)" in FULL.to_markdown()
    assert "4 counted, 2 dropped" in FULL.to_markdown()
    assert "87.7" in FULL.to_markdown()
    assert "of 1 unanswerable questions: mean 0.25, median 0.20, highest 0.50" in FULL.to_markdown()
    assert "unanswerable" not in EMPTY.to_markdown()
    assert "- Calibration error of the relevance of the first ten hits: 0.043" in lines
    assert "Calibration" not in EMPTY.to_markdown()


def test_the_picture_shows_each_category(tmp_path: Path):
    FULL.plot(tmp_path / "recall.svg")
    EMPTY.plot(tmp_path / "empty.png")
    picture = (tmp_path / "recall.svg").read_text(encoding="utf-8")
    for label in ("overall (3)", "1 (2)", "5 (1)"):
        assert f"<!-- {label} -->" in picture
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["none/recall.png", "recall.docx"])
def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path, name: str):
    with pytest.raises(InvalidInput, match="cannot be written"):
        FULL.plot(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"inference-core-memory\[eval\]"):
        FULL.plot(tmp_path / "recall.png")
