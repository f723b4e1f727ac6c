"""The command line of a benchmark: how many memories, of how many users, and a table or one JSON object."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from report import Row, publish

DEFAULT_N: Final = 10_000
URL_VARIABLE: Final = "BENCHMARK_STORE_URL"
"""Where ``--url`` is kept, also for processes that a benchmark starts."""
_WHOLE: Final = 100
Result = dict[str, Any]
"""What a benchmark measured, under the names of its JSON object; None where something could not be measured."""


@dataclass(frozen=True, slots=True)
class Options:
    """``n`` memories in all, shared by ``users``; the first user is the one that asks."""

    n: int = DEFAULT_N
    users: int = 1


def run(
    name: str,
    measured: Callable[[Options], Result],
    table: Callable[[Result], list[Row]],
    about: str | None,
    default_n: int = DEFAULT_N,
) -> int:
    """Measures as the command line says, shows and writes the results; the exit code is 1 if a bar was missed.

    With ``--json`` the output is the object alone, and the exit code says only whether it could be measured.
    """
    options, arguments = _parsed(name, about, default_n)
    result = measured(options)
    rows = table(result)
    if arguments.json:
        print(json.dumps(result))
    reached = publish(name, rows, result, shown=not arguments.json, written=not arguments.unpublished)
    return 0 if arguments.json else int(not reached)


def _parsed(name: str, about: str | None, default_n: int) -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog=f"sh scripts/bench {name}", description=about)
    parser.add_argument("--n", type=_positive, default=default_n, help="memories in all (default: %(default)s)")
    parser.add_argument("--users", type=_positive, default=1, help="users who share them (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--url", help="measure our store at this URL, {name} being replaced; nothing is published")
    parser.add_argument("--unpublished", action="store_true", help="leave benchmarks/results as it is")
    arguments = parser.parse_args()
    if arguments.url:
        os.environ[URL_VARIABLE] = arguments.url
        arguments.unpublished = True
    if arguments.users > arguments.n:
        parser.error("--users must not be more than --n")
    return Options(arguments.n, arguments.users), arguments


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def described(result: Result) -> str:
    """Among how many memories something was measured."""
    shared = f" of {result['users']:,} users" if result["users"] > 1 else ""
    return f"among {result['n']:,} memories{shared}"


def shown(value: float | str | None, unit: str = "ms", missing: str = "-") -> str:
    """A measured value as text."""
    if value is None:
        return missing
    number = value if isinstance(value, str) else f"{value:.0f}" if value >= _WHOLE else f"{value:.3g}"
    return number if isinstance(value, str) else f"{number} {unit}".rstrip()


def bar(what: str, value: float | None, limit: float, unit: str = "ms", *, least: bool = False) -> Row:
    """A row with a bar: at most ``limit``, or at least, if ``least``."""
    sign = "≥" if least else "≤"
    reached = None if value is None else (value >= limit if least else value <= limit)
    return what, shown(value, unit), f"{sign} {limit:g} {unit}".rstrip(), reached


def plain(what: str, value: float | str | None, unit: str = "ms", missing: str = "-") -> Row:
    """A row without a bar."""
    return what, shown(value, unit, missing), "", None
