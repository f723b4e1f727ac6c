"""`inference-core` and `python` for shells: each in a process forked from one that has the package imported already."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import shlex
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from processes import CONTEXT, Forked

from inference_core.cli import main

_STREAMS = 3
# The shell stops a server by a signal to the process that it has started, which hands it on.
_CLIENT = """\
import json, os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until it is known to whom to hand it on
address, *command = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    socket.send_fds(server, [b"-"], [0, 1, 2])
    server.sendall(json.dumps([command, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    told = server.makefile()
    process = int(told.readline())
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    sys.exit(int(told.readline() or 1))
"""


@contextmanager
def quick_commands() -> Generator[str]:
    """A folder for PATH in which `inference-core` and `python` start at once; of signals, they hear SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="commands-") as name, closing(socket.socket(socket.AF_UNIX)) as listener:
        folder = Path(name)
        address = str(folder / "socket")
        (folder / "client.py").write_text(_CLIENT, encoding="utf-8")
        for program in ("inference-core", "python"):
            words = (sys.executable, "-IS", str(folder / "client.py"), address, program)
            (folder / program).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
            (folder / program).chmod(0o755)
        listener.bind(address)
        listener.listen()
        Thread(target=_serve, args=(listener, f"{name}/python"), daemon=True).start()
        yield name
        listener.shutdown(socket.SHUT_RDWR)  # ends the wait for the next one


def started(*command: str, log: Path | None = None) -> Forked:
    """`inference-core` with this ``command`` as a process that hears signals; what it says goes to the ``log``."""
    return Forked(_run_with_log, log, ["inference-core", *command], str(Path.cwd()), dict(os.environ))


def on_terminal(terminal: int, command: Sequence[str], environment: Mapping[str, str]) -> Any:
    """`inference-core` with this ``command`` on a pseudo-terminal: a process that leads a group of its own."""
    streams = [Connection(os.dup(terminal)) for _ in range(_STREAMS)]
    given = (streams, ["inference-core", *command], str(Path.cwd()), environment)
    process = CONTEXT.Process(target=_lead, args=given, daemon=True)
    process.start()
    for stream in streams:
        stream.close()
    return process


def _lead(*given: Any) -> None:
    os.setsid()
    _run(*given)


def _run_with_log(log: Path | None, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    if log:
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
    for name in ("stdout", "stderr"):
        setattr(sys, name, open(1 if name == "stdout" else 2, "w", closefd=False))  # noqa: SIM115 - never closed
    run_as_started(command, folder, environment)


def run_as_started(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    """Runs `inference-core` or `python` with its arguments, as a process of its own in ``folder`` would; ends it."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    program, *arguments = command
    warnings.simplefilter("error")
    code = main(arguments) if program == "inference-core" else _python(arguments)
    sys.exit(code)


def _python(arguments: list[str]) -> int:
    """Runs a file, ``-m module`` or ``-c code``; what such a program leaves to its end is done too."""
    first, *rest = arguments
    place = Path.cwd() if first in ("-c", "-m") else Path(first).resolve().parent
    sys.path[:0] = [str(place), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
        elif first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - as at the end of each interpreter
        atexit._run_exitfuncs()
    return 0


def _serve(listener: socket.socket, python: str) -> None:
    with suppress(OSError):
        while True:
            Thread(target=_answer, args=(listener.accept()[0], python), daemon=True).start()


def _answer(asked: socket.socket, python: str) -> None:
    with closing(asked):
        _, given, *_ = socket.recv_fds(asked, 1, _STREAMS)
        streams = [Connection(stream) for stream in given]
        with asked.makefile("rb") as text:
            command = json.load(text)
        process = CONTEXT.Process(target=_run, args=(streams, *command, python), daemon=True)
        process.start()
        for stream in streams:
            stream.close()
        with suppress(BrokenPipeError):
            asked.sendall(f"{process.pid}\n".encode())
        process.join()
        with suppress(BrokenPipeError):  # whoever killed its command waits for no exit status
            asked.sendall(str(process.exitcode).encode())


def _run(
    streams: list[Connection],
    command: list[str],
    folder: str,
    environment: dict[str, Any],
    python: str = sys.executable,
) -> None:
    sys.executable = python  # for the programs that this one starts
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    # Those of the process that this one is forked from know another file.
    standard = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - never closed
    sys.stdin, sys.stdout, sys.stderr = standard
    run_as_started(command, folder, environment)
