"""Griffe extension: methods that are made from operations are documented as their callers see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import griffe

_MAKERS: Final = {"asynchronous": 1, "synchronous": 1, "of_user": 2, "async_of_user": 2}
"""Each with how many of the operation's first parameters its callers do not see."""
_SELF: Final = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
_STORE: Final = griffe.Parameter("store", annotation="BaseStore", kind=griffe.ParameterKind.positional_or_keyword)


class MadeFromOperations(griffe.Extension):
    """Gives them the signature without the operation's scope, the result, and the operation's docstring."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replaces them once the package is loaded."""
        for module in _modules(pkg):
            for function in list(module.functions.values()):
                if not function.is_alias and any(
                    one.callable_path.endswith("_on_store") for one in function.decorators
                ):
                    module.set_member(function.name, _as_called(function, function.name, _STORE))
            for cls in module.classes.values():
                for name, member in list(cls.members.items()):
                    value = None if member.is_alias else getattr(member, "value", None)
                    if isinstance(value, griffe.ExprCall) and str(value.function) in _MAKERS:
                        operation = pkg.modules_collection[module.resolve(str(value.arguments[0]))]
                        hidden = _MAKERS[str(value.function)]
                        cls.set_member(name, _as_called(operation, name, _SELF, hidden))


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from _modules(inner)


def _as_called(operation: Any, name: str, first: griffe.Parameter, hidden: int = 1) -> griffe.Function:
    function = griffe.Function(
        name,
        parameters=griffe.Parameters(first, *list(operation.parameters)[hidden:]),
        returns=getattr(operation.returns, "slice", operation.returns),
        lineno=operation.lineno,
        endlineno=operation.endlineno,
    )
    if operation.docstring:
        doc = operation.docstring
        function.docstring = griffe.Docstring(
            doc.value, parser=doc.parser, parser_options=doc.parser_options, parent=function
        )
    return function
