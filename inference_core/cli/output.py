"""What commands print: results to standard output, notes and progress to standard error, control characters escaped.

The options that most commands share, and the store that these name; checks of values; Ctrl-C between batches.

A command's first parameter is a `Target`; `on_store` adds the options that it is made of.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, tzinfo
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_type_hints

import typer

from inference_core.clock import time_zone
from inference_core.errors import ConfigurationError, InvalidInput, StoreUnavailable
from inference_core.memory.text import ADDED, REMOVED, SAME, did_you_mean, harmless, word_changes
from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPES
from inference_core.stores.urls import parse_url, shown_url

if TYPE_CHECKING:
    from rich.console import Console

    from inference_core.embeddings.embedder import Embedder
    from inference_core.memory.namespaces import Owner
    from inference_core.memory.record import MemoryStoreDocument
    from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
    from inference_core.settings import MemorySettings
    from inference_core.stores.engine import StoreEngine
    from inference_core.stores.store import MemoryStore


_ALWAYS: Final = ("memory_type", "memory_category", "topic", "session_id", "agent_name")
_IF_SET: Final = (
    *("importance", "pinned", "tags", "valid_from", "valid_to", "expires_at"),
    *("supersedes", "superseded_by"),
)


def one_line(text: str) -> str:
    """``text`` as `harmless` gives it, with its lines joined by ⏎."""
    return harmless(" ⏎ ".join(text.splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Standard output or error: in colour on a terminal, plain text elsewhere and with NO_COLOR."""
    from rich.console import Console  # slow to import

    options: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    made = Console(**options)
    return Console(color_system=None, **options) if made.no_color else made


def draw(thing: Any) -> None:
    """Prints what Rich can draw to standard output; where output is plain, without the trailing spaces of tables."""
    printer = console()
    if not is_plain():
        printer.print(thing)
        return
    with printer.capture() as drawn:
        printer.print(thing)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def is_plain() -> bool:
    """Whether colours and boxes are off: with NO_COLOR, or if standard output is not a terminal."""
    made = console()
    return made.no_color or not made.is_terminal


def print_json(document: Any) -> None:
    """Prints one JSON document, which is all that a command with ``--json`` writes to standard output."""
    text = json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None, default=str)
    sys.stdout.write(harmless(text) + "\n")


def note(text: str, style: str = "dim") -> None:
    """Prints something besides the result on one line of standard error."""
    from rich.text import Text

    console(stderr=True).print(Text(one_line(text), style), soft_wrap=True)


def fail(text: str) -> None:
    """Prints on one line of standard error what went wrong and what to do."""
    note(text, "red")


@contextmanager
def working(what: str) -> Generator[None]:
    """Shows ``what`` on a terminal's standard error while the block runs."""
    with console(stderr=True).status(what):
        yield


