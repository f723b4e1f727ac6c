"""Results of benchmarks: a table on the screen, and a file with machine, versions and date."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from stale import digests, last_changed

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("inference-core-memory", "langchain", "langgraph", "langgraph-checkpoint", "numpy", "onnxruntime")
_MARKS = {True: "reached", False: "MISSED", None: ""}
_BEGAN = time.time()
Row = tuple[str, str, str, bool | None]
"""What was measured, the result, the bar, and whether it was reached (None: there is no bar)."""


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version(name) for name in PACKAGES},
    }


def publish(
    name: str, rows: list[Row], details: Mapping[str, Any] | None = None, *, shown: bool = True, written: bool = True
) -> bool:
    """Shows ``rows`` and writes them to ``results/<name>.json`` and ``.md``; whether every bar was reached."""
    if shown:
        show(name, rows)
    if written:
        write(name, rows, details or {})
    return all(reached is not False for *_, reached in rows)


def show(name: str, rows: list[Row]) -> None:
    """``rows`` as a table on the screen."""
    table = Table(title=name)
    for heading in ("measured", "result", "bar", ""):
        table.add_column(heading)
    for what, result, bar, reached in rows:
        table.add_row(what, result, bar, _MARKS[reached])
    Console().print(table)


def write(name: str, rows: list[Row], details: Mapping[str, Any]) -> None:
    """``rows`` and ``details`` as files, with machine, versions and date."""
    RESULTS.mkdir(exist_ok=True)
    facts = machine()
    code = digests(name)
    if last_changed(name) > _BEGAN:
        print("The code has changed while it was measured: this result counts as stale", file=sys.stderr)
        code = {}
    document = {"name": name, "machine": facts, "code": code, "rows": rows, "details": details}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [f"| {what} | {result} | {bar} | {_MARKS[reached]} |" for what, result, bar, reached in rows]
    where = f"{facts['date']}, {facts['processors']} x {facts['architecture']}, Python {facts['python']}"
    text = "\n".join([f"# {name}", "", where, "", "| measured | result | bar | |", "|---|---|---|---|", *lines, ""])
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
