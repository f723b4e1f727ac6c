"""The command line, end to end on small data, without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from processes import Forked
from support import DATA, HashingEmbeddings

from inference_core import AgentMemoryStoreService, __version__, open_store
from inference_core.cli import main
from inference_core.evaluation import PEERS, SYSTEMS

FOLDER = DATA / "evaluation"
LOCOMO = ["eval", "locomo", "--data", str(FOLDER / "own_in_locomo_format.json")]
MEASURES = {"R@5", "R@10", "R@20", "any@10", "all@10", "MRR", "nDCG@10"}


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The one JSON object that the command prints."""
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


@pytest.mark.parametrize("peer", [peer for peer in PEERS if not find_spec(peer)])
def test_a_package_that_is_not_installed_is_named(peer: str, capsys: pytest.CaptureFixture[str]):
    assert main([*LOCOMO, "--system", peer]) == 1
    assert f"cannot be imported (No module named '{peer}'): pip install {peer}" in capsys.readouterr().err


@pytest.mark.parametrize("system", [*SYSTEMS[: -len(PEERS)], *filter(find_spec, PEERS)])
def test_each_system_is_measured(system: str, capsys: pytest.CaptureFixture[str]):
    model = [] if system == "ours" else ["--embeddings", "local"]
    found = measured(capsys, *LOCOMO, "--system", system, *model)
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
    found = measured(
        capsys, "eval", "beam", "--data", str(FOLDER / "own_in_beam_format"), "--split", "100K", "--system", "bm25"
    )
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
    assert printed.err == "", "no bar where nobody watches"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "locomo", "--data", str(FOLDER / "atomic.json")], "LoCoMo's format"),
        (["eval", "locomo", "--data", str(FOLDER / "none.json")], "Cannot read"),
        (["eval", "beam", "--data", str(FOLDER), "--split", "1M"], "contains no BEAM chats"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["eval"],
        ["eval", "locomo"],
        ["eval", "context", "--data", "cases.json"],
        [*LOCOMO, "--limit", "0"],
        [*LOCOMO, "--system", "faiss"],
        ["recall", "tea"],
        ["recall", "tea", "--user", "ada", "--type", "nonsense"],
        ["update", "id", "--user", "ada"],
        ["update", "id", "--user", "ada", "--metadata", "{"],
        ["update", "id", "--user", "ada", "--metadata", "[]"],
        ["delete", "--user", "ada"],
        ["delete", "id", "--all", "--user", "ada"],
        ["delete", "id", "--type", "facts", "--user", "ada"],
    ],
)
def test_wrong_usage_is_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert "Usage: inference-core" in printed.err
    assert printed.out == ""


def test_without_rich_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, where a bar is drawn
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert main([*LOCOMO, "--system", "bm25"]) == 1
    assert "inference-core-memory[cli]" in capsys.readouterr().err


def test_without_typer_the_extra_is_named():
    code = "import sys; sys.modules['typer'] = None; from inference_core.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "inference-core needs an extra: pip install 'inference-core-memory[cli]'\n"


def test_another_missing_module_is_not_taken_for_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "inference_core.cli.app", None)
    with pytest.raises(ModuleNotFoundError):
        main(["--help"])


