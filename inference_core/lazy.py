"""Names that are imported (PEP 562), and regular expressions that are compiled, on first use.

So importing the package is cheap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, cast


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``package``; ``homes`` maps each public name to the module that defines it."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find


def lazy_pattern(expression: str, flags: int = 0) -> re.Pattern[str]:
    """What `re.compile` returns, compiled on first use: for a long expression that many processes do not need."""
    return cast("re.Pattern[str]", _LazyPattern(expression, flags))


class _LazyPattern:
    """Gets each attribute of the pattern when it is asked for, and keeps it."""

    def __init__(self, expression: str, flags: int) -> None:
        self._given = expression, flags

    @cached_property
    def _made(self) -> re.Pattern[str]:
        return re.compile(*self._given)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        setattr(self, name, found)
        return found
