"""What commands print: results to standard output, all else to standard error, without terminal control sequences."""

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
    """``text`` with control and invisible characters other than line ends as visible escapes."""
    return _STEERING.sub(_escape, text.replace("\r\n", "\n").expandtabs(_TAB))


def one_line(text: str) -> str:
    """Like `harmless`, on one line."""
    return harmless(" ⏎ ".join(text.splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Standard output or error: in colour on a terminal, plain text elsewhere and with NO_COLOR."""
    from rich.console import Console  # slow to import

    options: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    made = Console(**options)
    return Console(color_system=None, **options) if made.no_color else made


def draw(thing: Any) -> None:
    """Draws ``thing`` on standard output; plain text without trailing spaces."""
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


def print_result(document: Any, text: str, *, as_json: bool) -> None:
    """Prints ``document`` with ``--json``, else ``text`` for people."""
    if as_json:
        print_json(document)
    else:
        note(text)


def note(text: str, style: str = "dim") -> None:
    """Prints something besides the result on one line of standard error."""
    from rich.text import Text

    console(stderr=True).print(Text(one_line(text), style), soft_wrap=True)


def fail(text: str) -> None:
    """Prints on one line of standard error what went wrong and what to do."""
    note(text, "red")


@contextmanager
def working(what: str) -> Generator[None]:
    """Shows a terminal that the program is working."""
    with console(stderr=True).status(what):
        yield


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
