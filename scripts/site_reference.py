"""Griffe extension: methods that are made from operations are documented as their callers see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import griffe

_FACE: Final = re.compile(r"(_of_user\()?(\w+)\)?\.(?:sync|aio)")
"""A method that is made from an operation, such as ``save.sync``; `UserMemory` hides the operation's user, too."""
_SELF: Final = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)


class MadeFromOperations(griffe.Extension):
    """Gives them the signature without the operation's scope, and the operation's docstring."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replaces them once the package is loaded."""
        for module in _modules(pkg):
            for function in module.functions.values():
                if not function.is_alias and any(one.callable_path.endswith("blocking") for one in function.decorators):
                    function.labels.discard("async")
            for cls in module.classes.values():
                for name, member in list(cls.members.items()):
                    value = None if member.is_alias else getattr(member, "value", None)
                    if made := _FACE.fullmatch(str(value)):
                        operation = pkg.modules_collection[module.resolve(made[2])]
                        cls.set_member(name, _as_called(operation, name, hidden=2 if made[1] else 1))


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from _modules(inner)


def _as_called(operation: Any, name: str, hidden: int) -> griffe.Function:
    function = griffe.Function(
        name,
        parameters=griffe.Parameters(_SELF, *list(operation.parameters)[hidden:]),
        returns=operation.returns,
        lineno=operation.lineno,
        endlineno=operation.endlineno,
    )
    if operation.docstring:
        doc = operation.docstring
        function.docstring = griffe.Docstring(
            doc.value, parser=doc.parser, parser_options=doc.parser_options, parent=function
        )
    return function
