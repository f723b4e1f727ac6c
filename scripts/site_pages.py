"""MkDocs hook: the README is the first page, and links out of docs/ lead to copies of the files they name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parent.parent
_OUTWARDS: Final = re.compile(r"\]\(\.\./((?:examples|benchmarks)/[\w./-]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the README as ``index.md`` and whatever pages link to outside of docs/."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", readme)
    files.append(File.generated(config, "index.md", content=re.sub(r"\[([^\]]+)\]\(examples\)", r"\1", readme)))
    linked = {path for page in files.documentation_pages() for path in _OUTWARDS.findall(page.content_string)}
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Makes links out of docs/ lead to the copies."""
    return _OUTWARDS.sub(r"](\1)", markdown)
