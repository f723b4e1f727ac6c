"""Shows searches in LangSmith as retriever runs, children of the current run. Nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


def current() -> Any:
    """The run that LangSmith is tracing; None if there is none, or the process has not loaded LangSmith."""
    # While another thread imports the module, it is listed but has no functions yet.
    current_run = getattr(sys.modules.get("langsmith.run_helpers"), "get_current_run_tree", None)
    return current_run() if current_run else None


def begun(parent: Any, inputs: Mapping[str, Any]) -> Any:
    """Starts a retriever run as a child of ``parent``; None if LangSmith cannot create it. Never raises."""
    run = None
    with suppress(Exception):  # telemetry breaks nothing
        run = parent.create_child("recall_memories", run_type="retriever", inputs=inputs)
        run.post()
    return run


def end(run: Any, documents: Sequence[Any] | None, error: str | None, *, shows: bool) -> None:
    """Ends ``run``, if there is one, with the ``documents`` found; with their texts if ``shows``. Never raises."""
    if run is None:
        return
    with suppress(Exception):  # telemetry breaks nothing
        found = [
            {
                "page_content": one.content if shows else "",
                "type": "Document",
                "metadata": {"id": one.id, "score": getattr(one, "score", None)},
            }
            for one in documents or ()
            if hasattr(one, "content")
        ]
        run.end(outputs={"documents": found}, error=error)
        run.patch()
