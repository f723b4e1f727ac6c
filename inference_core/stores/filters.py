"""Filters over stored values: what `search(filter=…)` means, the same for every store.

A filter maps a top-level key of the value to what it must be: a JSON value (equal to it), or a mapping of operators
``$eq $ne $gt $gte $lt $lte``. Numbers compare as numbers, text as text; a missing key equals nothing but ``$ne``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from inference_core.errors import InvalidFilter

Predicate = Callable[[Mapping[str, Any]], bool]
_MISSING: Final = object()
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_EQUALITY: Final = ("$eq", "$ne")


def predicate(conditions: Mapping[str, Any] | None) -> Predicate:
    """Whether a value meets all ``conditions``. Raises InvalidFilter for an unknown operator or operand."""
    if not conditions:
        return lambda _: True
    if not isinstance(conditions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidFilter(f"filter must be a mapping, not {type(conditions).__name__}")
    tests = [test for key, condition in conditions.items() for test in _tests(key, condition)]
    return lambda value: all(test(value) for test in tests)


def _tests(key: object, condition: Any) -> list[Predicate]:
    if not isinstance(key, str) or key.startswith("$"):
        raise InvalidFilter(f"Unknown filter key {str(key)[:80]!r}; keys are the names of a value's fields")
    if isinstance(condition, Mapping) and any(str(name).startswith("$") for name in condition):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return [_test(key, name, operand) for name, operand in condition.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return [_test(key, "$eq", condition)]


def _test(key: str, name: object, operand: Any) -> Predicate:
    if name in _EQUALITY:
        is_wanted = name == "$eq"
        return lambda value: _equal(value.get(key, _MISSING), operand) is is_wanted
    if name not in _ORDER:
        raise InvalidFilter(f"Unknown filter operator {str(name)[:80]!r}; known: {', '.join([*_EQUALITY, *_ORDER])}")
    if isinstance(operand, bool) or not isinstance(operand, int | float | str):
        raise InvalidFilter(f"{name} compares numbers or text, not {type(operand).__name__}")
    return _ordering(key, _ORDER[str(name)], operand)


def _equal(found: Any, operand: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return found == operand and isinstance(found, bool) is isinstance(operand, bool)


def _ordering(key: str, compare: Callable[[Any, Any], bool], operand: float | str) -> Predicate:
    def test(value: Mapping[str, Any]) -> bool:
        found = value.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            return False
        return isinstance(found, str) is isinstance(operand, str) and compare(found, operand)

    return test
