"""The word lists of ``words.toml``, read once."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Final

WORDS: Final[dict[str, Any]] = tomllib.loads((files(str(__package__)) / "words.toml").read_text("utf-8"))
STOP_WORDS: Final = frozenset(WORDS["latin"]["en"].split())
"""English function words, too frequent to tell one memory from another."""
META_WORDS: Final = frozenset(WORDS["meta_words"].split())
"""English words of a query that are about asking and about the conversation itself, not about what was said in it."""
