"""save, recall, context, list, update, delete and migrate from the command line, on real stores."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import UTC
from pathlib import Path

import pytest
from cli_support import Capture, answer

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main
from inference_core.cli.output import print_memories
from inference_core.context.render import numbered
from inference_core.memory.record import MemoryStoreDocument
from inference_core.transfer.migrate import MigrationReport

ADA = ("--user", "ada")
HOSTILE = "\x1b[31mred\x1b[0m [bold]loud[/bold] \u202eback \x9bm\nsecond line"


@pytest.fixture(autouse=True)
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configured store, by words only so that no model has to be loaded."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    return sqlite_url


def said(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command for ada writes to standard output and to standard error."""
    assert main([*arguments, "--user", "ada"]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_what_is_saved_is_recalled_listed_changed_and_deleted(capsys: Capture):
    memory_id = answer(capsys, "save", *ADA, "Lives in Lisbon", "--type", "facts", "--topic", "home")["id"]
    (hit,) = answer(capsys, "recall", *ADA, "Where does she live? Lisbon?")["memories"]
    assert (hit["id"], hit["memory_type"], hit["topic"]) == (memory_id, "facts", "home")
    assert 0 < hit["relevance"] <= 1
    changed = answer(capsys, "update", *ADA, memory_id, "--content", "Lives in Porto")
    assert changed == {"id": memory_id, "updated": True}
    assert [one["content"] for one in answer(capsys, "list", *ADA)["memories"]] == ["Lives in Porto"]
    assert "Lives in Porto" in answer(capsys, "context", *ADA)["context"]
    assert answer(capsys, "delete", *ADA, memory_id, "--yes") == {"deleted": 1}
    assert answer(capsys, "list", *ADA) == {"memories": [], "total": 0, "offset": 0, "next_cursor": None}
    assert said(capsys, "context") == ("", "no memories\n")


def test_tags_sessions_times_and_what_an_update_changes(capsys: Capture):
    """recall took none of these filters, list only the session, and update none of these fields."""
    answer(capsys, "save", *ADA, "Green tea", "--tag", "tea", "--tag", "hot", "--session", "s1", "--id", "green")
    answer(capsys, "save", *ADA, "Iced tea", "--tag", "tea", "--session", "s2", "--id", "iced")

    def found(*narrow: str) -> list[str]:
        recalled = answer(capsys, "recall", *ADA, "tea", *narrow)["memories"]
        assert [one["id"] for one in answer(capsys, "list", *ADA, *narrow)["memories"]][::-1] == sorted(
            one["id"] for one in recalled
        )
        return sorted(one["id"] for one in recalled)

    assert found("--tag", "tea", "--tag", "hot") == found("--session", "s1") == ["green"]
    assert found("--created-after", "2020-01-01") == ["green", "iced"]
    assert found("--created-before", "2020-01-01") == []
    assert answer(capsys, "recall", *ADA, "tea", "--min-relevance", "1")["memories"] == []
    change = ("--tag", "cold", "--importance", "0.9", "--expires-at", "2020-01-01")
    assert said(capsys, "update", "green", *change)[1] == "Updated green\n"
    assert found("--tag", "hot") == []
    assert answer(capsys, "recall", *ADA, "tea")["memories"][0]["id"] == "iced"
    assert said(capsys, "update", "green", "--tag", "", "--expires-at", "never")[1] == "Updated green\n"
    assert found("--created-after", "2020-01-01") == ["green", "iced"]
    assert main(["update", "green", "--expires-at", "soon", *ADA]) == 2
    assert "2026-12-31" in capsys.readouterr().err


def test_a_deleted_memory_is_restored_or_erased(capsys: Capture):
    """Deleted memories could not be restored, and `why` did not know them."""
    answer(capsys, "save", *ADA, "Lives in Lisbon", "--id", "home")
    said(capsys, "update", "home", "--content", "Lives in Porto")
    said(capsys, "delete", "home", "--yes")
    told = answer(capsys, "why", "home", *ADA)
    assert (told["memory"], told["removed"]["reason"], told["removed"]["content"]) == (
        None,
        "deleted",
        "Lives in Porto",
    )
    assert [one["content"] for one in told["earlier"]] == ["Lives in Lisbon"]
    shown = said(capsys, "why", "home")
    assert re.search(r"It was deleted 20.* and can be restored until 20", shown[1])
    assert re.search(r"deleted, 20\S+, until 20", said(capsys, "restore")[0])
    assert said(capsys, "restore", "home")[1] == "Restored 1\n"
    assert "It was" not in said(capsys, "why", "home")[1]
    said(capsys, "delete", "home", "--yes")
    assert main(["delete", "home", "--yes", *ADA]) == 3
    assert answer(capsys, "delete", "home", "--erase", "--yes", *ADA) == {"deleted": 1, "derived": []}
    assert said(capsys, "restore")[1] == "Nothing can be restored\n"


def test_people_read_the_same(capsys: Capture):
    memory_id = said(capsys, "save", "Lives in Lisbon", "--type", "facts")[0].strip()
    out, err = said(capsys, "recall", "Lisbon", "--explain")
    assert out.startswith("1. Lives in Lisbon\n   facts · ")
    assert f"   id {memory_id}\n" in out
    assert "score " in out
    assert "by words only" in err
    assert said(capsys, "list")[1] == "1 memory\n"
    assert "Lives in Lisbon (type: facts)" in said(capsys, "context", "Lisbon")[0]
    assert said(capsys, "update", memory_id, "--topic", "home")[1] == f"Updated {memory_id}\n"
    assert "about home" in said(capsys, "list")[0]
    assert said(capsys, "delete", memory_id, "--yes")[1] == "Deleted 1 memory\n"


def test_every_field_of_a_memory_can_be_given(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_TIMEZONE", "Asia/Tokyo")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Moved house\n"))
    answer(
        capsys,
        *("save", "-", "--id", "m1", "--type", "context", "--category", "semantic", "--session", "s1"),
        *("--importance", "0.9", "--pinned", "--tag", "home", "--tag", "move", "--metadata", '{"form": 7}'),
        *("--valid-from", "2026-03-28", "--expires-at", "2999-01-01T00:00:00"),
        *ADA,
    )
    (found,) = answer(capsys, "list", *ADA, "--category", "semantic")["memories"]
    expected = {
        "content": "Moved house",
        "session_id": "s1",
        "importance": 0.9,
        "pinned": True,
        "tags": ["home", "move"],
        "metadata": {"form": 7},
        "valid_from": "2026-03-27T15:00:00+00:00",
    }
    assert expected.items() <= found.items()
    answer(capsys, "update", *ADA, "m1", "--metadata", '{"page": 2}', "--category", "episodic")
    (found,) = answer(capsys, "list", *ADA, "--category", "episodic")["memories"]
    assert found["metadata"] == {"form": 7, "page": 2}


