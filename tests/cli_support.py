"""Commands run in this process, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference_core.cli import main

Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    """The one JSON document that a command prints."""
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def text(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What a command prints for people, without control characters."""
    assert main(list(arguments)) == code
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    return printed.out + printed.err
