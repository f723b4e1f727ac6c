"""Notes what a model call was given of memory: as a receipt, off the reply path, and on the run being traced."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from langchain.agents.middleware.types import ModelRequest

from inference_core.agents.identity import current_config, thread_of
from inference_core.context.profile import PROFILE
from inference_core.memory.ids import new_id
from inference_core.memory.receipt import Place, Receipt, ReceiptDrop, ReceiptLine, evidence, text_hash
from inference_core.memory.text import text_tokens
from inference_core.services.operations.receipts import keep_receipt
from inference_core.services.operations.scope import MemoryScope
from inference_core.services.operations.turn import TurnContext

_LOG = logging.getLogger(__name__)
_PREFIX: Final = "inference_core.memory."


def evidence_of(told: TurnContext) -> dict[str, Any]:
    """What a receipt's value says of the turn, for the run's private state; no content of memories."""
    dropped = [
        ReceiptDrop(id=one.record.id, version=one.record.version, reason=one.reason, by=one.by) for one in told.dropped
    ]
    frame = {"recalled_at": told.now.isoformat(), "zone": str(told.zone), "form": told.form}
    return frame | evidence(list(_lines(told)), dropped)


def note_receipt(
    scope: MemoryScope,
    request: ModelRequest[Any],
    state: Mapping[str, Any],
    profile: str | None,
    placement: str,
    days: float | None,
) -> None:
    """Keeps a receipt of this call for ``days`` (None: does not), and annotates the traced run; never raises.

    ``profile`` is the profile's text, None for a run without profiles.
    """
    if not state.get("memory_evidence"):
        return
    try:
        block: str = state.get("memory_context") or ""
        now, run = scope.clock.now(), getattr(request.runtime, "execution_info", None)
        run_id = getattr(run, "run_id", None) or current_config().get("run_id")
        model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        receipt = Receipt.from_value(
            {
                **state["memory_evidence"],
                "id": new_id(),
                "at": now.isoformat(),
                "until": (now + timedelta(days=days or 0)).isoformat(),
                "status": state["memory_status"],
                "placement": placement,
                "has_profile": profile is not None,
                "tokens": text_tokens(block) + text_tokens(profile or ""),
                "profile_hash": text_hash(profile or ""),
                "block_hash": text_hash(block),
                "model": model if isinstance(model, str) else type(request.model).__name__,
                "thread_id": thread_of(),
                "run_id": None if run_id is None else str(run_id),
                "agent_name": scope.namespaces.agent_name,
            }
        )
        if days is not None:
            keep_receipt(scope, state["memory_owner"], receipt)
        annotate(receipt)
    except Exception as error:  # noqa: BLE001 - a note never breaks a run
        _LOG.warning("What the model was told is not noted: %s", error)


def _lines(told: TurnContext) -> Iterator[ReceiptLine]:
    versions = {line.id: line.version for line in told.profile.lines}
    for rank, line in enumerate(told.profile.lines, 1):
        yield ReceiptLine(id=line.id, version=line.version, place=Place.PROFILE, rank=rank, cut=line.cut)
    groups = {item.id: number for number, group in enumerate(told.context.conflicts) for item in group}
    for rank, item in enumerate(told.context.items, 1):
        yield ReceiptLine(
            id=item.id,
            version=item.record.version if item.record else 0,
            place=Place.NEWS if item.source == PROFILE else Place.RECALLED,
            rank=rank,
            score=item.score if item.relevance is not None else None,
            relevance=item.relevance,
            signals=dict(item.signals),
            old=versions.get(item.id),
            cut=item.cut,
            group=groups.get(item.id),
        )


def annotate(receipt: Receipt) -> None:
    """Adds ids, counts and hashes to LangSmith's current run and OpenTelemetry's current span, if the process has any.

    Neither library is imported for it.
    """
    facts: dict[str, str | int] = {
        "receipt": receipt.id,
        "status": receipt.status,
        "ids": ",".join(dict.fromkeys(line.id for line in receipt.lines)),
        "told": len(receipt.lines),
        "dropped": len(receipt.dropped),
        "tokens": receipt.tokens,
        "profile_hash": receipt.profile_hash,
        "block_hash": receipt.block_hash,
    }
    attributes = {f"{_PREFIX}{name}": value for name, value in facts.items()}
    if langsmith := sys.modules.get("langsmith.run_helpers"):
        traced = langsmith.get_current_run_tree()
        if traced is not None:
            traced.add_metadata(attributes)
    if telemetry := sys.modules.get("opentelemetry.trace"):
        span = telemetry.get_current_span()
        if span.is_recording():
            span.set_attributes(attributes)
