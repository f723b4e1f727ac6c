"""Results as tables in notebooks, and the example notebook."""

from __future__ import annotations

import asyncio
import html
import os
import re
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import nbformat
import pytest
from nbclient import NotebookClient

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.ingestion.analytics import statistics
from inference_core.memory.receipt import Receipt, ReceiptDrop, ReceiptLine, ReceiptPlace
from inference_core.memory.record import LONGEST, MemoryPage, table

ROOT = Path(__file__).parents[2]
HOSTILE = "<img src=x onerror=alert(1)></table><script>1</script> \u202e'\" &amp; \x1b[31m"


class Parsed(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements, self.attributes, self.texts = set[str](), set[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def inert(result: object) -> Parsed:
    """The page of a ``result``, in which only our own elements are, and no mark that turns or hides text."""
    page: str = cast("Any", result)._repr_html_()
    found = Parsed(page)
    assert found.elements <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "span"}
    assert found.attributes <= {"style"}
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", page)
    return found


def test_hostile_memories_are_inert():
    with closing(open_store("memory://", embeddings=None)) as store:
        service = AgentMemoryStoreService(store)
        memory = service.sync
        one = memory.save_memory("ada", HOSTILE, "facts", topic=HOSTILE)
        memory.save_memory("ada", "Something else")
        recalled = memory.recall_memories("ada", "img script", explain=True, min_relevance=1.0)
        assert any("img src=x" in text for text in inert(recalled).texts)
        assert "Left out" in inert(recalled).texts
        found = inert(memory.recall_memories("ada", "img script", explain=True))
        assert {"memory", "relevance", "score", "lexical"} <= {*found.texts}
        assert "2 memories" in inert(memory.recall_memories("ada", "")).texts
        memory.update_memory("ada", one, f"Now {HOSTILE}")
        assert [text for text in inert(memory.why("ada", one)).texts if text in ("before", "now")] == ["before", "now"]
        listed, _ = memory.list_memories("ada")
        for page in (listed, service.store.memory("ada").all()):  # pyright: ignore[reportAttributeAccessIssue] - it is ours
            assert {"2 memories", "Something else", "topic"} <= {*inert(page).texts}, "regression: they had no table"
        assert "1 memory" in inert(MemoryPage(listed[:1])).texts
        assert MemoryPage([*listed, 1])._repr_html_() is None
        memory.delete_memory("ada", one)
        assert "gone: deleted" in inert(memory.why("ada", one)).texts
        assert "Told 0 times" in inert(memory.why("ada", "none")).texts
        assert "can be restored" in inert(run(statistics(service.scope, "ada"))).texts


def test_a_receipt_is_a_table():
    now = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    line = ReceiptLine(id="m-1", version=2, place=ReceiptPlace.RECALLED, rank=1, score=2.0, relevance=0.5)
    receipt = Receipt(
        id="r", at=now, until=now + timedelta(days=1), recalled_at=now, zone="UTC", status="recalled", tokens=70,
        placement="last_user", has_profile=False, form="xml", lines=(line,), profile_hash="", block_hash="",
        dropped=(ReceiptDrop(id="m-2", version=1, reason=HOSTILE),),
    )  # fmt: skip
    found = inert(receipt)
    assert "2026-01-02 03:04, recalled, 70 tokens" in found.texts
    assert {"m-1", "m-2", "left out"} <= {*found.texts}


def test_long_texts_are_cut():
    assert Parsed(table("", [""], [["x" * 1_000]])).texts[-1] == "x" * LONGEST + "…"


@pytest.mark.untraced
async def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_python: str):
    """Each cell, in a kernel; and each table is there."""
    monkeypatch.setattr(sys, "executable", quick_python)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook: Any = nbformat.read(ROOT / "examples" / "explore.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    await asyncio.wait_for(client.async_execute(), 60)
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    pages = [html.unescape(one["data"]["text/html"]) for one in outputs if "text/html" in one.get("data", {})]
    assert len(pages) == 5
    assert "Ada lives in Lisbon" in pages[0]
    assert "Ada lives in Porto" in pages[2]
    assert "recalled" in pages[3]
    assert "By type" in pages[4]
