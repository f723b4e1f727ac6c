"""The command line, end to end on small data, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import DATA, HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main
from inference_core.evaluation import SYSTEMS

FOLDER = DATA / "evaluation"
LOCOMO = ["eval", "locomo", "--data", str(FOLDER / "locomo.json")]
MEASURES = {"R@5", "R@10", "R@20", "any@10", "all@10", "MRR", "nDCG@10"}


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The one JSON object that the command prints."""
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_is_measured(system: str, capsys: pytest.CaptureFixture[str]):
    found = measured(capsys, *LOCOMO, "--system", system)
    assert (found["dataset"], found["system"], found["split"]) == ("locomo", system, "all")
    assert found["overall"].keys() == MEASURES
    assert found["overall"]["R@20"] == 1.0
    assert found["overall"]["MRR"] > 0.8
    assert found["by_category"].keys() == {"1", "2", "4", "5", "uncategorized"}
    assert all(measures.keys() == MEASURES for measures in found["by_category"].values())
    assert (found["questions"], found["questions_overall"], found["dropped"]) == (7, 6, 2)
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p95"]
    assert found["session_any@5"] == 1.0


def test_beam_counts_every_ability_with_usable_evidence(capsys: pytest.CaptureFixture[str]):
    found = measured(capsys, "eval", "beam", "--data", str(FOLDER / "beam"), "--split", "100K", "--system", "bm25")
    assert found["questions_by_category"] == {"event_ordering": 1, "information_extraction": 2, "knowledge_update": 1}
    assert (found["questions"], found["questions_overall"], found["dropped"]) == (4, 4, 2)
    assert found["unanswerable"]["questions"] == 1


def test_atomic_has_no_sessions_and_counts_what_nothing_answers(capsys: pytest.CaptureFixture[str]):
    found = measured(capsys, "eval", "atomic", "--data", str(FOLDER / "atomic.json"), "--system", "lexical")
    assert found["overall"]["R@5"] == 1.0
    assert (found["questions"], found["dropped"], found["unanswerable"]["questions"]) == (4, 1, 1)
    assert found["session_any@5"] is None


def test_split_and_limit_choose_conversations(capsys: pytest.CaptureFixture[str]):
    assert measured(capsys, *LOCOMO, "--system", "bm25", "--split", "second-half")["questions"] == 2
    assert measured(capsys, *LOCOMO, "--system", "bm25", "--limit", "1")["questions"] == 5


def test_the_table_and_the_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    picture = tmp_path / "recall.png"
    assert main([*LOCOMO, "--system", "bm25", "--plot", str(picture)]) == 0
    printed = capsys.readouterr()
    assert "| **overall** | 6 |" in printed.out
    assert "Memories and questions" not in printed.out
    assert "Memories and questions" in printed.err
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "locomo", "--data", str(FOLDER / "atomic.json")], "LoCoMo's format"),
        (["eval", "locomo", "--data", str(FOLDER / "none.json")], "Cannot read"),
        (["eval", "beam", "--data", str(FOLDER), "--split", "1M"], "holds no BEAM chats"),
        ([*LOCOMO, "--split", "third-half"], "Unknown split"),
        ([*LOCOMO, "--embeddings", "nonsense"], "Unknown embeddings"),
    ],
)
def test_what_cannot_be_measured_is_said_on_standard_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*arguments, "--json"]) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("arguments", [[], ["eval"], [*LOCOMO, "--limit", "0"], [*LOCOMO, "--system", "faiss"]])
def test_wrong_usage_is_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage: inference-core" in capsys.readouterr().err


def test_without_rich_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert main([*LOCOMO, "--system", "bm25"]) == 1
    assert "inference-core-memory[cli]" in capsys.readouterr().err


def test_reembed_is_a_command_of_the_same_program(sqlite_url: str, capsys: pytest.CaptureFixture[str]):
    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "likes tea", "facts")
    assert main(["reembed", sqlite_url, "--embeddings", "local"]) == 0
    assert "Embedded 1 texts." in capsys.readouterr().err


def test_the_package_runs_as_a_program():
    command = [sys.executable, "-m", "inference_core", *LOCOMO, "--system", "bm25", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["questions"] == 7