def test_lists_go_by_pages(capsys: Capture):
    for number in range(5):
        answer(capsys, "save", *ADA, f"Fact {number} of tea", "--type", "facts" if number else "goals")
    page = answer(capsys, "list", *ADA, "--limit", "2", "--offset", "1", "--type", "facts", "--search", "TEA")
    assert [one["content"] for one in page["memories"]] == ["Fact 3 of tea", "Fact 2 of tea"]
    assert page["total"] == 4
    out, err = said(capsys, "list", "--limit", "2", "--offset", "1")
    assert out.startswith("2. Fact 3 of tea\n")
    assert err == "5 memories, 2 more: --offset 3\n"
    first = answer(capsys, "list", *ADA, "--limit", "2")
    out, err = said(capsys, "list", "--limit", "2", "--after", first["next_cursor"])
    assert out.startswith("1. Fact 2 of tea\n")
    cursor = err.removeprefix("5 memories, more: --after ").strip()
    assert [one["version"] for one in answer(capsys, "list", *ADA, "--after", cursor)["memories"]] == [1]
    assert "Not the cursor" in said(capsys, "list", "--after", "nothing", code=2)[1]


def test_explain_tells_what_was_left_out(capsys: Capture):
    for content in ("Drinks green tea", "Drinks the green tea"):
        answer(capsys, "save", *ADA, content)
    found = answer(capsys, "recall", *ADA, "green tea", "--explain")
    assert found["memories"][0]["explanation"]
    assert [bool(one["reason"]) for one in found["left_out"]] == [True]
    assert "Left out\n1. " in said(capsys, "recall", "green tea", "--explain")[0]


def test_agents_have_memories_of_their_own(capsys: Capture):
    answer(capsys, "save", *ADA, "Book window seats", "--type", "instructions", "--agent", "travel")
    assert answer(capsys, "list", *ADA)["total"] == 0
    assert answer(capsys, "list", *ADA, "--agent", "travel")["total"] == 1


def test_the_user_of_the_environment_is_used_where_none_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    """Whoever is the only user had to type --user each time."""
    monkeypatch.setenv("AGENT_MEMORY_USER", "ada")
    saved = answer(capsys, "save", "Likes tea")["id"]
    assert [one["id"] for one in answer(capsys, "list")["memories"]] == [saved]
    assert answer(capsys, "list", "--user", "eve")["total"] == 0
    assert main(["delete", saved, "--yes"]) == 0


