"""What users can import stays: every public name with its signature, compared with those written down.

Public is what a package exports in ``__all__``, the errors, and what README, pages and examples import. If a change is
meant, run this file as a script: it writes `tests/data/public_names.json` again, and the difference is reviewed.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol

from pydantic import BaseModel
from support import DATA

import inference_core
from inference_core import errors

ROOT = Path(__file__).parents[2]
FILE = DATA / "public_names.json"
RENEW = "PYTHONPATH=.:tests python tests/contract/test_public_names.py"
CODE = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^ *from (inference_core[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
HOME = re.compile(r"\binference_core(\.\w+)*\.(?=\w)")
SET = re.compile(r"(?<=set\(\{)[^{}]*(?=\}\))")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PLUMBING = (Generic, Protocol, object)
SPECIAL = ("__init__", "__call__", "__enter__", "__aenter__", "__iter__", "__getitem__", "__len__", "__contains__")


def text_of(value: object) -> str:
    """A value without its address, its module and the order of a set, all of which may change."""
    text = ADDRESS.sub("", HOME.sub("", value if isinstance(value, str) else repr(value)))
    return SET.sub(lambda found: ", ".join(sorted(found[0].split(", "))), text)


def signature_of(function: Any) -> str:
    kind = "async " if inspect.iscoroutinefunction(function) else ""
    return kind + text_of(str(inspect.signature(function)))


def imported_by_pages() -> dict[str, set[str]]:
    """The names that README, pages, notebooks and examples import, by module."""
    found: dict[str, set[str]] = {}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    for page in [*pages, *(ROOT / "examples").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]:
        text = page.read_text(encoding="utf-8")
        if page.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        for module, names in IMPORT.findall(text):
            line = f"from {module} import {names.partition('#')[0] if names[0] != '(' else names}"
            imports = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.alias)]
            found.setdefault(module, set()).update(one.name for one in imports)
    return found


def public_names() -> dict[str, set[str]]:
    """All public names, by the path that they are imported from."""
    found = imported_by_pages()
    found.setdefault(errors.__name__, set()).update(errors_told())
    for module in packages():
        found.setdefault(module.__name__, set()).update(getattr(module, "__all__", ()))
    for name, names in found.items():
        names.update(getattr(import_module(name), "__all__", ()))
    return {name: names for name, names in sorted(found.items()) if names}


def errors_told() -> list[str]:
    return [name for name, one in vars(errors).items() if inspect.isclass(one) and one.__module__ == errors.__name__]


def packages() -> Iterator[ModuleType]:
    yield inference_core
    for info in pkgutil.walk_packages(inference_core.__path__, "inference_core."):
        if info.ispkg:
            yield import_module(info.name)


def told(value: Any) -> Any:
    """What users of a name rely on."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return class_told(value)
    if callable(value) and not hasattr(value, "__origin__"):
        return signature_of(value)
    return text_of(value)


def class_told(cls: type[Any]) -> dict[str, Any]:
    """What it is an instance of, its fields in order, its members; of an enumeration, the values."""
    found: dict[str, Any] = {"is": [base.__name__ for base in cls.__mro__[1:-1] if is_public(base)]}
    if issubclass(cls, Enum):
        return found | {"members": {name: member.value for name, member in cls.__members__.items()}}
    return found | {"fields": fields_of(cls), "members": dict(members_of(cls))}


def is_public(base: type[Any]) -> bool:
    is_ours = base.__module__.startswith("inference_core")
    return base.__name__ in inference_core.__all__ or base in vars(errors).values() if is_ours else base not in PLUMBING


def fields_of(cls: type[Any]) -> list[str]:
    """Annotations of the package's classes as they are written; those of tuples and settings with their defaults."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("inference_core"):
            written = inspect.get_annotations(base).items()
            found |= {name: text_of(getattr(one, "__forward_arg__", one)) for name, one in written if name[0] != "_"}
    defaults = dict(getattr(cls, "_field_defaults", {}))
    if issubclass(cls, BaseModel):
        fields = cls.model_fields
        found = {name: one for name, one in found.items() if name in fields}
        optional = {name: one for name, one in fields.items() if not one.is_required()}
        defaults = {name: one.get_default(call_default_factory=True) for name, one in optional.items()}
    told_defaults = {name: f" = {text_of(repr(one))}" for name, one in defaults.items()}
    return [f"{name}: {one}{told_defaults.get(name, '')}" for name, one in found.items()]


def members_of(cls: type[Any]) -> Iterator[tuple[str, str]]:
    for name, kind, home, value in inspect.classify_class_attrs(cls):
        if not home.__module__.startswith("inference_core") or (name[0] == "_" and name not in SPECIAL):
            continue
        if kind == "property":
            yield name, f"property {signature_of(value.fget) if isinstance(value, property) else ''}"
        elif kind == "data":
            if not inspect.isdatadescriptor(value):
                yield name, text_of(value)
        else:
            yield name, f"{kind} {signature_of(getattr(cls, name))}"


def written_down() -> dict[str, dict[str, Any]]:
    """What users of each name rely on; a class that has another path as well is told once."""
    found: dict[str, dict[str, Any]] = {}
    first: dict[Any, str] = {}
    for module, names in public_names().items():
        found[module] = {}
        for name in sorted(names):
            value = getattr(import_module(module), name)
            path = first.setdefault(value, f"{module}.{name}") if inspect.isclass(value) else f"{module}.{name}"
            found[module][name] = told(value) if path == f"{module}.{name}" else f"as {path}"
    return found


def flat(found: Any, path: str = "") -> dict[str, Any]:
    """Each text by its path, so that a difference is short."""
    if not isinstance(found, dict) or not found:
        return {path: found}
    inner = (flat(one, f"{path}/{name}").items() for name, one in found.items())
    return {where: text for each in inner for where, text in each}


def changes() -> list[str]:
    before, now = flat(json.loads(FILE.read_text(encoding="utf-8"))), flat(written_down())
    paths = [path for path in sorted(before | now) if before.get(path) != now.get(path)]
    return [f"{path}\n  was {before.get(path)}\n  is  {now.get(path)}" for path in paths]


def test_public_names_and_signatures_are_as_written_down(quick_python: str):
    """In a process of its own, since the tests' configuration changes defaults."""
    command = [quick_python, str(Path(__file__)), "--check"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nIf this is meant: {RENEW}"


def test_a_change_of_a_name_a_parameter_a_default_an_annotation_or_an_order_shows():
    def ask(query: str, k: int = 5) -> list[str]:
        raise NotImplementedError

    def ask_other(query: str, k: int = 6) -> list[str]:
        raise NotImplementedError

    def ask_for_bytes(query: str, k: int = 5) -> list[bytes]:
        raise NotImplementedError

    def ask_by_keyword(query: str, *, k: int = 5) -> list[str]:
        raise NotImplementedError

    class Pair(NamedTuple):
        one: int
        two: str = ""

    class Turned(NamedTuple):
        two: str = ""
        one: int = 0

    Pair.__module__ = Turned.__module__ = "inference_core.some"
    assert len({signature_of(one) for one in (ask, ask_other, ask_for_bytes, ask_by_keyword)}) == 4
    assert fields_of(Pair) == ["one: int", "two: str = ''"]
    assert fields_of(Turned) == ["two: str = ''", "one: int = 0"]
    assert text_of("inference_core.memory.types.MemoryType | None at 0x7f00") == "MemoryType | None"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(changes()) or 0)
    FILE.write_text(json.dumps(written_down(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
