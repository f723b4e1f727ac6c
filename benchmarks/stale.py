"""Which results are older than the code that they measure, what changed since, and which pages cite them.

Each result keeps a digest of the code behind every path that `measured.toml` names for it, so that neither dates nor
commits decide. A stale result fails unless `measured.toml` accepts it, with a reason and for the code as it is now.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
MEASURED: Final[dict[str, Any]] = tomllib.loads((ROOT / "benchmarks" / "measured.toml").read_text(encoding="utf-8"))
_DATA: Final = {".toml", ".json", ".npz"}
_CITED: Final = re.compile(r"benchmarks/results/(\w+)\.(?:md|json)|scripts/bench (\w+)")


def paths_of(name: str) -> list[str]:
    """The paths that the result measures, relative to the root; none if it is not listed."""
    if (entry := MEASURED["results"].get(name)) is None:
        return []
    groups = [path for group in entry.get("code", ()) for path in MEASURED["code"][group]]
    script = f"benchmarks/{entry.get('script', name)}.py"
    return [*dict.fromkeys(f"inference_core/{path}" for path in [*groups, *entry.get("also", ())]), script]


def digests(name: str) -> dict[str, str]:
    """The digest of the code of each of the result's paths, as it is now."""
    return {path: digest(ROOT / path) for path in paths_of(name)}


def mark_of(name: str) -> str:
    """One digest of all that the result measures, as it is now: what `measured.toml` accepts it for."""
    return hashlib.sha256("".join(digests(name).values()).encode()).hexdigest()[:8]


def last_changed(name: str) -> float:
    """When a file of the result's paths has changed last, in seconds since 1970; 0 if it measures none."""
    files = (file for path in paths_of(name) for file in _files(ROOT / path))
    return max((file.stat().st_mtime for file in files), default=0.0)


def _files(path: Path) -> list[Path]:
    """The files below ``path``, or itself, that say what is measured."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sorted(file for file in files if file.suffix in {".py", *_DATA})


@cache
def digest(path: Path) -> str:
    """A digest of what the code in a file or folder does: of its statements, in whichever file they stand."""
    marks: list[str] = []
    for file in _files(path):
        if file.suffix == ".py":
            marks += _statements(ast.parse(file.read_bytes()))
        else:
            marks.append(hashlib.sha256(file.read_bytes()).hexdigest())
    return hashlib.sha256("".join(sorted(marks)).encode()).hexdigest()[:16]


def _statements(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom) and not _is_text(statement):
            yield hashlib.sha256(repr(_shape(statement)).encode()).hexdigest()


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _shape(node: Any) -> Any:
    """A syntax tree as tuples, without docstrings, imports and empty fields, the same for every version of Python."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node) if value not in (None, []))
        return (type(node).__name__, *fields)
    if isinstance(node, list):
        left = (one for one in node if not _is_text(one) and not isinstance(one, ast.Import | ast.ImportFrom))
        return tuple(_shape(one) for one in left)
    return node


def changed_since(name: str) -> list[str] | None:
    """The paths whose code is another one than when the result was measured; None if the result keeps no digests."""
    kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")).get("code")
    return None if not kept else [path for path, mark in digests(name).items() if kept.get(path) != mark]


def cited() -> dict[str, set[str]]:
    """The pages that cite each result, or name the benchmark that writes it."""
    found: dict[str, set[str]] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for result, command in _CITED.findall(page.read_text(encoding="utf-8")):
            if command != "stale":
                found.setdefault(result or command, set()).add(page.relative_to(ROOT).as_posix())
    return found


def main() -> int:
    """Shows a table; 1 if a stale result is not accepted, or a page cites a result that does not exist."""
    pages, accepted = cited(), MEASURED["accepted"]
    results = sorted(file.stem for file in RESULTS.glob("*.json"))
    table = Table(title="Results and the code that they measure")
    for heading in ("result", "measured", "", "changed since", "cited by"):
        table.add_column(heading)
    stale: list[str] = []
    for name in results:
        changed = changed_since(name)
        state = "fresh"
        if changed is None or changed:
            mark = mark_of(name)
            is_accepted = accepted.get(name, {}).get("code") == mark
            state = f"accepted: {accepted[name]['why']}" if is_accepted else f"STALE at {mark}"
            stale += [] if is_accepted else [name]
        what = (
            ["unknown: no digests"] if changed is None else [path.removeprefix("inference_core/") for path in changed]
        )
        date = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["machine"]["date"][:10]
        by = pages.get(name, set()) | pages.get(MEASURED["results"].get(name, {}).get("script", name), set())
        table.add_row(name, date, state, " ".join(what), " ".join(sorted(by)))
    Console(width=180).print(table)
    missing = sorted(name for name in pages if not any(one.startswith(name) for one in results))
    for name in missing:
        print(f"{' '.join(sorted(pages[name]))}: no result of {name!r} is committed")
    print(f"{len(stale)} of {len(results)} results are stale: {' '.join(stale)}")
    return int(bool(stale or missing))


if __name__ == "__main__":
    sys.exit(main())
