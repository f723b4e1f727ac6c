"""Stores and exports that earlier versions wrote are opened, found in, and written on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from databases import database
from golden_support import DUMPS, LOADS, WRITTEN, made
from support import GOLDEN

from inference_core import AgentMemoryStoreService, open_store
from inference_core.stores.backends import file
from inference_core.stores.backends.sql import postgres, sqlite
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock
from inference_core.transfer.json_lines import import_store

# A batch that is decided twice, as when the server does not have the script yet, counts two stamps. The version of the
# analysis changes without the schema.
STAMP = re.compile(r"0000000000[0-9a-f]{2}(?=\[)|snowball-\d+")
NAMES = (
    "sqlite-1.sqlite",
    "sqlite-2.sqlite",
    "sqlite-3.sqlite",
    "sqlite-4.sqlite",
    "sqlite-5.sqlite",
    "file-1",
    "export-1.jsonl",
    "postgres-1.sql",
    "postgres-2.sql",
    "redis-1.jsonl",
    "redis-2.jsonl",
    "redis-3.jsonl",
)
KEPT = [(kind, int(rest.partition(".")[0])) for kind, _, rest in (name.partition("-") for name in NAMES)]


@contextmanager
def opened(name: str, folder: Path) -> Generator[str]:
    """The URL of a copy."""
    kind = name.partition("-")[0]
    if kind in LOADS:
        with database(kind, folder, is_new=True) as url:
            kept = (GOLDEN / name).read_text(encoding="utf-8")
            LOADS[kind](url, kept)
            assert {*kept.splitlines()} <= {*DUMPS[kind](url).splitlines()}
            yield url
    elif kind == "export":
        url = f"sqlite:///{folder / 'imported.db'}"
        with closing(open_backend(url)) as backend:
            import_store(GOLDEN / name, backend)
        yield url
    else:
        copy = shutil.copytree if kind == "file" else shutil.copyfile
        yield f"{kind}:///{copy(GOLDEN / name, folder / name)}"


def test_every_file_is_tried() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir() if path.suffix != ".md") == sorted(NAMES)


def test_the_schemas_that_are_written_now_are_kept() -> None:
    """Regression: SQLite's fifth schema and PostgreSQL's second were written by no file, so nothing held them."""
    now = {"sqlite": sqlite.VERSION, "postgres": postgres.VERSION, "file": file.VERSION}
    newest = {kind: max(number for name, number in KEPT if name == kind) for kind in now}
    assert newest == now


def test_redis_is_still_written_as_it_was() -> None:
    """Regression: the script that writes golden files no longer ran, after a function that it replaces was renamed."""
    kept = (GOLDEN / "redis-3.jsonl").read_text(encoding="utf-8")
    assert STAMP.sub("stamp", made("redis")) == STAMP.sub("stamp", kept)


@pytest.mark.parametrize("name", NAMES)
def test_what_an_earlier_version_wrote_is_there(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as url, open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name="planner").sync
        found, total = service.list_memories("ada@example.com")
        assert total == 3
        assert {one.id: one.content for one in found} == {
            "tea": "Likes green tea \u2615",
            "bullets": "Answer in bullet points",
            "kyoto": "Talked about Kyoto",
        }
        assert {one.created_at for one in found} == {WRITTEN}
        tea = service.get_memory("ada@example.com", "tea")
        assert tea is not None
        assert (tea.topic, tea.metadata, tea.value["tags"]) == ("drinks", {"n": [1, None, "\u00fc"]}, ["a"])
        assert [hit.id for hit in service.recall_memories("ada@example.com", "green tea", 1)] == ["tea"]
        assert service.list_memories("bob")[0][0].content == "Likes black coffee"
        assert service.get_memory("ada@example.com", "gone") is None
        assert service.update_memory("ada@example.com", "tea", "Likes white tea")
        assert service.save_memory("bob", "Plays chess")
        assert service.save_memory("eve", "Has just come")
        assert [hit.content for hit in service.recall_memories("ada@example.com", "white tea", 1)] == [
            "Likes white tea"
        ]


@pytest.mark.parametrize("name", ["sqlite-4.sqlite", "sqlite-5.sqlite"])
def test_events_of_earlier_versions_are_genuine(name: str, tmp_path: Path) -> None:
    """Those of schema 4 have HMACs as MACs, and were written into the rows themselves."""
    with (
        opened(name, tmp_path) as url,
        open_store(url, embeddings=None, clock=FrozenClock(WRITTEN)) as store,
    ):
        service = AgentMemoryStoreService(store, clock=FrozenClock(WRITTEN)).sync
        before = service.verify_audit("ada@example.com")
        assert (before.events, before.sealed, before.problems) == (5, 5, ())
        service.save_memory("ada@example.com", "Likes black tea")
        after = service.verify_audit("ada@example.com", before.head)
        assert (after.events, after.sealed, after.problems) == (6, 5, ())
