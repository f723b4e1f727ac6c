"""``import`` reads what people bring along: exports of chats, message lists, threads, memories of mem0.

Guards against newcomers who have to write a converter first. Each source is stored once, however often it is imported.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, answer
from databases import database
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main
from inference_core.ingestion import FORMATS
from inference_core.ingestion.formats.transcripts import read_conversations
from inference_core.ingestion.verbatim import ingest

NOON = datetime(2025, 3, 4, 12, tzinfo=UTC)


def node(name: str, parent: str | None, role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    content = {"content_type": fields.pop("kind", "text"), "parts": list(parts)}
    message = {"id": name, "author": {"role": role}, "create_time": NOON.timestamp(), "content": content, **fields}
    return {"id": name, "parent": parent, "children": [], "message": message}


CHATGPT = [
    {
        "title": "Lunch",
        "conversation_id": "c1",
        "current_node": "n7",
        "mapping": {
            "root": {"id": "root", "parent": None, "children": ["n1"], "message": None},
            "n1": node("n1", "root", "system", "", metadata={"is_visually_hidden_from_conversation": True}),
            "n2": node("n2", "n1", "user", "I am vegan"),
            "n3": node("n3", "n2", "assistant", "Abandoned answer"),
            "n4": node("n4", "n2", "assistant", "thinking", kind="thoughts"),
            "n5": node("n5", "n4", "tool", "search result: eat steak"),
            "n6": node("n6", "n5", "assistant", "Try the falafel"),
            "n7": node(
                "n7", "n6", "user", {"content_type": "image_asset_pointer"}, "This one?", kind="multimodal_text"
            ),
        },
    }
]
CLAUDE = [
    {
        "uuid": "k1",
        "name": "Trip",
        "chat_messages": [
            {"uuid": "a", "sender": "human", "text": "old", "content": [{"type": "text", "text": "I fly to Oslo"}]},
            {
                "uuid": "b",
                "sender": "assistant",
                "created_at": "2025-03-04T12:00:00Z",
                "content": [{"type": "tool_use", "name": "search"}, {"type": "text", "text": "Take a coat"}],
            },
            {"uuid": "c", "sender": "human", "text": "Thanks", "attachments": [{"extracted_content": "a PDF"}]},
        ],
    }
]
OPENAI = [
    {"role": "system", "content": "Be brief"},
    {"role": "user", "content": [{"type": "input_text", "text": "I play the cello"}]},
    {"role": "assistant", "content": None, "tool_calls": [{}]},
    {"role": "assistant", "content": "Nice"},
]
WHATSAPP = """\
[31.01.25, 09:30:05] Ada: Dinner at seven?
bring wine
[31.01.25, 09:31:00] \u200eMessages and calls are end-to-end encrypted.
[31.01.25, 09:31:07] Bob: \u200eimage omitted
[01.02.25, 10:00:00] Bob: Yes: the red one
"""
MEM0 = {
    "results": [
        {
            "id": "11111111-1111-1111-1111-111111111111",
            "memory": "Loves hiking",
            "hash": "h",
            "metadata": {"category": "hobbies"},
            "created_at": "2025-03-04T12:00:00-00:00",
            "updated_at": None,
            "user_id": "ada",
            "run_id": "r1",
            "role": "user",
        },
        {"id": "2", "memory": "Bob's", "user_id": "bob", "created_at": "2025-03-04T12:00:00"},
        {"id": "3", "memory": "Of an agent", "agent_id": "planner"},
    ]
}
QDRANT = {
    "result": {
        "points": [
            {
                "id": "2222",
                "payload": {"data": "Loves tea", "user_id": "ada", "hash": "h", "created_at": "2025-03-04", "mood": 1},
            }
        ],
        "next_page_offset": None,
    }
}


@pytest.fixture(autouse=True)
def url(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    return sqlite_url


@pytest.fixture
def contents(url: str) -> Callable[[], list[str]]:
    def stored() -> list[str]:
        with open_store(url, embeddings=None) as store:
            found = AgentMemoryStoreService(store).sync.list_memories("ada", limit=None)[0]
            return [one.content for one in reversed(found)]

    return stored


def saved(path: Path, value: Any, member: str | None = None) -> str:
    """A file with ``value`` as JSON, or as ``member`` of a zip archive."""
    text = value if isinstance(value, str) else json.dumps(value)
    if member is None:
        path.write_text(text, encoding="utf-8")
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, text)
            archive.writestr("export/user.json", "{}")
    return str(path)


PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text("utf-8")
SAMPLES = re.findall(
    r"^`(\w+)`([^\n]*):\n\n```\w+\n(.*?)^```$", PAGE.partition("### Samples")[2], re.MULTILINE | re.DOTALL
)
"""The samples in the documentation: the format, what else is said of them, the file."""


def test_every_format_has_a_sample():
    assert {form for form, *_ in SAMPLES} == {*FORMATS, "mem0"} - {"locomo", "beam", "langgraph"}


@pytest.mark.parametrize(("form", "said", "text"), SAMPLES, ids=[f"{form}{said}" for form, said, _ in SAMPLES])
def test_the_samples_of_the_documentation_are_read(
    form: str, said: str, text: str, tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]
):
    found = answer(capsys, "import", saved(tmp_path / "chat", text), "--user", "ada", "--strict")
    if form == "mem0":
        assert (found["written"], found["by_layout"]) == (1, {"mem0": 1})
        assert contents() == ["I play the cello"]
    else:
        assert (found["format"], found["memories"]) == (form, 2)
        assert [one.removeprefix("Bob: ") for one in contents()] == ["I play the cello", "Since when?"]


CHATS = [
    ("chatgpt", CHATGPT, None, ["I am vegan", "Try the falafel", "This one?"]),
    ("chatgpt", CHATGPT, "export/conversations.json", ["I am vegan", "Try the falafel", "This one?"]),
    ("claude", CLAUDE, None, ["I fly to Oslo", "Take a coat", "Thanks", "attachment: a PDF"]),
    ("claude", CLAUDE, "conversations.json", ["I fly to Oslo", "Take a coat", "Thanks", "attachment: a PDF"]),
    ("openai", OPENAI, None, ["I play the cello", "Nice"]),
    ("openai", {"messages": OPENAI}, None, ["I play the cello", "Nice"]),
    ("openai", [OPENAI, OPENAI[1:2]], None, ["I play the cello", "Nice", "I play the cello"]),
    ("openai", messages_to_dict([HumanMessage("Hi", id="1"), AIMessage("Ho")]), None, ["Hi", "Ho"]),
    ("whatsapp", WHATSAPP, None, ["Dinner at seven?\nbring wine", "Bob: Yes: the red one"]),
    ("whatsapp", WHATSAPP, "_chat.txt", ["Dinner at seven?\nbring wine", "Bob: Yes: the red one"]),
]


@pytest.mark.parametrize(("form", "value", "member", "expected"), CHATS)
def test_conversations_are_remembered_word_for_word(
    form: str,
    value: Any,
    member: str | None,
    expected: list[str],
    tmp_path: Path,
    capsys: Capture,
    contents: Callable[[], list[str]],
):
    file = saved(tmp_path / "chat", value, member)
    found = answer(capsys, "import", file, "--user", "ada")
    assert (found["format"], found["memories"]) == (form, len(expected))
    assert contents() == expected
    again = answer(capsys, "import", file, "--user", "ada")
    assert (again["memories"], again["already_there"]) == (0, len(expected))
    assert answer(capsys, "ingest", file, "--user", "ada")["memories"] == 0


def test_ids_times_and_sessions_are_kept_and_what_a_tool_said_is_nobodys_word(
    tmp_path: Path, capsys: Capture, url: str
):
    answer(capsys, "import", saved(tmp_path / "chat.json", CHATGPT), "--user", "ada")
    answer(capsys, "import", saved(tmp_path / "chat.txt", WHATSAPP), "--user", "ada")
    with open_store(url, embeddings=None) as store:
        found = {
            one.content: one.value for one in AgentMemoryStoreService(store).sync.list_memories("ada", limit=None)[0]
        }
    vegan, falafel = found["I am vegan"], found["Try the falafel"]
    assert (vegan["session_id"], vegan["valid_from"]) == ("c1", NOON.isoformat())
    assert vegan["source"]["message_ids"] == ["n2"]
    assert (vegan["source"]["origin"], falafel["source"]["origin"]) == ("user", "tool")
    dinner = found["Dinner at seven?\nbring wine"]
    assert (dinner["session_id"], dinner["valid_from"]) == ("chat 2025-01-31", "2025-01-31T09:30:05+00:00")


def test_a_worker_can_make_memories_of_them(tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]):
    file = saved(tmp_path / "chat.json", CHATGPT)
    found = answer(capsys, "import", file, "--user", "ada", "--queue")
    assert (found["queued"], found["skipped"]) == (3, {"system": 2, "tool": 1, "parts without text": 1})
    assert contents() == []
    assert answer(capsys, "queue", "status")["waiting"] == 3
    assert answer(capsys, "import", file, "--user", "ada", "--queue")["queued"] == 0
    assert answer(capsys, "worker", "--once")["messages"] == 3


def test_whose_conversations_these_are_has_to_be_said(tmp_path: Path, capsys: Capture):
    assert main(["import", saved(tmp_path / "chat.json", CHATGPT)]) == 2
    assert "--user ID" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1}, "in no known format"),
        ([{"a": 1}, {"b": [2]}], "in no known format"),
        ([], "holds nothing to import"),
        ({"results": []}, "holds nothing to import"),
        ({"count": 0, "next": None, "previous": None, "results": []}, "holds nothing to import"),
    ],
)
def test_what_holds_nothing_to_import_asks_for_no_user(value: Any, said: str, tmp_path: Path, capsys: Capture):
    """It asked for the user of these conversations, and only then said that there are none."""
    file = saved(tmp_path / "x.json", value)
    for options in ([], ["--user", "ada"]):
        assert main(["import", file, *options]) == 1
        assert said in capsys.readouterr().err


def test_what_cannot_be_read_is_counted_and_listed(tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]):
    odd = node("n2", "n1", "user", "x") | {"message": {"author": None}}
    chat = {"id": "c2", "mapping": {"n1": node("n1", None, "user", "I row", create_time="soon"), "n2": odd}}
    file = saved(tmp_path / "chat.json", [None, *CHATGPT, chat])
    found = answer(capsys, "import", file, "--user", "ada")
    assert found["left_out"] == [
        "value 1: it is not a conversation of ChatGPT with a 'mapping'",
        "value 3, node n2: its author has no 'role'",
    ]
    counted = {"not a conversation": 1, "unknown role": 1, "times that cannot be read": 1}
    assert {reason: found["skipped"][reason] for reason in counted} == counted
    assert contents() == ["I am vegan", "Try the falafel", "This one?", "I row"]
    assert main(["import", file, "--user", "ada", "--strict"]) == 1
    assert "chat.json, value 1: it is not a conversation of ChatGPT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("conversations.json", CHATGPT, "chatgpt"),
        ("ChatGPT export/conversations-000.json", CHATGPT, "chatgpt"),
        ("data/conversations.json", CLAUDE, "claude"),
        ("WhatsApp Chat - Bob/_chat.txt", WHATSAPP, "whatsapp"),
    ],
)
def test_the_folder_of_an_export_is_read(name: str, value: Any, form: str, tmp_path: Path, capsys: Capture):
    """It counted as a data set."""
    (tmp_path / "export" / name).parent.mkdir(parents=True)
    saved(tmp_path / "export" / name, value)
    (tmp_path / "export" / "user.json").write_text("{}", encoding="utf-8")
    found = answer(capsys, "import", str(tmp_path / "export"), "--user", "ada")
    assert (found["format"], found["memories"] > 1) == (form, True)


def test_a_graph_of_ones_own_may_keep_other_messages(
    tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]
):
    place = str(tmp_path / "checkpoints.db")
    said: list[Any] = [
        {"role": "user", "content": "I sail"},
        5,
        HumanMessage("I row", additional_kwargs={"timestamp": {}}),
    ]
    with SqliteSaver.from_conn_string(place) as saver:
        for thread, messages in [("t1", said), ("t2", "no list"), ("t3", [HumanMessage("I ride")])]:
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": messages}
            config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            saver.put(config, checkpoint, {"user_id": "ada"}, {})  # pyright: ignore[reportArgumentType]
        saver.conn.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 't2'")
        saver.conn.commit()
    found = answer(capsys, "import", place, "--user", "ada")
    assert contents() == ["I sail", "I row", "I ride"]
    assert [one.partition(":")[0] for one in found["left_out"]] == ["thread t1, message 2", "thread t2"]


def threads(saver: BaseCheckpointSaver[str]) -> None:
    for thread, user, messages in [
        ("t1", "ada", [SystemMessage("x"), HumanMessage("I sail", id="h"), ToolMessage("y", tool_call_id="1")]),
        ("t2", "bob", [HumanMessage("Bob's secret")]),
        ("t3", None, [HumanMessage("Nobody's"), AIMessage("Hello", additional_kwargs={"timestamp": "2025-03-04"})]),
    ]:
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages, "other": {1, 2}}
        checkpoint["channel_versions"] = {"messages": "1", "other": "1"}
        metadata: Any = {"source": "loop", "step": 1, "parents": {}} | ({"user_id": user} if user else {})
        saver.put({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, checkpoint, metadata, {"messages": "1"})


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_threads_of_the_user_and_named_ones_are_read(
    kind: str, tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]
):
    """A checkpointer holds everybody's threads: one user's never become another's memories."""
    if kind == "sqlite":
        place = str(tmp_path / "checkpoints.db")
        with SqliteSaver.from_conn_string(place) as saver:
            threads(saver)
        before = Path(place).read_bytes()
        check_threads(place, capsys, contents)
        assert Path(place).read_bytes() == before
    else:
        with database("postgres", tmp_path, is_new=True) as place:
            with PostgresSaver.from_conn_string(place) as saver:
                saver.setup()
                threads(saver)
            check_threads(place.replace("postgresql:", "postgresql+psycopg:"), capsys, contents)