@contextmanager
def progress_bar(what: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar on standard error; yields a function to call with how many are done, and of how many."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def as_json(document: MemoryStoreDocument) -> dict[str, Any]:
    """A memory as JSON data, without the optional fields that it does not have."""
    value = document.value
    ranking = {"score": document.score, "relevance": document.relevance, "explanation": document.explanation}
    return {
        "id": document.id,
        "version": document.version,
        "content": document.content,
        **{name: value.get(name) for name in _ALWAYS},
        **({"space": document.space} if document.space else {}),
        "metadata": document.metadata,
        "created_at": document.created_at_iso,
        "updated_at": document.updated_at_iso,
        **{name: value[name] for name in _IF_SET if name in value},
        **{name: figure for name, figure in ranking.items() if figure is not None},
    }


def print_history(versions: Sequence[MemoryStoreDocument], zone: tzinfo) -> None:
    """Prints versions of a memory, the oldest first; below each, the words that changed since the one before."""
    rows: list[tuple[str, list[str]]] = []
    last = ""
    for one in versions:
        when = stamp(one.updated_at, zone)
        facts = [f"{one.memory_type} · version {one.version} · {when}", f"id {one.id}"]
        rows.append((one.content, [*([word_diff(last, one.content)] if last else []), *facts]))
        last = one.content
    print_numbered(rows)


def word_diff(old: str, new: str) -> str:
    """``new`` with the words of ``old`` that it lacks as [-old-], and those that it adds as {+new+}."""
    marks = {SAME: "{}", REMOVED: "[-{}-]", ADDED: "{{+{}+}}"}
    return " ".join(marks[kind].format(words) for kind, words in word_changes(old, new))


def print_memories(documents: Iterable[MemoryStoreDocument], zone: tzinfo, first: int = 1) -> None:
    """Prints memories, numbered from ``first``; below each its type, date, relevance, topic, space, id and score."""
    from inference_core.memory.record import WEAK_RELEVANCE

    rows: list[tuple[str, list[str]]] = []
    for document in documents:
        match document.relevance:
            case None:
                relevance = ""
            case weak if weak < WEAK_RELEVANCE:
                relevance = "weak match"
            case share:
                relevance = f"relevance {share:.0%}"
        topic = f"about {document.topic}" if document.topic else ""
        space = f"space {document.space}" if document.space else ""
        facts = [document.memory_type or "", stamp(document.created_at, zone), relevance, topic, space]
        line = " · ".join(filter(None, facts))
        rows.append((document.content, [line, f"id {document.id}", *shares(document.explanation)]))
    print_numbered(rows, first)


def print_numbered(rows: Iterable[tuple[str, Sequence[str]]], first: int = 1) -> None:
    """Prints texts, numbered from ``first``, each with the lines that belong below it."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, style="bold cyan")
    grid.add_column(overflow="fold")
    for number, (content, facts) in enumerate(rows, first):
        grid.add_row(f"{number}.", Text(harmless(content)))
        for fact in facts:
            grid.add_row("", Text(one_line(fact), "dim"))
    draw(grid)


def print_figures(figures: Mapping[str, Any]) -> None:
    """Prints names and values, one pair a line."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        grid.add_row(Text(one_line(name.replace("_", " ")), "bold"), Text(one_line(str(value))))
    console().print(grid)


def counted(count: int, one: str, several: str) -> str:
    """How many there are: "1 memory", "2 memories"."""
    return f"{count} {one if count == 1 else several}"


def shares(explanation: Mapping[str, float] | None) -> list[str]:
    """A line with the shares of a score, the largest first; none without an explanation."""
    if not explanation:
        return []
    ordered = sorted(explanation.items(), key=lambda one: -abs(one[1]))
    return ["score " + ", ".join(f"{name} {share:+.3f}" for name, share in ordered if share)]


def stamp(moment: datetime | None, zone: tzinfo) -> str:
    """Date and time in ``zone``, to the minute."""
    if moment is None:
        return "unknown"
    try:
        return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"
    except OverflowError:
        return moment.isoformat(" ", "minutes")


def confirm(question: str) -> None:
    """Asks ``question`` on standard error. Raises InvalidInput unless the answer on standard input is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidInput("Nothing was deleted. Answer y to delete, or pass --yes to skip the question")


LOADING_S: Final = 30.0
STARTING_S: Final = 60.0
"""So long a service waits for its database as it starts: both may be started together, or the database again."""
_AGAIN_S: Final = 1.0
_INTERRUPTED: Final = (
    b"\nEnding after this batch. Ctrl-C again ends at once; this batch may then be written and not counted\n"
)
TYPES: Final = ", ".join(MEMORY_TYPES)
CATEGORIES: Final = ", ".join(MEMORY_CATEGORIES)
Users = Annotated[
    list[str] | None, typer.Option("--user", metavar="ID", help="Only this user's; may be given several times.")
]
Outboxes = Annotated[
    list[str] | None, typer.Option("--outbox", metavar="URL", help="The outbox, if it is another database.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def account() -> str:
    """Who runs the command: the name of the process's account, or its number where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # the number has no name, as in a container; Python versions differ
        return f"uid {os.getuid()}"


def one_of(names: Sequence[str], metavar: str | None = None) -> dict[str, Any]:
    """The keyword arguments of a `typer.Option` or `typer.Argument` that accepts and completes only ``names``."""

    def known(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}{did_you_mean(value, names)}")
        return value

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return {"metavar": metavar or "|".join(names), "parser": known, "autocompletion": complete}


ONE_TYPE: Final = one_of(MEMORY_TYPES, "TYPE")
_ONE_CATEGORY: Final = one_of(MEMORY_CATEGORIES, "CATEGORY")
Id = Annotated[str, typer.Argument(help="The id that save, recall and list print.")]
Kind = Annotated[str | None, typer.Option("--type", help=f"Only of this type: {TYPES}.", **ONE_TYPE)]
Category = Annotated[
    str | None, typer.Option("--category", help=f"Only of this category: {CATEGORIES}.", **_ONE_CATEGORY)
]
NewCategory = Annotated[
    str | None, typer.Option("--category", help=f"One of {CATEGORIES}; by default the type's.", **_ONE_CATEGORY)
]
Metadata = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="Your own data, a JSON object.")]


