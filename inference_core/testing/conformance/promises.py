"""What a promise is: a method ``test_…`` of a `Promises` class; the first line of its docstring states the promise.

Every store must keep the contract promises. Robustness promises go beyond what LangGraph documents: a broken one is
reported, and fails only with ``strict``.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from unittest import SkipTest

from langgraph.store.base import InvalidNamespaceError

if TYPE_CHECKING:
    from inference_core.testing.conformance.subject import Subject

_SHOWN: Final = 150


class BrokenPromise(AssertionError):
    """The store does not do what was promised; the message says what it does instead."""


class NotApplicable(SkipTest):
    """The promise cannot be tested on this store; pytest and unittest skip it."""


class Promises:
    """A class of promises; each method takes the `Subject` to test."""

    strict: ClassVar[bool] = False

    def fall_short(self, error: Exception) -> None:
        """Called when a robustness promise is broken. Raises ``error``; a test suite may report it instead."""
        raise error


class Robustness(Promises):
    """Promises that LangGraph does not document; a broken one fails with ``strict``, else `fall_short` reports it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Robustness in cls.__bases__:
            for name, test in list(vars(cls).items()):
                if name.startswith("test_"):
                    setattr(cls, name, _robustness(test))


def _robustness(test: Callable[[Any, Subject], None]) -> Callable[[Any, Subject], None]:
    @functools.wraps(test)
    def tried(self: Promises, subject: Subject) -> None:
        try:
            test(self, subject)
        except SkipTest:
            raise
        except Exception as error:  # whatever a store raises breaks the promise
            if self.strict:
                raise
            self.fall_short(error)

    vars(tried)["is_robustness"] = True
    return tried


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise: its method's ``name``, the ``text`` that states it, and the ``reason`` why it matters.

    ``is_robustness``: it is a robustness promise, not a contract promise.
    """

    name: str
    is_robustness: bool
    text: str
    reason: str


def promises_of(kind: type[Promises]) -> list[Promise]:
    """The promises of a class: contract promises first, each kind in the order of the source."""
    methods = {name: method for base in kind.__mro__ for name, method in vars(base).items() if name.startswith("test_")}
    found: list[Promise] = []
    for name, method in methods.items():
        text, _, reason = (inspect.getdoc(method) or name).partition("\n")
        is_robustness = bool(getattr(method, "is_robustness", False))
        found.append(Promise(name, is_robustness, text.rstrip("."), " ".join(reason.split())))
    return sorted(found, key=lambda promise: promise.is_robustness)


def expect(condition: object, message: str) -> None:
    """Raises BrokenPromise with ``message`` unless ``condition`` holds."""
    if not condition:
        raise BrokenPromise(message)


def fail(message: str) -> NoReturn:
    """Raises BrokenPromise."""
    raise BrokenPromise(message)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Raises BrokenPromise unless what was ``found`` is what was ``wanted``."""
    expect(found == wanted, f"{what}: {_shown(found)} instead of {_shown(wanted)}")


def expect_same(found: Iterable[Any], wanted: Iterable[Any], what: str) -> None:
    """Like `expect_equal`, but in any order; each element must occur as often."""
    expect_equal(sorted(found, key=repr), sorted(wanted, key=repr), what)


def is_refused(method: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    """Whether a call raises, whatever the error: stores reject calls in their own ways."""
    with suppress(Exception):
        method(*arguments, **options)
        return False
    return True


def expect_invalid_namespace(what: str, method: Callable[..., object], *arguments: Any) -> None:
    """Raises BrokenPromise unless a call raises InvalidNamespaceError."""
    try:
        method(*arguments)
    except InvalidNamespaceError:
        return
    fail(f"{what} was accepted")


def as_json(value: object) -> str:
    """A value as JSON with sorted keys, for comparisons in which true, 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
