"""Filters over stored values: what `search(filter=…)` means, the same for every store (docs/filters.md).

A filter maps a top-level key of the value to what it must be: a JSON value (equal to it), or a mapping of operators,
all of which must hold. ``$and``, ``$or`` (lists of filters) and ``$not`` (a filter) stand where keys do. Numbers
compare as numbers, text as text; a missing key meets only ``$ne``, ``$nin`` and ``{"$exists": False}``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from inference_core.errors import InvalidFilter

Predicate = Callable[[Mapping[str, Any]], bool]
Test = Callable[[Any], bool]
MAX_DEPTH: Final = 8
"""How deep ``$and``, ``$or`` and ``$not`` may stand in each other."""
MAX_CONDITIONS: Final = 1_000
"""How many operators, and members of ``$in`` and ``$nin``, a filter may have in all."""
_MISSING: Final = object()
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def predicate(conditions: Mapping[str, Any] | None) -> Predicate:
    """Whether a value meets all ``conditions``. Raises InvalidFilter for what cannot be understood, or is too large."""
    return _Reader().all_of(conditions, depth=0) if conditions else lambda _: True


class _Reader:
    """Reads one filter, counting its conditions."""

    def __init__(self) -> None:
        self._left = MAX_CONDITIONS

    def all_of(self, conditions: object, depth: int) -> Predicate:
        if not isinstance(conditions, Mapping):
            raise InvalidFilter(f"filter must be a mapping, not {type(conditions).__name__}")
        if depth > MAX_DEPTH:
            raise InvalidFilter(f"$and, $or and $not may be nested {MAX_DEPTH} deep")
        tests: list[Predicate] = []
        for key, condition in cast("Mapping[object, Any]", conditions).items():
            if key in ("$and", "$or", "$not"):
                self._count(1)
                tests.append(self._combined(str(key), condition, depth + 1))
            elif isinstance(key, str) and not key.startswith("$"):
                operators: Mapping[object, Any] = {"$eq": condition}
                if isinstance(condition, Mapping) and any(str(name).startswith("$") for name in condition):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                    operators = cast("Mapping[object, Any]", condition)
                self._count(len(operators))
                tests += [self._of_field(key, name, operand) for name, operand in operators.items()]
            else:
                known = "the names of a value's fields, $and, $or, $not"
                raise InvalidFilter(f"Unknown filter key {_shown(key)}; keys are {known}")
        return lambda value: all(test(value) for test in tests)

    def _combined(self, name: str, operand: Any, depth: int) -> Predicate:
        if name == "$not":
            rejected = self.all_of(operand, depth)
            return lambda value: not rejected(value)
        if not isinstance(operand, list | tuple) or not operand:
            raise InvalidFilter(f"{name} takes a list of at least one filter")
        parts = [self.all_of(part, depth) for part in cast("Sequence[object]", operand)]
        is_met = all if name == "$and" else any
        return lambda value: is_met(part(value) for part in parts)

    def _of_field(self, key: str, name: object, operand: Any) -> Predicate:
        test = self._test(name, operand)
        return lambda value: test(value.get(key, _MISSING))

    def _test(self, name: object, operand: Any) -> Test:
        match name:
            case "$eq":
                return lambda found: _equal(found, operand)
            case "$ne":
                return lambda found: not _equal(found, operand)
            case "$in":
                return self._member("$in", operand)
            case "$nin":
                is_member = self._member("$nin", operand)
                return lambda found: not is_member(found)
            case "$exists" if isinstance(operand, bool):
                return lambda found: (found is not _MISSING) is operand
            case "$exists":
                raise InvalidFilter(f"$exists takes true or false, not {_shown(operand)}")
            case "$contains":
                return lambda found: _contains(found, operand)
            case _:
                return _ordering(name, operand)

    def _member(self, name: str, operand: Any) -> Test:
        if not isinstance(operand, list | tuple):
            raise InvalidFilter(f"{name} takes a list, not {type(operand).__name__}")
        wanted = cast("Sequence[Any]", operand)
        self._count(len(wanted))
        return lambda found: any(_equal(found, one) for one in wanted)

    def _count(self, conditions: int) -> None:
        self._left -= conditions
        if self._left < 0:
            raise InvalidFilter(f"A filter may have {MAX_CONDITIONS:,} conditions")


def _equal(found: Any, operand: Any) -> bool:
    """Equal as JSON: true is not 1, 1 is 1.0."""
    if isinstance(found, list) and isinstance(operand, list):
        pairs = zip(cast("list[Any]", found), cast("list[Any]", operand), strict=False)
        return len(found) == len(operand) and all(_equal(one, other) for one, other in pairs)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(found, dict) and isinstance(operand, Mapping):
        held, wanted = cast("dict[Any, Any]", found), cast("Mapping[Any, Any]", operand)
        return held.keys() == wanted.keys() and all(_equal(held[name], wanted[name]) for name in held)
    return bool(found == operand) and isinstance(found, bool) is isinstance(operand, bool)


def _contains(found: Any, operand: Any) -> bool:
    """A list has it as a member, or a text as a part."""
    if isinstance(found, list):
        return any(_equal(one, operand) for one in cast("list[Any]", found))
    return isinstance(found, str) and isinstance(operand, str) and operand in found


def _ordering(name: object, operand: Any) -> Test:
    compare = _ORDER.get(str(name))
    if compare is None:
        known = ", ".join(["$eq", "$ne", *_ORDER, "$in", "$nin", "$exists", "$contains"])
        raise InvalidFilter(f"Unknown filter operator {_shown(name)}; known: {known}")
    if isinstance(operand, bool) or not isinstance(operand, int | float | str):
        raise InvalidFilter(f"{name} compares numbers or text, not {type(operand).__name__}")

    def test(found: Any) -> bool:
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            return False
        return isinstance(found, str) is isinstance(operand, str) and compare(found, operand)

    return test


def _shown(name: object) -> str:
    return repr(str(name)[:80])
