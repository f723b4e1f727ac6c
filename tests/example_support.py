"""Examples as modules, for the tests that look at what they do."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, made anew; it is forgotten after the test."""
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop(name, None)
    module = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))
    return module


def environment() -> dict[str, str]:
    """What an example needs in a process of its own, without the settings of this one."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPYCACHEPREFIX") if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(EXAMPLES)])}
