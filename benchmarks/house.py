"""How the package is built: its size, modules and circles, and what runs between a public call and the rows it reads.

Counted, not timed: numbers are the same on every machine, up to what the background happens to do meanwhile. No module
is known by its name, except those that pages of the documentation import; what a call passes through is found with the
interpreter's profile hook on every thread, and what it asks of SQLite with the trace of each connection.
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeGuard

import httpx
from command import Options, Result, bar, plain, run
from corpus import ASKER, queries, turns
from langchain.agents import create_agent
from report import Row
from timing import scratch
from walk import Walk

import inference_core
from inference_core import (
    AgentMemoryStoreService,
    CaptureMiddleware,
    MemoryMiddleware,
    MemoryStore,
    RuleExtractor,
    open_store,
)
from inference_core.server.app import create_app
from inference_core.server.identity.gate import Access
from inference_core.testing import ScriptedChatModel

PACKAGE: Final = Path(inference_core.__file__).parent
MEMORIES: Final = 300
ROUNDS: Final = 3
"""Of so many rounds the middle one is reported, by its calls, after one that warms up."""
MANY_PARAMETERS: Final = 8
MANY_FILES: Final = 13
STATED: Final = ("I live in Lisbon.", "I am allergic to peanuts.", "I work at Siemens.", "My sister is called Maya.")
IMPORTS: Final = ("on loading", "also in functions", "also for type checkers")
"""Each kind of imports includes the one before."""
_SPACE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_ASKED_FOR: Final = r"""'(\[[^']*\])', ?'{}'"""
"""A namespace beside a row's id, in a statement with its values."""


# The text -------------------------------------------------------------------------------------------------------------


