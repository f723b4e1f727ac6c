"""The public API shows its types: every annotation of a public function or method can be looked up."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

from support import each

import inference_core


def public_callables() -> Iterator[tuple[str, Any]]:
    for name in inference_core.__all__:
        one = getattr(inference_core, name)
        if inspect.isfunction(one):
            yield name, one
        elif inspect.isclass(one):
            for method, function in inspect.getmembers(one, callable):
                is_ours = (getattr(function, "__module__", None) or "").startswith("inference_core")
                if is_ours and inspect.isroutine(function) and (method[0] != "_" or method == "__init__"):
                    yield f"{name}.{method}", function


@each([*public_callables()])
def test_its_types_can_be_looked_up(named: tuple[str, Any]):
    assert "return" in get_type_hints(named[1])
