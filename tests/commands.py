"""`inference-core` for shells: each command in a process forked from one that has the package imported already."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import tempfile
import warnings
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from processes import CONTEXT

from inference_core.cli import main

_STREAMS = 3
# A server is stopped by a signal to its process, and so it is the process that the shell has started.
_CLIENT = """\
import json, os, socket, sys
python, address, *command = sys.argv[1:]
if command[:1] == ["serve"]:
    os.execv(python, [python, "-m", "inference_core", *command])
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    socket.send_fds(server, [b"-"], [0, 1, 2])
    server.sendall(json.dumps([command, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(9) or 1))
"""


@contextmanager
def quick_commands() -> Generator[str]:
    """A folder for PATH in which `inference-core` starts at once."""
    with tempfile.TemporaryDirectory(prefix="commands-") as name, closing(socket.socket(socket.AF_UNIX)) as listener:
        folder = Path(name)
        address = str(folder / "socket")
        (folder / "client.py").write_text(_CLIENT, encoding="utf-8")
        words = (sys.executable, "-IS", str(folder / "client.py"), sys.executable, address)
        (folder / "inference-core").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        (folder / "inference-core").chmod(0o755)
        listener.bind(address)
        listener.listen()
        Thread(target=_serve, args=(listener,), daemon=True).start()
        yield name
        listener.shutdown(socket.SHUT_RDWR)  # ends the wait for the next one


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()


def _answer(asked: socket.socket) -> None:
    with closing(asked):
        _, given, *_ = socket.recv_fds(asked, 1, _STREAMS)
        streams = [Connection(stream) for stream in given]
        with asked.makefile("rb") as text:
            command = json.load(text)
        process = CONTEXT.Process(target=_run, args=(streams, *command), daemon=True)
        process.start()
        for stream in streams:
            stream.close()
        process.join()
        with suppress(BrokenPipeError):  # whoever killed its command waits for no exit status
            asked.sendall(str(process.exitcode).encode())


def _run(streams: list[Connection], command: list[str], folder: str, environment: dict[str, Any]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    # Those of the process that this one is forked from know another file.
    standard = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - never closed
    sys.stdin, sys.stdout, sys.stderr = standard
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error")
    sys.exit(main(command))