def check_threads(place: str, capsys: Capture, contents: Callable[[], list[str]]) -> None:
    found = answer(capsys, "import", place, "--user", "ada")
    assert (found["format"], found["memories"]) == ("langgraph", 1)
    assert found["skipped"] == {"threads of other users": 1, "threads that name no user": 1, "system": 1, "tool": 1}
    assert contents() == ["I sail"]
    assert answer(capsys, "import", place, "--user", "ada", "--thread", "t3")["memories"] == 2
    assert contents() == ["I sail", "Nobody's", "Hello"]
    for thread, message in [("t2", "is another user's"), ("t9", "has no thread")]:
        assert main(["import", place, "--user", "ada", "--thread", thread]) == 1
        assert message in capsys.readouterr().err


def test_a_database_without_checkpoints_is_told(url: str, capsys: Capture, tmp_path: Path):
    open_store(url, embeddings=None).close()
    assert main(["import", url.removeprefix("sqlite:///"), "--user", "ada"]) == 1
    assert "no such table: checkpoints" in capsys.readouterr().err
    with database("postgres", tmp_path, is_new=True) as place:
        assert main(["import", place, "--user", "ada"]) == 1
        assert "PostgreSQL: " in capsys.readouterr().err


@pytest.mark.parametrize(("value", "content"), [(MEM0, "Loves hiking"), (QDRANT, "Loves tea"), (MEM0["results"], None)])
def test_memories_of_mem0_are_memories(
    value: Any, content: str | None, tmp_path: Path, capsys: Capture, url: str, contents: Callable[[], list[str]]
):
    file = saved(tmp_path / "mem0.json", value)
    found = answer(capsys, "import", file, "--user", "ada")
    assert (found["written"], found["by_layout"], found["skipped"]) == (1, {"mem0": 1}, 0)
    assert contents() == [content or "Loves hiking"]
    whole = answer(capsys, "import", file)
    assert whole["already_there"] == 1
    if value is MEM0:
        assert (whole["written"], whole["skipped_by_reason"]) == (1, {"it names no user": 1})
        with open_store(url, embeddings=None) as store:
            (one,) = AgentMemoryStoreService(store).sync.list_memories("ada")[0]
        assert (one.id, one.created_at, one.value["session_id"]) == (MEM0["results"][0]["id"], NOON, "r1")
        assert one.metadata == {"category": "hobbies", "legacy": {"hash": "h", "role": "user"}}
    elif value is QDRANT:
        with open_store(url, embeddings=None) as store:
            (one,) = AgentMemoryStoreService(store).sync.list_memories("ada")[0]
        assert one.metadata == {"mood": 1, "legacy": {"hash": "h"}}