def test_restoring_what_is_there_says_so(capsys: Capture):
    """It said that there was no memory with this ID."""
    saved = answer(capsys, "save", *ADA, "Likes tea")["id"]
    assert "is neither forgotten nor deleted" in said(capsys, "restore", saved)[1]
    assert main(["restore", saved, "none", *ADA]) == 3
    assert capsys.readouterr().err.endswith("Error: No memory with id 'none'\n")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("Lives in Lisbon", "It was there already, in the same words\n"),
        (" lives  in lisbon ", "It was there already, in the same words\n"),
        ("The key is ghp_abcdefghijklmnopqrstuvwxyz0123456789", "Left out: github_token\n"),
        ("Keeps bees", ""),
    ],
)
def test_a_save_says_what_was_not_done_as_asked(capsys: Capture, content: str, told: str):
    """Regression: a repetition printed the earlier ID without a word."""
    said(capsys, "save", "Lives in Lisbon")
    assert said(capsys, "save", content)[1] == told


def test_in_a_pipe_no_line_is_wrapped_and_no_place_is_internal(capsys: Capture):
    """Regression: tables were wrapped at 80 columns, and the trail named rows that no user knows."""
    long = "Lives in a street " + "whose name is very long " * 9
    memory_id = said(capsys, "save", long.strip())[0].strip()
    assert long.strip() in said(capsys, "recall", "street", "--explain")[0]
    assert all(line == line.rstrip() for line in said(capsys, "stats")[0].splitlines())
    assert main(["hold", "add", "--reason", "court", "--user", "ada"]) == 0
    capsys.readouterr()
    assert "~" not in said(capsys, "audit")[0]
    said(capsys, "update", memory_id, "--content", "Lives in Porto")
    out = said(capsys, "why", memory_id)[0]
    assert out.startswith("1. Lives in Porto\n")
    assert f"source  application\n\nEarlier texts\n1. {long.strip()}\n" in out


@pytest.mark.parametrize(
    "arguments", [["import", "none.json"], ["ingest", "none.json"], ["eval", "locomo", "--data", "none.json"]]
)
def test_a_file_that_is_not_there_is_told_without_numbers(arguments: list[str], capsys: Capture):
    """Regression: it said "[Errno 2] No such file or directory: 'none.json'"."""
    assert main([*arguments, *([] if arguments[0] == "eval" else ADA)]) == 1
    assert capsys.readouterr().err.endswith("Error: Cannot read none.json: No such file or directory\n")


