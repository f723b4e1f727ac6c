"""The two faces of services: the same operations, blocking and awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import Parameter
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from inference_core.drivers import Plan, arun, run
from inference_core.services.operations.scope import MemoryScope, present_as

P = ParamSpec("P")
T = TypeVar("T")
_SELF: Final = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)


class Face:
    """What both faces of a service run operations with."""

    def __init__(self, scope: MemoryScope, timeout: float | None) -> None:
        self.scope = scope
        self.timeout = timeout


def synchronous(operation: Callable[Concatenate[MemoryScope, P], Plan[T]]) -> Callable[Concatenate[Face, P], T]:
    """The method that does ``operation`` and blocks."""

    def method(self: Face, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(self.scope, *args, **kwargs), self.timeout)

    present_as(method, operation, _SELF)
    return method


def asynchronous(
    operation: Callable[Concatenate[MemoryScope, P], Plan[T]],
) -> Callable[Concatenate[Face, P], Coroutine[Any, Any, T]]:
    """The method that does ``operation`` and is awaited."""

    async def method(self: Face, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(operation(self.scope, *args, **kwargs), self.timeout)

    present_as(method, operation, _SELF)
    return method
