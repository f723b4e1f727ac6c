"""What a process has seen of a scope of another library's store, so that it can tell what has changed since."""

from __future__ import annotations

import json
import sys
from typing import Any, Final, NamedTuple

from inference_core.stores.backend import Row

EXTRA: Final = "_inference_core"
"""The key of a stored value that holds the version, the indexed text and the vector."""


class Mark(NamedTuple):
    """What is known of a row: the number of its last change, its version, the model of its vector, a hash of it all.

    ``model`` is "" without a vector, None without a text; ``digest`` None: it is gone.
    """

    seq: int
    version: int
    model: str | None
    digest: int | None


class Mirror:
    """What was seen of a scope.

    Rows are kept only until an index has heard of them: ``fresh`` has all that changed after ``fresh_since``.
    """

    def __init__(self) -> None:
        self.head = self.fresh_since = 0
        self.marks: dict[str, Mark] = {}
        self.fresh: dict[str, Row | None] = {}

    def note(self, rows: dict[str, Row]) -> None:
        """Numbers what has changed in ``rows`` since they were read last."""
        for key in [key for key, mark in self.marks.items() if mark.digest is not None and key not in rows]:
            self.head += 1
            self.marks[key] = Mark(self.head, 0, None, None)
            self.fresh[key] = None
        for key, row in reversed(rows.items()):
            digest = hash((row.updated_at, row.version, json.dumps(row.value, sort_keys=True, default=str)))
            if key not in self.marks or self.marks[key].digest != digest:
                self.head += 1
                extra = extra_of(row.value)
                model = sys.intern(str(extra.get("model", ""))) if extra.get("vector") else ""
                self.marks[key] = Mark(self.head, row.version, None if text_of(row) is None else model, digest)
                self.fresh[key] = row

    def drop_fresh(self, until: int) -> None:
        """Forgets the rows of all changes up to the number ``until``."""
        self.fresh = {key: row for key, row in self.fresh.items() if self.marks[key].seq > until}
        self.fresh_since = max(self.fresh_since, until)


def extra_of(value: dict[str, Any]) -> dict[str, Any]:
    """What this package keeps in a stored ``value``, besides what is the caller's."""
    found = value.get(EXTRA)
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON


def text_of(row: Row) -> str | None:
    """The text by which a row is found: the one that was indexed with it, or its content."""
    text = extra_of(row.value).get("text") or row.value.get("content")
    return text if isinstance(text, str) and text.strip() else None