def test_users_do_not_see_each_other(capsys: Capture):
    memory_id = answer(capsys, "save", *ADA, "Ada's secret")["id"]
    assert main(["list", "--user", "eve", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 0
    for arguments in (["update", memory_id, "--topic", "x"], ["delete", memory_id, "--yes"]):
        assert main([*arguments, "--user", "eve"]) == 3
    assert answer(capsys, "list", *ADA)["total"] == 1


@pytest.mark.parametrize("arguments", [["update", "none", "--content", "x"], ["delete", "none", "--yes"]])
def test_an_unknown_id_is_code_three(arguments: list[str], capsys: Capture):
    answer(capsys, "save", *ADA, "x")
    assert said(capsys, *arguments, "--json", code=3) == ("", "Error: No memory with id 'none'\n")


@pytest.mark.parametrize(
    "arguments",
    [["recall", "x"], ["list"], ["context"], ["update", "x", "--topic", "y"], ["delete", "--all"], ["migrate"]],
)
def test_reading_makes_no_store(arguments: list[str], capsys: Capture, tmp_path: Path):
    out, err = said(capsys, *arguments, code=1)
    assert out == ""
    assert err.startswith("Error: There is no store at sqlite:///")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("reply", "left"), [("n\n", 2), ("", 2), ("y\n", 1)])
def test_deleting_asks(reply: str, left: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    memory_id = answer(capsys, "save", *ADA, "Lives in Lisbon " * 9)["id"]
    answer(capsys, "save", *ADA, "Likes tea")
    monkeypatch.setattr(sys, "stdin", io.StringIO(reply))
    out, err = said(capsys, "delete", memory_id, code=left - 1)
    assert out == ""
    assert "Delete “Lives in Lisbon" in err
    assert "Nothing was deleted" in err or left == 1
    assert answer(capsys, "list", *ADA)["total"] == left


def test_deleting_all_of_a_type(capsys: Capture):
    for number, kind in enumerate(("facts", "facts", "goals")):
        answer(capsys, "save", *ADA, f"Something {number}", "--type", kind)
    assert answer(capsys, "delete", *ADA, "--all", "--type", "facts", "--yes") == {"deleted": 2}
    assert answer(capsys, "delete", *ADA, "--all", "--category", "episodic") == {"deleted": 0}
    assert said(capsys, "delete", "--all", "--yes")[1] == "Deleted 1 memory\n"
    assert answer(capsys, "list", *ADA)["total"] == 0


def test_somebody_else_deleting_it_first_is_not_found(capsys: Capture, monkeypatch: pytest.MonkeyPatch, store: str):
    memory_id = answer(capsys, "save", *ADA, "x")["id"]

    def gone(*_: object, **__: object) -> None:
        with open_store(store, embeddings=None) as other:
            AgentMemoryStoreService(other).sync.delete_memory("ada", memory_id)

    monkeypatch.setattr("inference_core.cli.memories.confirm", gone)
    assert main(["delete", memory_id, "--user", "ada"]) == 3


def test_hostile_contents_steer_no_terminal(capsys: Capture, store: str):
    with open_store(store, embeddings=None) as opened:
        value = {"content": HOSTILE, "memory_type": "facts", "topic": HOSTILE}
        opened.put(("ada", "semantic"), "evil", value)
    shown = ""
    for arguments in (["list"], ["recall", "loud", "--explain"], ["context"], ["list", "--json"]):
        shown += "".join(said(capsys, *arguments))
    assert not any(mark in shown for mark in "\x1b\u202e\x9b")
    assert "\\u001b[31mred" in shown
    assert "[bold]loud[/bold]" in shown
    document = answer(capsys, "list", *ADA)
    assert document["memories"][0]["content"] == HOSTILE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["save", " "], "content is empty"),
        (["save", "x" * 9000], "the limit is 8192"),
        (["save", "x", "--id", "a b"], "memory_id holds white space"),
        (["save", "x", "--url", "mysql://ada:secret@host/db"], "--url: Unknown store scheme"),
        (["save", "x", "--url", "nonsense"], "--url: A store's URL looks like"),
        (["save", "x", "--user", ""], "--user must have 1 to 512 bytes"),
        (["recall", "x", "--created-after", "2026-02-01", "--created-before", "2026-01-01"], "must be earlier"),
        (["undo"], "Pass --job or --session"),
        (["retention", "--days", "foo=1"], "'foo' is not one of all"),
        (["forget", "--max", "some"], "is not a budget"),
        (["keys", "create", "--days", "-1", "--allow", "act-as"], "days must be more than 0"),
        (["hold", "add", "--reason", "x", "--until", "2000-01-01"], "until must lie in the future"),
        (["migrate", "--layout", "coal"], "Unknown layout"),
    ],
)
def test_a_value_that_cannot_be_is_wrong_usage_below_the_usage(arguments: list[str], message: str, capsys: Capture):
    """Some of these ended with 1 and a bare line, others with 2 and the usage."""
    answer(capsys, "save", *ADA, "Likes tea")
    whose = [] if "--user" in arguments or arguments[0] in ("retention", "keys", "migrate") else ADA
    assert main([*arguments, *whose]) == 2
    printed = capsys.readouterr()
    usage, how, empty, error = printed.err.splitlines()
    assert usage.startswith(f"Usage: inference-core {arguments[0]} ")
    assert (how, empty) == (f"Try 'inference-core {arguments[0]} --help' for help.", "")
    assert error.startswith("Error: ")
    assert message in error
    assert printed.out == ""
    assert "secret" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--url", "sqlite:///none.db"], "There is no store at sqlite:///none.db in "),
        (["export", "no/all.jsonl"], "There is no folder no"),
        (["import", "none.jsonl"], "No such file"),
        (["verify", "none"], "is not a backup"),
        (["delete", "--all"], "Nothing was deleted"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    answer(capsys, "save", *ADA, "Likes tea")
    whose = ADA if arguments[0] in ("list", "delete") else []
    assert main([*arguments, *whose]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert "Error: " in line
    assert message in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["update", "none", "--content", "x"],
        ["delete", "none", "--yes"],
        ["delete", "none", "--erase", "--yes"],
        ["history", "none"],
        ["why", "none"],
        ["pin", "none"],
        ["unpin", "none"],
        ["restore", "none"],
        ["review", "--approve", "none"],
        ["review", "--reject", "none"],
        ["hold", "release", "none"],
        ["keys", "revoke", "none"],
        ["list", "--space", "none"],
    ],
)
def test_an_id_that_does_not_exist_is_code_three_in_every_command(arguments: list[str], capsys: Capture):
    """Some commands ended with 1."""
    answer(capsys, "save", *ADA, "Likes tea")
    assert main([*arguments, *(ADA if arguments[0] != "keys" else [])]) == 3
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["save", "x", "--type", "fact"], "'fact' is not one of preferences, facts, goals, general, "),
        (["save", "x", "--type", "fact"], "skill. Did you mean 'facts'?"),
        (["list", "--category", "semantik"], "procedural. Did you mean 'semantic'?"),
        (["context", "--type", "facts", "--type", "goal"], "Did you mean 'goals'?"),
        (["lst"], "Did you mean 'list'?"),
        (["list", "--limt", "3"], "--limit"),
    ],
)
def test_a_slip_is_answered_with_what_may_be_meant(arguments: list[str], message: str, capsys: Capture):
    assert message in " ".join(said(capsys, *arguments, code=2)[1].split())


