"""Retrieval and answers measured on conversations with questions: data sets, systems, measures and reports."""

from __future__ import annotations

from typing import Final

DATASETS: Final = ("locomo", "beam", "atomic")
"""Names of the formats that can be read."""
STORE: Final = "store"
"""In place of a format: the user's own store, with a file of questions."""
PEERS: Final = ("mem0", "langmem")
"""Other packages, which are measured if they are installed."""
SYSTEMS: Final = (
    *("ours", "ours-no-late", "ours-no-links", "ours-links"),
    *("lexical", "langgraph-inmemory", "dense", "bm25", *PEERS),
)
"""Names of what can be measured."""
MODES: Final = ("none", "full", *SYSTEMS)
"""Names of what answers can be made from: also no memory, and the whole conversation."""
JUDGE_PROMPTS: Final = ("mem0", "longmemeval", "beam")
"""Names of the rules by which answers are judged."""
WITH_RERANKER: Final = frozenset({"ours", "ours-no-late", "ours-no-links", "ours-links", "lexical"})
"""Those of them that a re-ranker can stand behind."""
WITH_MODEL: Final = (WITH_RERANKER - {"lexical"}) | {"dense"}
"""Those of them that can have any embedding model."""
