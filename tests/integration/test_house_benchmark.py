"""The benchmark of the package's structure: what counts as code, as a circle, and as a frame before the body."""

from __future__ import annotations

import sqlite3
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {
    "__init__": "",
    "one": "from some.two import f\n\ndef g(a, b, c, d, e, f, g, h, *i):\n    return _h()\n\ndef _h():\n    return 1\n",
    "two": '"""Says."""\n\ndef f():\n    """Says."""\n    from some import one  # late\n\n    return one\n',
}
CALLS = """
def public(connection):
    yield from passing(connection)

def passing(connection):
    yield
    body(connection)

def body(connection):
    for _ in range(9):
        connection.execute("SELECT 1")
        (lambda: leaf())()

def leaf():
    pass
"""


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_the_text_is_counted(benchmarks: None, tmp_path: Path):
    (tmp_path / "some").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "some" / f"{name}.py").write_text(text)
    found = import_module("house").read(tmp_path / "some")
    assert found["lines"] == {".": 6}
    assert found["modules"] == 3
    assert found["one_importer"] == ["some.one", "some.two"]
    assert found["many_parameters"] == ["g"]
    assert (found["used_once"], found["private"]) == (1, 1)
    assert [*found["circles"].values()] == [[], [["some.one", "some.two"]], [["some.one", "some.two"]]]


def test_the_body_is_found_by_its_reads_and_calls(benchmarks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    walks: Any = import_module("walk")
    monkeypatch.setattr(walks, "QUIET_S", 0)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "walked_calls.py").write_text(CALLS)
    calls, walk, hook = import_module("walked_calls"), walks.Walk(tmp_path), sys.getprofile()
    with walk.watching():
        connection = sqlite3.connect(":memory:")
        found = walk.watched(lambda: [*calls.public(connection)], first=True)
        connection.close()
    sys.setprofile(hook)
    assert found["body"] == "walked_calls:body"
    assert found["frames"] == ["walked_calls:passing"]
    assert found["closures"] == ["walked_calls:body.<locals>.<lambda>"]
    assert (found["functions"], found["calls"], len(found["statements"])) == (5, 23, 9)
