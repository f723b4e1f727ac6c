"""Function words by language."""

from __future__ import annotations

from typing import Final

from inference_core.retrieval.stopwords import WORDS

LATIN: Final[dict[str, str]] = WORDS["latin"]
"""Of languages in Latin script, in the order in which a tie between two of them is decided."""
OTHER: Final[dict[str, str]] = WORDS["other"]
"""Of languages with a script of their own."""
