"""Measures retrieval and answers on conversations with questions: data sets, systems, measures and reports."""

from __future__ import annotations

from typing import Final

DATASETS: Final = ("locomo", "beam", "atomic")
"""Names of the data sets that can be read."""
STORE: Final = "store"
"""In place of a data set: the user's own store, with a file of questions."""
PEERS: Final = ("mem0", "langmem")
"""Other packages, which are measured if they are installed."""
SYSTEMS: Final = (
    *("ours", "ours-no-late", "ours-no-links", "ours-links"),
    *("lexical", "langgraph-inmemory", "dense", "bm25", *PEERS),
)
"""Names of the systems that can be measured."""
MODES: Final = ("none", "full", *SYSTEMS)
"""Names of what a model can answer from: no memory, the whole conversation, or what one of the systems recalls."""
JUDGE_PROMPTS: Final = ("mem0", "longmemeval", "beam")
"""Names of the rules by which answers are judged."""
WITH_RERANKER: Final = frozenset({"ours", "ours-no-late", "ours-no-links", "ours-links", "lexical"})
"""The systems whose results a re-ranker can reorder."""
WITH_MODEL: Final = (WITH_RERANKER - {"lexical"}) | {"dense"}
"""The systems that can use any embedding model."""
