"""Writes docs/openapi.json, the description of the HTTP API; with --check it only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from inference_core import AgentMemoryStoreService, open_store
from inference_core.server.app import create_app
from inference_core.server.identity.gate import Access

FILE: Final = Path(__file__).parents[1] / "docs" / "openapi.json"


def description() -> str:
    """The description, without the package's version, which changes by itself."""
    with open_store("memory://", embeddings=None) as store:
        schema = create_app(AgentMemoryStoreService(store), Access()).openapi()
    schema["info"]["version"] = "1"
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes the file, or compares it."""
    made = description()
    if "--check" in sys.argv[1:]:
        is_stale = not FILE.exists() or FILE.read_text(encoding="utf-8") != made
        if is_stale:
            print(f"{FILE.name} is not up to date: python scripts/openapi.py", file=sys.stderr)
        return is_stale
    FILE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