def test_rows_of_mem0_that_are_no_memories_are_listed(
    tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]
):
    rows = [None, {"id": 1, "memory": "Loves tea", "user_id": 42}, {"id": 2, "memory": 5}, *MEM0["results"][:1]]
    file = saved(tmp_path / "mem0.json", {"results": rows})
    found = answer(capsys, "import", file)
    assert (found["written"], found["undated"], found["skipped_by_reason"]) == (2, 1, {"it is no memory of mem0": 2})
    assert [one["id"] for one in found["left_out"]] == ["value 1, memory 1", "value 1, memory 3"]
    assert contents() == ["Loves hiking"]
    assert answer(capsys, "import", file)["already_there"] == 2
    assert main(["import", file]) == 0
    assert "Without a time that can be read" in capsys.readouterr().out
    assert main(["import", file, "--strict"]) == 1
    assert "value 1, memory 1 is not a memory of mem0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("monday.json", "tuesday.json", [{"messages": OPENAI[1:2]}]),
        ("monday.json", "tuesday.json", [OPENAI[1:2]]),
        ("Chat - Bob/_chat.txt", "Chat - Eve/_chat.txt", WHATSAPP),
    ],
)
def test_regression_chats_of_two_files_are_not_one(
    first: str, second: str, value: Any, tmp_path: Path, capsys: Capture, contents: Callable[[], list[str]]
):
    """The second file's messages went into the first one's session, and those that also stand there were left out."""
    for name in (first, second):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        found = answer(capsys, "import", saved(tmp_path / name, value), "--user", "ada")
        assert (found["already_there"], found["memories"]) == (0, found["messages"])
        assert answer(capsys, "import", str(tmp_path / name), "--user", "ada")["memories"] == 0
    assert len(contents()) == 2 * found["memories"]


def test_regression_a_chat_is_read_beside_the_files_that_were_sent_in_it(tmp_path: Path, capsys: Capture):
    path = tmp_path / "chat.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_chat.txt", WHATSAPP)
        archive.writestr("00000012-notes.txt", "caf\xe9".encode("latin-1"))
    assert answer(capsys, "import", str(path), "--user", "ada")["memories"] == 2
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no chat")
    assert main(["import", str(path), "--user", "ada"]) == 1
    assert "no messages in a form of WhatsApp that is known" in capsys.readouterr().err


def test_regression_progress_ends_at_all(tmp_path: Path, url: str):
    """Threads of others, and what has to wait but cannot, were counted as done, but not in the total."""
    place = str(tmp_path / "checkpoints.db")
    with SqliteSaver.from_conn_string(place) as saver:
        threads(saver)
    with open_store(url, embeddings=None) as store:
        scope = AgentMemoryStoreService(store).scope
        transcript = read_conversations("langgraph", place, user_id="ada")
        assert [one.done for one in ingest(scope, "ada", transcript)][-1] == transcript.total