def test_a_file_that_is_something_else_is_said_to_be(tmp_path: Path, capsys: Capture):
    (tmp_path / "photo.db").write_bytes(b"photo " * 1_000)
    _, err = said(capsys, "list", "--url", f"sqlite:///{tmp_path}/photo.db", code=1)
    assert err.rstrip().endswith("file is not a database. The file is something else; name another")


@pytest.mark.parametrize(("relevance", "shown"), [(0.099, "weak match"), (0.1, "relevance 10%"), (None, "")])
def test_what_may_be_unrelated_is_called_weak(relevance: float | None, shown: str, capsys: Capture):
    """Guards that no figure is given where an answer and what is unrelated may have the same."""
    found = MemoryStoreDocument("m1", {"content": "Likes tea", "memory_type": "facts"}, {}, relevance=relevance)
    print_memories([found], UTC)
    assert capsys.readouterr().out.splitlines()[1].strip() == " · ".join(filter(None, ["facts", "unknown", shown]))
    (line,) = numbered([found])
    assert ("[relevance: weak]" in line, "[relevance: 0.10]" in line) == (relevance == 0.099, relevance == 0.1)


def test_standard_input_that_is_not_text_is_refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert "Error: Standard input is not text in UTF-8" in said(capsys, "save", "-", code=1)[1]


def test_a_terminal_without_unicode_shows_escapes(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    answer(capsys, "save", *ADA, "Mag Käse")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["list", "--user", "ada"]) == 0
    narrow.seek(0)
    assert "Mag K\\xe4se" in narrow.read()


def test_moments_at_the_end_of_the_calendar_are_shown(capsys: Capture, store: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_TIMEZONE", "Asia/Tokyo")
    with open_store(store, embeddings=None) as opened:
        opened.put(("ada", "semantic"), "late", {"content": "x", "created_at": "9999-12-31T23:59:59+00:00"})
    assert main(["list", "--user", "ada"]) == 0
    assert "9999-12-31 23:59" in capsys.readouterr().out


def test_by_meaning_with_a_model_and_by_words_if_it_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    answer(capsys, "save", *ADA, "Adores cats", "--embeddings", "local")
    found = answer(capsys, "recall", *ADA, "feline", "--embeddings", "local")
    assert found["by_meaning"] is True
    assert found["memories"][0]["content"] == "Adores cats"

    def broken(_: object) -> None:
        raise OSError("the model's file is damaged")

    monkeypatch.setattr("inference_core.embeddings.local.LocalEmbeddings.load", broken)
    out, err = said(capsys, "recall", "cats", "--embeddings", "local")
    assert "Adores cats" in out
    assert "the model's file is damaged" in err
    assert err.splitlines()[-1].endswith("by words only")


def test_a_migration_that_the_store_refused_is_code_one(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    answer(capsys, "save", *ADA, "x")
    refused = MigrationReport("the store", failed=1, found=1)
    monkeypatch.setattr("inference_core.cli.transfer.migrate_memories", lambda *_, **__: refused)  # pyright: ignore[reportUnknownLambdaType]
    assert "FAILED: 1" in said(capsys, "migrate", code=1)[0]


def test_flat_memories_are_taken_over(capsys: Capture, store: str):
    with open_store(store, embeddings=None) as opened:
        opened.put(("ada", "memories"), "m1", {"content": "Likes tea", "memory_type": "preferences"})
    assert answer(capsys, "migrate", *ADA, "--dry-run")["written"] == 1
    assert answer(capsys, "list", *ADA)["total"] == 0
    assert "1 semantic" in said(capsys, "migrate")[0]
    assert answer(capsys, "migrate", *ADA)["written"] == 0
    assert [one["id"] for one in answer(capsys, "list", *ADA)["memories"]] == ["m1"]