def code_lines(source: str) -> int:
    """Lines without blank ones, comments, docstrings and imports."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for one in tokens if one.type not in _SPACE for line in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imported(tree: ast.AST, modules: Mapping[str, Any], kind: int = 0) -> Iterator[tuple[int, str]]:
    """The ``modules`` that a module's text imports, each with the kind of the import, as a position in `IMPORTS`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield kind, whole if whole in modules else node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((kind, name.name) for name in node.names)
        is_typed = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imported(node, modules, max(kind, 2 if is_typed else int(is_function)))


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules from each of which every other one is reached."""
    reached = {name: _reached(name, arrows) for name in arrows}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in arrows}
    return sorted(sorted(group) for group in groups if group)


def _reached(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found, left = set[str](), [*arrows[start]]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += arrows[name]
    return found


def read(package: Path = PACKAGE) -> Result:
    """What the text of a package tells."""
    paths = sorted(package.rglob("*.py"))
    sources = {_name(path, package): path.read_text(encoding="utf-8") for path in paths}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    found = {name: [one for one in imported(tree, trees) if one[1] in trees] for name, tree in trees.items()}
    arrows = [
        {name: {other for kind, other in pairs if kind <= most and other != name} for name, pairs in found.items()}
        for most in range(len(IMPORTS))
    ]
    importers = Counter(other for others in arrows[-1].values() for other in others)
    lines = Counter[str]()
    for path, source in zip(paths, sources.values(), strict=True):
        inner = path.relative_to(package).parts
        lines[inner[0] if len(inner) > 1 else "."] += code_lines(source)
    folders = Counter(path.parent.relative_to(package.parent).as_posix() for path in paths)
    functions = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    used_once, private = _private(trees.values())
    return {
        "lines": dict(sorted(lines.items())),
        "modules": len(paths),
        "one_importer": [
            name for name, path in zip(sources, paths, strict=True) if importers[name] == 1 and path.name[:2] != "__"
        ],
        "private": private,
        "used_once": used_once,
        "many_parameters": sorted(one.name for one in functions if _parameters(one.args) > MANY_PARAMETERS),
        "many_files": [folder for folder, files in folders.items() if files > MANY_FILES],
        "circles": {kind: circles(some) for kind, some in zip(IMPORTS, arrows, strict=True)},
    }


def _name(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in named) + sum(map(bool, (arguments.vararg, arguments.kwarg)))


def _private(trees: Iterable[ast.AST]) -> tuple[int, int]:
    """How many private functions their module uses once, and how many there are."""
    uses: list[int] = []
    for tree in trees:
        nodes = [*ast.walk(tree)]
        used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        used += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        uses += [used[name] for name in names if name[0] == "_" and name[:2] != "__"]
    return uses.count(1), len(uses)


# The paths ------------------------------------------------------------------------------------------------------------


def walked(options: Options) -> Result:
    """What each path passes through: the middle one of a few rounds."""
    walk, found = Walk(PACKAGE), dict[str, Any]()
    with scratch() as folder, walk.watching(), asyncio.Runner() as loop, _opened(folder) as store:
        service = AgentMemoryStoreService(store).sync
        for turn in turns(options.n):
            service.save_memory(ASKER, turn.text, turn.record().memory_type.value)
        (memory, *_), _ = service.list_memories(ASKER)
        for name, call in paths(store, memory.id, loop).items():
            first = name != "capture and drain"
            rounds = [walk.watched(call, first=first) for _ in range(ROUNDS + 1)]
            found[name] = sorted(rounds[1:], key=_calls)[ROUNDS // 2]
        found["update"]["reads"] = sum(_is_read(memory.id, one) for one in found["update"]["statements"])
    for path in found.values():
        path["statements"] = len(path["statements"])
    return found


def _opened(folder: Path) -> MemoryStore:
    return open_store(f"sqlite:///{folder / 'house.db'}", embeddings=None)


def _calls(path: Result) -> int:
    return path["calls"]


def _is_read(memory: str, statement: str) -> bool:
    """Whether a statement asks for this memory, and not only for one of the same id in other namespaces."""
    beside = re.findall(_ASKED_FOR.format(memory), statement)
    return memory in statement and (not beside or json.dumps([ASKER, "semantic"], separators=(",", ":")) in beside)


def paths(store: MemoryStore, memory: str, loop: asyncio.Runner) -> dict[str, Callable[[], object]]:
    """The public calls; each asks, saves or says something else every time."""
    service = AgentMemoryStoreService(store).sync
    asked = iter(queries(3 * (ROUNDS + 1)))
    new = (turn.text for turn in turns(3 * (ROUNDS + 1), seed=1))
    stated = iter(STATED)
    capture = CaptureMiddleware(RuleExtractor(), works=False)
    app = create_app(AgentMemoryStoreService(store), Access(is_platform=True, hosts=None))

    def agent(middleware: Any) -> Any:
        return create_agent(ScriptedChatModel(turns=["answered"], record=False), store=store, middleware=[middleware])

    remembering, capturing = agent(MemoryMiddleware(recall_timeout=30)), agent(capture)

    def say(to: Any, text: str) -> None:
        to.invoke({"messages": [("user", text)]}, context={"user_id": ASKER})

    def captured() -> None:
        say(capturing, next(stated))
        capture.drain()

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {"user": SimpleNamespace(is_authenticated=True, identity=ASKER)}, receive, send)

    client = httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://localhost")

    def post(path: str, **body: Any) -> None:
        loop.run(client.post(path, json=body)).raise_for_status()

    return {
        "turn": lambda: say(remembering, next(asked)),
        "recall": lambda: service.recall_memories(ASKER, next(asked)),
        "save": lambda: service.save_memory(ASKER, next(new)),
        "update": lambda: service.update_memory(ASKER, memory, content=next(new)),
        "get": lambda: service.get_memory(ASKER, memory),
        "capture and drain": captured,
        "HTTP search": lambda: post("/v1/memories/search", query=next(asked)),
        "HTTP save": lambda: post("/v1/memories", content=next(new)),
    }


def measured(options: Options) -> Result:
    """What the text tells, and what the paths pass through."""
    return {"n": options.n, "users": 1, "text": read(), "paths": walked(options)}


def table(result: Result) -> list[Row]:
    """The report's rows."""
    text, passed = result["text"], result["paths"]
    turn, update = passed["turn"], passed["update"]
    folders = " · ".join(f"{name} {lines:,}" for name, lines in text["lines"].items())
    return [
        bar("lines of code", sum(text["lines"].values()), 30_000, ""),
        plain("lines of code by folder", folders),
        bar("modules", text["modules"], 170, ""),
        bar("modules with one importer", len(text["one_importer"]), 30, ""),
        plain("private functions that their module uses once", f"{text['used_once']} of {text['private']}"),
        plain(f"functions with more than {MANY_PARAMETERS} parameters", len(text["many_parameters"]), ""),
        plain(f"folders with more than {MANY_FILES} files", len(text["many_files"]), ""),
        *(bar(f"circles of imports, {kind}", len(found), 0, "") for kind, found in text["circles"].items()),
        bar("a turn: modules entered", len(turn["modules"]), 30, ""),
        bar("a turn: frames between the public call and the body", len(turn["frames"]) or None, 4, ""),
        bar("a turn: nested functions and lambdas run", len(turn["closures"]), 8, ""),
        bar("a turn: crossings between modules", turn["crossings"], 600, ""),
        bar("a turn: pairs of modules that call each other", len(turn["pairs"]), 2, ""),
        bar("an update: visits to a worker", update["visits"], 2, ""),
        bar("an update: reads of the row", update["reads"], 1, ""),
        bar("capture and drain of a message: durable commits", passed["capture and drain"]["commits"], 3, ""),
        *(plain(f"{name}: {', '.join(_COLUMNS)}", _line(one)) for name, one in passed.items()),
    ]


_COLUMNS: Final = ("modules", "functions", "calls", "crossings", "pairs", "frames", "closures")


def _line(path: Result) -> str:
    """Figures in the order of the columns; no frames where reads are in several places, as of a save."""
    figures = [one if isinstance(one, int) else len(one) for one in map(path.__getitem__, _COLUMNS)]
    return ", ".join(f"{one:,}" if one else "-" for one in figures)


if __name__ == "__main__":
    sys.exit(run("house", measured, table, __doc__, MEMORIES))
