"""A build hook that turns README.md into the package's page on PyPI, where relative links would lead nowhere.

Set the environment variable PROJECT_URL to the repository's web address, such as https://host/owner/inference_core:
links and pictures then lead to the files at the version's tag. Without it, they stay relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE: Final = re.compile(r"(!?)(\[[^]]*\]\()(?![a-z]+:|#)")


def with_full_links(text: str, url: str, version: str) -> str:
    """``text`` in Markdown with the addresses, below ``url``, of the files that its relative links lead to."""

    def full(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{url}/{'raw' if found[1] else 'blob'}/v{version}/"

    return _RELATIVE.sub(full, text)


class PackagePage(MetadataHookInterface):
    """Sets ``readme`` and, if the repository's address is known, ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds both to ``metadata``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if url := os.environ.get("PROJECT_URL", "").rstrip("/"):
            text = with_full_links(text, url, metadata["version"])
            metadata["urls"] = {
                "Source": url,
                "Documentation": f"{url}/tree/v{metadata['version']}/docs",
                "Changelog": f"{url}/blob/v{metadata['version']}/CHANGELOG.md",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