def test_the_help_of_a_common_command_starts_without_slow_imports():
    slow = "{'numpy', 'langchain', 'langchain_core', 'langgraph'}"
    code = (
        f"import sys; from inference_core.cli import main; main(['save', '--help']); print({slow} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--importance" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"


def test_help_and_version_start_without_slow_imports():
    slow = "{'numpy', 'langchain', 'langchain_core', 'langgraph', 'pydantic'}"
    code = f"import sys; from inference_core.cli import main; main(['--help']); print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Exit codes: 0 done; 1 failed" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"
    assert not any(box in done.stdout for box in "╭│\x1b")


def test_the_help_has_every_command_in_a_group_with_its_whole_summary(capsys: pytest.CaptureFixture[str]):
    """Each third summary was cut in the middle, and 44 commands were one list in no order."""
    helps: list[str] = []
    for arguments in ([], ["-h"], ["--help"]):
        assert main(arguments) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        helps.append(printed.out)
    assert helps[0] == helps[1] == helps[2]
    groups = re.findall(r"^([A-Z].*):\n((?:  \w.*\n)+)", helps[0], re.MULTILINE)
    assert [name for name, _ in groups] == [
        "Memories",
        "Forgetting",
        "Conversations",
        "Servers",
        "Files and stores",
        "Backups, retention and erasure",
        "Measurements",
    ]
    commands = [line.split(maxsplit=1) for _, lines in groups for line in lines.splitlines()]
    assert len(commands) == 45
    for name, summary in commands:
        assert "..." not in summary
        assert main([name, "-h"] if name != "eval" else ["-h"]) == 0
        assert summary in capsys.readouterr().out, "the help of the command begins with it"


def test_a_narrow_terminal_gets_the_plain_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """At 40 columns, the columns of the options had room for five letters each."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown: list[str] = []
    for columns in ("100", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["save", "--help"]) == 0
        shown.append(capsys.readouterr().out)
    assert ["╭" in one for one in shown] == [True, False]
    assert "--importance" in shown[1]


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"inference-core {__version__}\n"


def test_names_are_completed_for_the_shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_INFERENCE_CORE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "inference-core eval lo")
    monkeypatch.setenv("COMP_CWORD", "2")
    main()
    assert capsys.readouterr().out.split() == ["locomo"]


def test_an_environment_file_is_read_and_what_is_set_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / ".env"
    file.write_text("AGENT_MEMORY_EMBEDDINGS=nonsense\n", encoding="utf-8")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert main(["--env-file", str(file), "save", "x", "--user", "ada", "--url", "memory://"]) == 1
    assert "Unknown embeddings 'nonsense'" in capsys.readouterr().err
    assert main(["--env-file", str(tmp_path / "none"), "save", "x", "--user", "ada"]) == 1
    assert "There is no file" in capsys.readouterr().err


def test_an_interruption_is_code_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("inference_core.cli.diagnosis.diagnose", interrupted)
    assert main(["doctor"]) == 130
    monkeypatch.setattr("inference_core.cli.app.command_of", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == ""


def test_a_programming_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("inference_core.cli.app.command_of", broken)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_the_commands_are_read_once_for_many_calls(monkeypatch: pytest.MonkeyPatch):
    """Reading the signatures of all commands took longer than most commands."""
    main(["--version"])
    monkeypatch.setattr("inference_core.cli.app.get_command", None)
    assert main(["--version"]) == 0


def test_settings_that_make_no_sense_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("AGENT_MEMORY_TIMEZONE", "Mars/Olympus")
    assert main(["list", "--user", "ada"]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "AGENT_MEMORY_TIMEZONE" in error


def test_a_reader_that_goes_away_causes_no_traceback(sqlite_url: str):
    with open_store(sqlite_url, embeddings=None):
        pass
    command = [sys.executable, "-m", "inference_core", "list", "--user", "ada", "--url", sqlite_url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 1
    assert "Traceback" not in error
    assert "BrokenPipe" not in error


def without_streams(command: list[str]) -> None:
    """As services and cron jobs may start it; Python has None in their place."""
    os.environ["AGENT_MEMORY_EMBEDDINGS"] = "none"
    for stream in (0, 1):
        os.close(stream)
    sys.stdin = sys.stdout = sys.__stdin__ = sys.__stdout__ = cast("Any", None)
    with open(2, "w", closefd=False, encoding="utf-8") as sys.stderr:
        sys.exit(main(command))


def test_regression_closed_standard_streams_cause_no_traceback(sqlite_url: str):
    ada = ["--user", "ada", "--url", sqlite_url]
    for command, code in ((["save", "Likes tea"], 0), (["save", "-"], 2), (["list"], 0)):
        ended, said = Forked(without_streams, [*command, *ada]).end()
        assert ended == code, "\n".join(said)
        assert "Traceback" not in "".join(said)


def test_reembed_is_a_command_of_the_same_program(sqlite_url: str, capsys: pytest.CaptureFixture[str]):
    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "likes tea", "facts")
    assert main(["reembed", sqlite_url, "--embeddings", "local"]) == 0
    assert "Embedded 1 text." in capsys.readouterr().err
    assert main(["reembed", "--url", sqlite_url, "--embeddings", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"embedded": 0}


def test_reembed_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["reembed", f"sqlite:///{tmp_path}/none.db", "--embeddings", "local"]) == 1
    assert "There is no store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_package_runs_as_a_program(quick_python: str):
    command = [quick_python, "-m", "inference_core", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"inference-core {__version__}\n"
