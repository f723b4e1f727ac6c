"""Records the demo as docs/demo.svg: a terminal whose lines appear as they did, pauses cut to a second."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT: Final = Path(__file__).parent.parent
COLUMNS: Final = 90
ROWS: Final = 30
NBSP: Final = "\N{NO-BREAK SPACE}"
"""Browsers draw several spaces as one."""
LONGEST_PAUSE_S: Final = 1.0
SHOWN_AT_THE_END_S: Final = 8.0
_LINE_PX, _CHARACTER_PX, _MARGIN_PX = 18, 8.43, 14
_DIM: Final = "#8b98a5"
_SPINNER: Final = re.compile("[\u2801-\u28ff]")


def recorded() -> list[tuple[float, str]]:
    """The lines that the demo prints on a terminal, with the seconds at which each began to be complete."""
    leader, follower = pty.openpty()
    size = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    command = [sys.executable, "examples/demo/demo.py"]
    demo = subprocess.Popen(command, cwd=ROOT, env=size, stdout=follower, stderr=follower)  # noqa: S603 - our own
    os.close(follower)
    lines: list[tuple[float, str]] = []
    rest, clock, last = b"", 0.0, time.monotonic()
    while True:
        try:
            chunk = os.read(leader, 65_536)
        except OSError:  # the other side is closed
            chunk = b""
        now = time.monotonic()
        clock, last = clock + min(now - last, LONGEST_PAUSE_S), now
        *complete, rest = (rest + chunk).split(b"\n")
        # Of a progress bar only its last state is shown, of a spinner nothing.
        shown = (line.decode().rstrip("\r").rpartition("\r")[2] for line in complete)
        lines += [(clock, line) for line in shown if not _SPINNER.search(line)]
        if not chunk:
            break
    if demo.wait():
        sys.exit(f"The demo failed: {lines[-1][1] if lines else 'it printed nothing'}")
    return lines


def spans(line: str) -> str:
    """The characters of a line with ANSI styles as SVG."""
    text, console = Text.from_ansi(line), Console(width=COLUMNS)
    parts: list[str] = []
    for segment in text.render(console):
        style, look = segment.style, ""
        if style and style.bold:
            look += ' font-weight="bold"'
        if style and style.dim:
            look += f' fill="{_DIM}"'
        elif style and style.color:
            look += f' fill="{style.color.get_truecolor(SVG_EXPORT_THEME).hex}"'
        parts.append(f"<tspan{look}>{escape(segment.text.replace(' ', NBSP))}</tspan>")
    return "".join(parts).replace("\n", "")


def svg(lines: list[tuple[float, str]]) -> str:
    """The recording: each line appears at its time, and the page scrolls with the last one."""
    width, height = COLUMNS * _CHARACTER_PX + 2 * _MARGIN_PX, ROWS * _LINE_PX + 2 * _MARGIN_PX
    total = lines[-1][0] + SHOWN_AT_THE_END_S
    rows: list[str] = []
    for at, (begin, line) in enumerate(lines):
        appears = f'calcMode="discrete" values="0;1" keyTimes="0;{begin / total:.4f}"'
        rows.append(
            f'<text y="{(at + 1) * _LINE_PX}" opacity="0">{spans(line)}'
            f'<animate attributeName="opacity" {appears} dur="{total:.2f}s" repeatCount="indefinite"/></text>'
        )
    steps = [(begin / total, -max(0, at + 1 - ROWS) * _LINE_PX) for at, (begin, _) in enumerate(lines)]
    places = ";".join(f"0 {y}" for _, y in [(0.0, 0), *steps])
    times = ";".join(f"{share:.4f}" for share, _ in [(0.0, 0), *steps])
    scrolls = f'type="translate" calcMode="discrete" values="{places}" keyTimes="{times}" dur="{total:.2f}s"'
    inner = f'width="{width - 2 * _MARGIN_PX:.0f}" height="{ROWS * _LINE_PX}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">
<rect width="{width:.0f}" height="{height}" rx="8" fill="#11181d"/>
<svg x="{_MARGIN_PX}" y="{_MARGIN_PX}" {inner}>
<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14" fill="#dfe7ec">
<animateTransform attributeName="transform" {scrolls} repeatCount="indefinite"/>
{chr(10).join(rows)}
</g></svg></svg>
"""


if __name__ == "__main__":
    (ROOT / "docs" / "demo.svg").write_text(svg(recorded()), encoding="utf-8")
