"""Copies a store into another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference_core.errors import InvalidInput
from inference_core.portability.rows import puts_of
from inference_core.portability.writing import ConflictPolicy, TransferReport, Writer
from inference_core.stores.backend import EMBEDDING_META, Backend

Progress = Callable[[int, int], None]
"""Hears how many rows are done, and of how many."""


def copy_store(
    source: Backend,
    target: Backend,
    *,
    user_ids: Sequence[str] = (),
    policy: ConflictPolicy = ConflictPolicy.NEWER,
    progress: Progress | None = None,
) -> TransferReport:
    """Copies the rows of ``source``, of these users or of all, into ``target``.

    Instants, expiry and, if both have the same model or the target has none, vectors go along; versions start anew.
    What is written or deleted at the source meanwhile may be missed: run it again, which copies what differs; what was
    deleted at the source stays in the target. Raises InvalidInput, StoreError; what was copied
    stays.
    """
    if source.name == target.name and source.capabilities.durable:
        raise InvalidInput("Source and target are the same store")
    report = TransferReport()
    writer = Writer(target, policy, report)
    writer.adopt_model(source.get_meta(EMBEDDING_META))
    for portion in puts_of(source, user_ids, report, with_vectors=True):
        writer.write(portion)
        if progress:
            progress(report.read, max(report.total or 0, report.read))
    return report
