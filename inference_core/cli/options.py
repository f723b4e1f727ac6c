"""The options that most commands share, and the store that they name; checks of values; Ctrl-C between batches.

A command's first parameter is a `Target`; `on_store` adds the options that it is made of.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import tzinfo
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_type_hints

import typer

from inference_core.cli.output import CommandFailed, note, print_id, print_json, print_numbered, working
from inference_core.clock import time_zone
from inference_core.errors import (
    ConfigurationError,
    InvalidInput,
    SecretFound,
    SpaceNotFound,
    StoreUnavailable,
    UntrustedWrite,
)
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import Space
from inference_core.memory.spaces import Spaces
from inference_core.memory.text import did_you_mean
from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPES
from inference_core.stores.urls import check_scheme, parse_url, shown_url
from inference_core.telemetry import use_json_logs

if TYPE_CHECKING:
    from inference_core.embeddings.embedder import Embedder
    from inference_core.memory.namespaces import Owner
    from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
    from inference_core.settings import MemorySettings
    from inference_core.stores.engine import StoreEngine
    from inference_core.stores.store import MemoryStore


LOADING_S: Final = 30.0
STARTING_S: Final = 60.0
"""Seconds that a service waits for its database at the start: both may start together, or the database restarts."""
_AGAIN_S: Final = 1.0
_USAGE_IS_RIGHT: Final = (SecretFound, SpaceNotFound, UntrustedWrite)
"""Errors about an argument that say what the store does not accept, not that the command is used wrongly."""
_INTERRUPTED: Final = (
    b"\nEnding after this batch. Ctrl-C again ends at once; this batch may then be written and not counted\n"
)
STREAM: Final = "-"
"""As the name of a file: standard input or output."""
_GZIP: Final = b"\x1f\x8b"
TYPES: Final = ", ".join(MEMORY_TYPES)
CATEGORIES: Final = ", ".join(MEMORY_CATEGORIES)


def option(names: str, text: str, **more: Any) -> Any:
    """The `typer.Option` with the help ``text`` and these ``names``. In "--limit -k N", N is the name of the value."""
    flags = names.split()
    if not flags[-1].startswith("-"):
        more["metavar"] = flags.pop()
    return typer.Option(*flags, help=text, **more)


Users = Annotated[list[str] | None, option("--user ID", "Only this user's; may be given several times.")]
Outboxes = Annotated[list[str] | None, option("--outbox URL", "The outbox, if it is another database.")]
Yes = Annotated[bool, option("--yes -y", "Do not ask for confirmation.")]


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
Id = Annotated[str, typer.Argument(metavar="ID", help="The ID that save, recall and list print.")]
Kind = Annotated[str | None, option("--type", f"Only of this type: {TYPES}.", **ONE_TYPE)]
Category = Annotated[str | None, option("--category", f"Only of this category: {CATEGORIES}.", **_ONE_CATEGORY)]
NewCategory = Annotated[
    str | None, option("--category", f"One of {CATEGORIES}; by default the type's.", **_ONE_CATEGORY)
]
Metadata = Annotated[str | None, option("--metadata JSON", "Your own data, a JSON object.")]


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

    user: Annotated[
        str, typer.Option("--user", metavar="ID", envvar="AGENT_MEMORY_USER", help="The user whose memories these are.")
    ] = ""
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
        return self.user if self.space is None else Space(self.space, member=self.user)

    def settings(self, *, creates: bool = False) -> MemorySettings:
        """The settings of the environment; options take precedence over them.

        Raises ConfigurationError, also for a file that does not exist unless ``creates`` is set: a mistyped URL must
        not create a store.
        """
        from inference_core.settings import MemorySettings, read_settings  # noqa: PLC0415 - not for help and completion

        given: dict[str, Any] = {"store_url": self.url, "embeddings": self.embeddings}
        found = read_settings(MemorySettings, **{name: value for name, value in given.items() if value is not None})
        try:
            scheme, path, *_ = parse_url(found.store_url)
            check_scheme(scheme)
        except ConfigurationError as error:
            if self.url is None:
                raise
            raise typer.BadParameter(f"--url: {error}") from error
        if not creates and path is not None and not path.exists():
            shown = shown_url(found.store_url)
            folder = "" if path.is_absolute() else f" in {Path.cwd()}"
            raise ConfigurationError(f"There is no store at {shown}{folder} yet; save a memory, or name another --url")
        return found

    def encryption_of(self, url: str) -> dict[str, Any]:
        """The encryption settings for the database at ``url``; without AGENT_MEMORY_KEYS, only file stores have one."""
        given = self.settings(creates=True).encryption
        return given if given["keys"] or parse_url(url).scheme == "file" else {**given, "encryption_key": None}

    @contextmanager
    def open_outboxes(self, urls: Sequence[str]) -> Generator[list[StoreEngine]]:
        """The outboxes in these databases. Raises what `open` raises."""
        from inference_core.stores.factory import open_configured_store  # noqa: PLC0415 - not for help and completion

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
        # Imported here, so that the help and completion of most commands answer at once.
        from inference_core.services.agent_memory_service import AgentMemoryStoreService  # noqa: PLC0415
        from inference_core.stores.factory import open_configured_store  # noqa: PLC0415

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

    def print_id(self, document: Any, name: str, text: str) -> None:
        """Prints ``document`` with ``--json``, else the ID or secret ``name`` alone, and ``text`` beside it."""
        if self.json:
            print_json(document)
        else:
            print_id(name, text)

    def print(self, document: Any, text: str) -> None:
        """Prints ``document`` with ``--json``, else ``text`` for people."""
        if self.json:
            print_json(document)
        else:
            note(text)


@contextmanager
def given_file(name: str) -> Generator[str]:
    """The file ``name``; for "-" a private copy of standard input, as most are read more than once."""
    if name != STREAM:
        yield name
        return
    from inference_core.lifecycle.ledger import own_folder  # noqa: PLC0415 - not for help and completion

    with own_folder("input") as folder:
        start = sys.stdin.buffer.read(len(_GZIP))
        path = folder / ("standard input.gz" if start == _GZIP else "standard input")
        with path.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield str(path)
        except InvalidInput as error:
            if type(error) is not InvalidInput:
                raise
            raise CommandFailed(str(error).replace(f"{folder}{os.sep}", "")) from error


def print_listed(target: Target, document: Any, rows: Iterable[tuple[str, Sequence[str]]], text: str) -> None:
    """Prints ``document`` with ``--json``, else for people ``rows``, as `print_numbered` does, and ``text``."""
    if not target.json:
        print_numbered(rows)
    target.print(document, text)


_HINTS: Final = get_type_hints(Target, include_extras=True)
_TARGET_OPTIONS: Final = [
    Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        annotation=_HINTS[field.name],
        default=Parameter.empty if field.name == "user" else field.default,
    )
    for field in fields(Target)
]


def on_store(*options: str, reads_files: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, and passes them to it as a `Target`, its first parameter.

    An InvalidInput of the command is wrong usage; of one that ``reads_files``, only if it is not about what is in them.
    """
    shared = [parameter for parameter in _TARGET_OPTIONS if parameter.name in options]

    def command(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(**given: Any) -> None:
            try:
                function(Target(**{name: given.pop(name) for name in options}), **given)
            except _USAGE_IS_RIGHT:
                raise
            except InvalidInput as error:
                text = str(error)
                if reads_files and type(error) is InvalidInput:
                    raise CommandFailed(text) from error
                raise typer.BadParameter(re.sub(r"^user_id\b", "--user", text)) from error

        own = list(signature(function, eval_str=True).parameters.values())[1:]
        run.__signature__ = Signature(  # pyright: ignore[reportAttributeAccessIssue] - Typer reads the options there
            [*(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own), *shared]
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
