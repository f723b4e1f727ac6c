"""Retrieval measured on conversations with questions about them: data sets, systems, measures and reports."""

from __future__ import annotations

from typing import Final

DATASETS: Final = ("locomo", "beam", "atomic")
"""Names of the formats that can be read."""
SYSTEMS: Final = ("ours", "ours-no-late", "ours-links", "lexical", "langgraph-inmemory", "dense", "bm25")
"""Names of what can be measured."""
