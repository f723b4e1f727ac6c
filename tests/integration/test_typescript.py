"""The types of the HTTP API for TypeScript."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "clients" / "typescript"


def test_the_example_compiles():
    """In strict mode, against the types that are committed; where npm has installed what it needs."""
    compiler = FOLDER / "node_modules" / ".bin" / "tsc"
    if not compiler.exists():
        pytest.skip("TypeScript is not installed: sh scripts/typescript")
    done = subprocess.run(["npm", "run", "--silent", "check"], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_the_types_name_every_route():
    """If this fails, run: sh scripts/typescript"""
    types = (FOLDER / "inference-core.d.ts").read_text()
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())
    assert not [path for path in described["paths"] if f'    "{path}": {{\n' not in types]
    operations = [one["operationId"] for verbs in described["paths"].values() for one in verbs.values()]
    assert not [name for name in operations if f'operations["{name}"]' not in types]