def json_object(text: str | None) -> dict[str, Any] | None:
    """The JSON object in ``text``; None for None. Raises BadParameter for anything else."""
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--metadata is not JSON: {error}") from error
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    raise typer.BadParameter('--metadata must be a JSON object such as {"source": "form"}')


@dataclass(frozen=True, slots=True)
class Opened:
    """The service on an open store."""

    settings: MemorySettings
    service: AgentMemoryStoreService

    @property
    def sync(self) -> SyncMemoryService:
        """The service's methods for sync code."""
        return self.service.sync

    @property
    def zone(self) -> tzinfo:
        """The time zone that dates are given and shown in."""
        return time_zone(self.settings.timezone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whose memories in which store a command works on, and whether it prints JSON."""

    user: Annotated[str, typer.Option("--user", metavar="ID", help="The user whose memories these are.")] = ""
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="NAME", help="In this shared space, as far as the user's role allows."),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Also read and write this agent's own memories."),
    ] = None
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The store (default: AGENT_MEMORY_STORE_URL).")
    ] = None
    embeddings: Annotated[
        str | None,
        typer.Option("--embeddings", metavar="NAME", help="Embedding model (default: AGENT_MEMORY_EMBEDDINGS)."),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False

    @property
    def owner(self) -> Owner:
        """Whose memories: the user's, or those of the space, as this member. Raises InvalidId."""
        from inference_core.memory.namespaces import Space

        return self.user if self.space is None else Space(self.space, member=self.user)

    def settings(self, *, creates: bool = False) -> MemorySettings:
        """The settings of the environment; options take precedence over them.

        Raises ConfigurationError, also for a file that does not exist unless ``creates`` is set: a mistyped URL must
        not create a store.
        """
        from inference_core.settings import MemorySettings, read_settings

        given: dict[str, Any] = {"store_url": self.url, "embeddings": self.embeddings}
        found = read_settings(MemorySettings, **{name: value for name, value in given.items() if value is not None})
        path = None if creates else parse_url(found.store_url).path
        if path is not None and not path.exists():
            shown = shown_url(found.store_url)
            raise ConfigurationError(f"There is no store at {shown} yet; save a memory, or name another --url")
        return found

    def encryption_of(self, url: str) -> dict[str, Any]:
        """The encryption settings for the database at ``url``; without AGENT_MEMORY_KEYS, only file stores have one."""
        given = self.settings(creates=True).encryption
        return given if given["keys"] or parse_url(url).scheme == "file" else {**given, "encryption_key": None}

    @contextmanager
    def open_outboxes(self, urls: Sequence[str]) -> Generator[list[StoreEngine]]:
        """The outboxes in these databases. Raises what `open` raises."""
        from inference_core.stores.factory import open_configured_store

        with ExitStack() as opened:
            engines: list[StoreEngine] = []
            for url in urls:
                options = {"embeddings": None, **self.encryption_of(url)}
                store = open_configured_store(replace(self, url=url).settings(), **options)
                engines.append(opened.enter_context(store).engine)
            yield engines

    @contextmanager
    def open(
        self, *, embeds: bool = False, creates: bool = False, waits: bool = True, patience_s: float = 0.0
    ) -> Generator[Opened]:
        """The service on the store. ``embeds``: with the embedding model; ``waits``: waits until it is loaded.

        A database that does not answer is tried again for ``patience_s`` seconds. Raises what `settings` and
        `open_store` raise.
        """
        from inference_core.memory.audit import Actor
        from inference_core.memory.spaces import Spaces
        from inference_core.services.agent_memory_service import AgentMemoryStoreService
        from inference_core.stores.factory import open_configured_store
        from inference_core.telemetry import use_json_logs

        settings = self.settings(creates=creates)
        if settings.log_format == "json":
            use_json_logs()
        open_now = partial(open_configured_store, settings, **({} if embeds else {"embeddings": None}))
        with open_now() if patience_s <= 0 else _when_there(open_now, patience_s) as store:
            if embeds and waits:
                wait_ready(store.engine.embedder)
            actor = Actor(kind="admin", id=account())
            options: dict[str, Any] = {"agent_name": self.agent, "actor": actor, "spaces": Spaces()}
            service = AgentMemoryStoreService.from_settings(settings, store, **options)
            yield Opened(settings, service)

    def print(self, document: Any, text: str) -> None:
        """Prints ``document`` with ``--json``, else ``text`` for people."""
        if self.json:
            print_json(document)
        else:
            note(text)


_HINTS: Final = get_type_hints(Target, include_extras=True)
_TARGET_OPTIONS: Final = [
    Parameter(
        one.name,
        Parameter.KEYWORD_ONLY,
        annotation=_HINTS[one.name],
        default=Parameter.empty if one.name == "user" else one.default,
    )
    for one in fields(Target)
]


def on_store(*options: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, and passes them to it as a `Target`, its first parameter."""
    shared = [one for one in _TARGET_OPTIONS if one.name in options]

    def command(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(**given: Any) -> None:
            function(Target(**{name: given.pop(name) for name in options}), **given)

        own = list(signature(function, eval_str=True).parameters.values())[1:]
        run.__signature__ = Signature(  # pyright: ignore[reportAttributeAccessIssue] - Typer reads the options there
            [*(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own), *shared]
        )
        return run

    return command


def _when_there(open_now: Callable[[], MemoryStore], patience_s: float) -> MemoryStore:
    end, is_told = time.monotonic() + patience_s, False
    while True:
        try:
            return open_now()
        except StoreUnavailable as error:
            if time.monotonic() >= end:
                raise
            if not is_told:
                note(f"{error}; trying again for {patience_s:g} s")
            is_told = True
        time.sleep(_AGAIN_S)


def wait_ready(embedder: Embedder | None) -> bool:
    """Waits up to `LOADING_S` for the embedding model. False if there is none, or, with a note, if it is not ready."""
    if embedder is None:
        return False
    with working("Loading the embedding model …"):
        ready = embedder.wait_ready(LOADING_S)
    if not ready:
        note(f"{embedder.failure or 'The embedding model is not ready'}; recall is by words only")
    return ready


@contextmanager
def held_back() -> Generator[Callable[[], None]]:
    """Holds Ctrl-C back: yields a function to call after each batch; it raises KeyboardInterrupt if Ctrl-C was pressed.

    A second Ctrl-C raises it at once. Where the process ignores Ctrl-C or has a handler of its own, and outside of the
    main thread, nothing changes.
    """
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    pressed = threading.Event()

    def first(_signal: int, _frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(OSError):
            os.write(2, _INTERRUPTED)  # not through sys.stderr, which may be in the middle of a write

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, first)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
