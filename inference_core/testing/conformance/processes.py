"""Processes that write to the tried store's data: this module is also what they run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

from inference_core.testing.conformance.subject import Factory, Location, Subject, WatchedEmbeddings, trying

_FINISH_S: Final = 120.0
_READY: Final = "ready"


class Writer:
    """A process that puts items 0, 1, … into ("p<number>",) and says so after each; ``acknowledged`` are their keys."""

    def __init__(self, subject: Subject, number: int, writes: int) -> None:
        self.number = number
        self.acknowledged: list[str] = []
        arguments = [subject.factory().address, str(subject.place.folder), subject.mode, str(number), str(writes)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)

    def wait_ready(self) -> None:
        """Waits until it has opened the store."""
        self._output.readline()

    def go(self) -> None:
        """Lets it write."""
        with suppress(BrokenPipeError):  # it has ended; `finished` says why
            self._input.write("go\n")
            self._input.flush()

    def finished(self) -> str:
        """Waits until it ends; the last line that it said of an error, if there was one."""
        output, errors = self._process.communicate(timeout=_FINISH_S)
        self.acknowledged += output.split()
        return (errors.strip().splitlines() or ["it ended"])[-1] if self._process.returncode else ""

    def kill(self, after: int) -> None:
        """Kills it once ``after`` items were acknowledged."""
        for line in self._output:
            self.acknowledged.append(line.strip())
            if len(self.acknowledged) >= after:
                break
        self._process.kill()
        self.acknowledged += self._output.read().split("\n")[:-1]
        _, errors = self._process.communicate(timeout=_FINISH_S)
        if len(self.acknowledged) < after:
            raise AssertionError(f"it ended by itself: {errors.strip()[-300:]}")

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def started(subject: Subject, count: int, writes: int) -> Generator[list[Writer]]:
    """So many processes that begin at once, each with ``writes`` puts; gone afterwards. Raises NotApplicable."""
    subject.factory()
    writers = [Writer(subject, number, writes) for number in range(count)]
    try:
        for writer in writers:
            writer.wait_ready()
        for writer in writers:
            writer.go()
        yield writers
    finally:
        for writer in writers:
            writer.end()


def main(address: str, folder: str, mode: str, number: str, writes: str) -> None:
    """Writes; prints ``ready``, then each key once its put has returned."""
    embeddings = WatchedEmbeddings()
    factory = Factory(address)
    place = Location(Path(folder), factory)
    chosen = "async" if mode == "async" else "sync"
    with trying(factory.make(place.folder, embeddings), chosen, embeddings, place) as subject:
        print(_READY, flush=True)
        sys.stdin.readline()
        for n in range(int(writes)):
            subject.put((f"p{number}",), str(n), {"text": f"tea {n}", "n": n})
            print(n, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
