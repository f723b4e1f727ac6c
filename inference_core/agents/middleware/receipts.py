"""What a call of the model was told, noted: as a receipt off the reply path, and on the run that is being traced."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from langchain.agents.middleware.types import ModelRequest

from inference_core.agents.identity import current_config, thread_of
from inference_core.context.profile import PROFILE
from inference_core.memory.ids import new_id
from inference_core.memory.receipt import Place, Receipt, ReceiptDrop, ReceiptLine, text_hash
from inference_core.memory.text import text_tokens
from inference_core.services.operations.receipts import keep_receipt
from inference_core.services.operations.scope import MemoryScope
from inference_core.services.operations.turn import TurnContext

_LOG = logging.getLogger(__name__)
_PREFIX: Final = "inference_core.memory."


def evidence_of(told: TurnContext) -> dict[str, Any]:
    """What a receipt says of ``told``, for the run's private state; no content of memories."""
    lines = [line.to_value() for line in _lines(told)]
    dropped = [
        ReceiptDrop(id=one.record.id, version=one.record.version, reason=one.reason, by=one.by).to_value()
        for one in told.dropped
    ]
    at = told.now.isoformat()
    return {"recalled_at": at, "zone": str(told.zone), "form": told.form, "lines": lines, "dropped": dropped}


def note_receipt(
    scope: MemoryScope,
    request: ModelRequest[Any],
    state: Mapping[str, Any],
    profile: str | None,
    placement: str,
    days: float | None,
) -> None:
    """Keeps a receipt of this call for ``days`` (None: not at all) and tells whoever traces; never raises.

    ``profile`` is the text of the profile that was told, None without one.
    """
    evidence = state.get("memory_evidence")
    if not evidence:
        return
    try:
        receipt = _receipt(scope, request, state, evidence, profile, placement, timedelta(days=days or 0))
        if days is not None:
            keep_receipt(scope, state["memory_owner"], receipt)
        annotate(receipt)
    except Exception as error:  # noqa: BLE001 - a note never breaks a run
        _LOG.warning("What the model was told is not noted: %s", error)


def _receipt(
    scope: MemoryScope,
    request: ModelRequest[Any],
    state: Mapping[str, Any],
    evidence: Mapping[str, Any],
    profile: str | None,
    placement: str,
    life: timedelta,
) -> Receipt:
    block: str = state.get("memory_context") or ""
    now = scope.clock.now()
    return Receipt(
        id=new_id(),
        at=now,
        until=now + life,
        recalled_at=datetime.fromisoformat(evidence["recalled_at"]),
        zone=evidence["zone"],
        status=state["memory_status"],
        placement=placement,
        has_profile=profile is not None,
        form=evidence["form"],
        lines=tuple(map(ReceiptLine.from_value, evidence["lines"])),
        dropped=tuple(map(ReceiptDrop.from_value, evidence["dropped"])),
        tokens=text_tokens(block) + text_tokens(profile or ""),
        profile_hash=text_hash(profile or ""),
        block_hash=text_hash(block),
        model=_name_of(request.model),
        thread_id=thread_of(),
        run_id=_run_id(request.runtime),
        agent_name=scope.namespaces.agent_name,
    )


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


def _attributes(receipt: Receipt) -> dict[str, str | int]:
    """What a trace may say: ids, counts and hashes."""
    told = {
        "receipt": receipt.id,
        "status": receipt.status,
        "ids": ",".join(dict.fromkeys(line.id for line in receipt.lines)),
        "told": len(receipt.lines),
        "dropped": len(receipt.dropped),
        "tokens": receipt.tokens,
        "profile_hash": receipt.profile_hash,
        "block_hash": receipt.block_hash,
    }
    return {f"{_PREFIX}{name}": value for name, value in told.items()}


def annotate(receipt: Receipt) -> None:
    """Tells LangSmith's current run and OpenTelemetry's current span of it, where the process uses these."""
    attributes = _attributes(receipt)
    if langsmith := sys.modules.get("langsmith.run_helpers"):
        traced = langsmith.get_current_run_tree()
        if traced is not None:
            traced.add_metadata(attributes)
    if telemetry := sys.modules.get("opentelemetry.trace"):
        span = telemetry.get_current_span()
        if span.is_recording():
            span.set_attributes(attributes)


def _name_of(model: object) -> str:
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else type(model).__name__


def _run_id(runtime: Any) -> str | None:
    run = getattr(getattr(runtime, "execution_info", None), "run_id", None) or current_config().get("run_id")
    return None if run is None else str(run)
