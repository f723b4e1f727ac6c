"""What commands print: results to standard output, all else to standard error, and nothing that a terminal obeys."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

_STEERING: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_TAB: Final = 4


def harmless(text: str) -> str:
    """``text`` with line ends as they are and everything that steers a terminal or hides as a visible escape."""
    return _STEERING.sub(_escape, text.replace("\r\n", "\n").expandtabs(_TAB))


def one_line(text: str) -> str:
    """Like `harmless`, on one line."""
    return harmless(" ⏎ ".join(text.splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Draws on standard output or error: in colour on a terminal, as plain text elsewhere and with NO_COLOR."""
    from rich.console import Console  # noqa: PLC0415 - an extra, and not needed for --help

    options: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    made = Console(**options)
    return Console(color_system=None, **options) if made.no_color else made


def draw(thing: Any) -> None:
    """Draws ``thing`` on standard output; as plain text without the spaces that fill up lines."""
    printer = console()
    if not is_plain():
        printer.print(thing)
        return
    with printer.capture() as drawn:
        printer.print(thing)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def is_plain(*, stderr: bool = False) -> bool:
    """Whether colours and boxes are off."""
    made = console(stderr=stderr)
    return made.no_color or not made.is_terminal


def print_json(document: Any) -> None:
    """Prints one JSON document, which is all that a command with ``--json`` writes to standard output."""
    text = json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None, default=str)
    sys.stdout.write(_STEERING.sub(_escape, text) + "\n")


def note(text: str, style: str = "dim") -> None:
    """Says something besides the result, on one line of standard error."""
    from rich.text import Text  # noqa: PLC0415 - an extra, and not needed for --help

    console(stderr=True).print(Text(one_line(text), style), soft_wrap=True)


def fail(text: str) -> None:
    """Says on one line of standard error what went wrong and what to do."""
    note(text, "red")


@contextmanager
def working(what: str) -> Generator[None]:
    """Shows on a terminal that the program is at work."""
    with console(stderr=True).status(what):
        yield


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
