"""``eval qa`` with a small language model on this machine, which answers.

The figures mean nothing, as a model of this size reads badly; as a judge, it gives no verdict that can be read. What is
checked is that what a real model replies is counted, compared and kept, and not asked for again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from inference_core.cli import main

URL = os.environ.get("INFERENCE_CORE_LOCAL_MODEL_URL", "")
COMMAND = (
    *("eval", "qa", "locomo", "--data", str(DATA / "evaluation" / "own_in_locomo_format.json"), "--embeddings", "none"),
    *(
        "--model",
        "openai:local",
        "--system",
        "none",
        "--system",
        "ours",
        "--k",
        "3",
        "--calls",
        "1",
        "--json",
        "--judge",
        "none",
    ),
)


@pytest.mark.skipif(not URL, reason="no model: see CONTRIBUTING")
def test_a_small_model_answers_and_nothing_is_asked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", URL)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    reports: list[list[dict[str, Any]]] = []
    for _ in range(2):
        assert main([*COMMAND]) == 0
        reports.append(json.loads(capsys.readouterr().out)["runs"])
    first, again = reports
    assert [run["system"] for run in first] == ["none", "ours"]
    for run, later in zip(first, again, strict=True):
        assert run["failures"] == 0
        assert all(one["answer"].strip() for one in run["answers"])
        assert 0 < run["answering"]["new"]["calls"] <= len(run["answers"])  # without notes, both systems ask the same
        assert run["answering"]["tokens_out"] > 0
        assert run["token_f1"]["count"] > 0
        assert later["answering"]["new"]["calls"] == 0
        assert later["answers"] == run["answers"]
    assert first[0]["notes_tokens_mean"] < first[1]["notes_tokens_mean"]
