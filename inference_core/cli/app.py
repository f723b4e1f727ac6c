"""The Typer application: its commands, exit codes and errors."""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from inference_core import __version__
from inference_core.cli.output import FAILED, NOT_FOUND, CommandFailed, console, fail, is_plain
from inference_core.errors import InferenceCoreError, MemoryNotFound, SpaceNotFound

_ClickException: Final = typer.BadParameter.__mro__[2]
"""Which package of click Typer uses depends on its version."""
_NARROW: Final = 60
"""Columns below which boxes and columns leave no room for words."""
_EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 failed, and one line on standard error says what to do; 2 wrong usage; 3 no such ID; "
    "130 interrupted by Ctrl-C."
)
_GROUPS: Final = {
    "Memories": {
        "save": "memories:save",
        "recall": "memories:recall",
        "context": "memories:context",
        "list": "memories:list_memories",
        "update": "memories:update",
        "delete": "memories:delete",
        "history": "memories:history",
        "why": "memories:why",
        "profile": "profile:profile",
        "audit": "protection:audit",
        "review": "protection:review",
        "stats": "background:stats",
    },
    "Forgetting": {
        "pin": "maintenance:pin",
        "unpin": "maintenance:unpin",
        "forget": "maintenance:forget",
        "restore": "maintenance:restore",
    },
    "Conversations": {
        "chat": "chat:chat",
        "ingest": "background:ingest",
        "worker": "background:worker",
        "queue": "background:queue",
        "undo": "background:undo",
        "summarize": "background:summarize",
        "insights": "background:insights",
    },
    "Servers": {
        "serve": "serve:serve",
        "inspect": "serve:inspect",
        "mcp": "serve:mcp",
        "keys": "serve:keys",
    },
    "Files and stores": {
        "export": "transfer:export",
        "import": "transfer:import_",
        "copy": "transfer:copy",
        "migrate": "transfer:migrate",
        "reembed": "maintenance:reembed",
        "doctor": "diagnosis:doctor",
        "repair": "maintenance:repair",
        "scan": "maintenance:scan",
        "spaces": "protection:spaces",
        "encryption": "maintenance:encryption",
    },
    "Backups, retention and erasure": {
        "backup": "protection:backup",
        "verify": "protection:verify",
        "recover": "protection:recover",
        "retention": "maintenance:retention",
        "hold": "protection:hold",
        "erase": "protection:erase",
        "erasures": "protection:erasures",
    },
    "Measurements": {
        "eval": "eval:evaluate",
    },
}
"""Each command and its function in a module of this package; a ``program`` in the module has its further commands."""
_COMMANDS: Final = {name: place for group in _GROUPS.values() for name, place in group.items()}


class Commands(TyperGroup):
    """All commands. One is imported, and its signature read, when it is run: either takes longer than most of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for group, commands in _GROUPS.items():
            for name in commands:
                self.add_command(TyperCommand(name, rich_markup_mode=self.rich_markup_mode, rich_help_panel=group))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What ``--help`` and completion show of a command; None if there is no such command."""
        if shown := super().get_command(ctx, cmd_name):
            home, function = _COMMANDS[cmd_name].split(":")
            shown.help = _docstrings(home)[function]
            # A summary of its own is never cut.
            shown.short_help = (shown.help or "").partition("\n\n")[0].partition(". ")[0].rstrip(".")
        return shown

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the plain help's list of commands, by group."""
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, self.get_command(ctx, name).short_help) for name in commands])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` name, and the rest of them. Raises UsageError if there is no such command."""
        name, *rest = args
        if name in _COMMANDS:
            return name, _command(name, self.rich_markup_mode), rest
        return super().resolve_command(ctx, args)


@cache
def _docstrings(module: str) -> dict[str, str | None]:
    """The docstrings of the functions in a module of this package, which is not imported."""
    source = files("inference_core.cli").joinpath(f"{module}.py").read_text(encoding="utf-8")
    functions = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)]
    return {one.name: ast.get_docstring(one) for one in functions}


@cache
def _command(name: str, markup: Any) -> Any:
    home, function = _COMMANDS[name].split(":")
    module = import_module(f"inference_core.cli.{home}")
    program = getattr(module, "program", None)
    if program is None:
        program = typer.Typer(add_completion=False)
        program.command(name)(getattr(module, function))
    program.rich_markup_mode = markup
    return get_command(program)


app: Final = typer.Typer(
    cls=Commands,
    help="Long-term memory for LangGraph agents.",
    epilog=_EXIT_CODES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(argv: Sequence[str] | None, program: typer.Typer = app, name: str = "inference-core") -> int:
    """Runs a command of ``program`` and returns its exit code.

    Errors of this package, of the usage and OSErrors are told on standard error; others are raised.
    """
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            is_bare = is_plain() or console().width < _NARROW
            given = None if argv is None else list(argv)
            code: Any = command_of(program, is_bare)(args=given, prog_name=name, standalone_mode=False)
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        # The reader of standard output has gone; the interpreter's last flush must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except typer.Abort:
        fail("The input has ended")
        return FAILED
    except (InferenceCoreError, OSError) as error:
        fail(f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error))
        if isinstance(error, CommandFailed):
            return error.code
        return NOT_FOUND if isinstance(error, (MemoryNotFound, SpaceNotFound)) else FAILED
    except Exception as error:  # click's, whose class is known at run time alone; all others go on
        if isinstance(error, _ClickException):
            return _refuse(error)
        raise
    return code if isinstance(code, int) else 0


def _refuse(error: Any) -> int:
    """Prints the usage of the command and what is wrong with the arguments; returns the exit code."""
    context = getattr(error, "ctx", None)
    if context is not None:
        sys.stderr.write(f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n\n")
    is_whole = isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None
    fail(error.message if is_whole else error.format_message())
    return error.exit_code


def _open_closed_streams() -> None:
    """Puts the null device where a standard stream is closed: Python has None there, and a store could take its number.

    Services and cron jobs may start like that.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


@cache
def command_of(program: typer.Typer, plain: bool) -> Callable[..., object]:
    """The command that runs ``program``; ``plain``: its help has no colours and boxes."""
    program.rich_markup_mode = None if plain else "rich"
    return get_command(program)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"inference-core {__version__}\n")
        raise typer.Exit


@app.callback()
def configure(
    context: typer.Context,
    env_file: Annotated[
        Path | None,
        typer.Option(
            "--env-file", metavar="PATH", help="Read variables that are not set from this file; by default from .env."
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Long-term memory for LangGraph agents."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        return
    from inference_core.settings import load_env_file  # noqa: PLC0415 - not for --help

    load_env_file(env_file)
