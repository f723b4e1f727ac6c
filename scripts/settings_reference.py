"""Writes .env.example and docs/configuration.md from the settings; with --check it only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from inference_core.settings import AgentSettings, MemorySettings, ServerSettings

ROOT: Final = Path(__file__).parents[1]
KINDS: Final[tuple[tuple[str, type[BaseSettings]], ...]] = (
    ("Memory", MemorySettings),
    ("Agent service and command line", AgentSettings),
    ("Server", ServerSettings),
)
_INTRODUCTION: Final = """# Configuration

Written by `python scripts/settings_reference.py` from `inference_core/settings.py`.

You can set these variables in the environment or in a file. `MemorySettings()` and `AgentSettings()` read the
environment, and so do `AgentService`, the command line, `MemoryMiddleware.from_settings` and
`AgentMemoryStoreService.from_settings`. Importing the package does not.

`AgentService`, the command line and the migration script first read `.env` in the working directory, if there is one.
For another file, use `inference-core --env-file PATH …`. Elsewhere, call `load_env_file()`. Variables already set in
the environment override the file. An invalid value raises an error that names the
variable; an empty one counts as not set.
"""


def settings_of(kind: type[BaseSettings]) -> Iterator[tuple[str, FieldInfo]]:
    """The name of each variable, and its field."""
    for name, field in kind.model_fields.items():
        yield f"{kind.model_config.get('env_prefix', '')}{name.upper()}", field


def shown(value: Any) -> str:
    """A default as it is written into the environment."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(str(part) for part in cast("tuple[object, ...]", value))
        case _:
            return str(value)


def quoted(value: Any) -> str:
    """A default as the table shows it."""
    return f"`{shown(value)}`" if shown(value) else "none"


def env_example() -> str:
    """The example file; what has no default is commented out."""
    lines = ["# Every setting with its default. Copy this file to .env and change what you need."]
    for _, kind in KINDS:
        for name, field in settings_of(kind):
            default = shown(field.default)
            lines += ["", f"# {field.description}", f"{name}={default}" if default else f"# {name}="]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """The page about all settings."""
    parts = [_INTRODUCTION]
    for title, kind in KINDS:
        rows = [f"| `{name}` | {quoted(field.default)} | {field.description} |" for name, field in settings_of(kind)]
        parts.append("\n".join([f"## {title}", "", "| variable | default | meaning |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def main() -> int:
    """Writes both files, or compares them."""
    wanted = {ROOT / ".env.example": env_example(), ROOT / "docs" / "configuration.md": reference()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: python scripts/settings_reference.py", file=sys.stderr)
        return bool(stale)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
