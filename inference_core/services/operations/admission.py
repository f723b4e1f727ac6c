"""Admission: whether a memory, or a change of one, is stored at once or waits for the user.

All that adds or changes memories asks here, and nothing but this module asks `decide`. What becomes of what has to wait
is decided by `proposed_on` in `review`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from inference_core.memory.record import MemoryRecord
from inference_core.memory.trust import Decision, MemorySource, Origin, Trust, check_write, decide, guides


def has_to_wait(record: MemoryRecord, confirm: Collection[str] = ()) -> bool:
    """Whether ``record`` waits for the user before it is stored; ``confirm`` names categories to confirm."""
    is_outside = record.trust is Trust.EXTERNAL and guides(record.memory_type, record.category)
    return is_outside or decide(record.source, record.category, record.memory_type, confirm) is Decision.PENDING


def changed(
    old: MemoryRecord, new: MemoryRecord, source: MemorySource | None, confirm: Collection[str] = ()
) -> tuple[MemoryRecord, bool]:
    """``new``, which takes the place of ``old``, with the source that answers for it, and whether it has to wait.

    ``source`` is who words it anew; None: its text and type stay, or nobody says who. Raises UntrustedWrite if the
    source of ``old`` may not become a memory of ``new``'s category.
    """
    kind = None if new.memory_type is old.memory_type else new.memory_type
    if source is None:
        check_write(old.source, new.category, kind)
        return new, False
    waits = decide(source, new.category, new.memory_type, confirm) is not Decision.YES
    if source.trust is Trust.EXTERNAL < old.trust:
        waits = True  # what a page says ends nothing that the user stated
    # An agent that rewords a less trusted memory does not vouch for it: the memory keeps its source or, if it is
    # trusted less than that, counts as a tool's. What such a source may not write at once waits for the user.
    if not waits and source.trust < Trust.STATED and old.trust < source.trust:
        said_by = old.source if old.source.trust <= old.trust else MemorySource(origin=Origin.TOOL)
        if decide(said_by, new.category, kind) is Decision.YES:
            return new, False  # rewording it vouches for nothing
        source, waits = said_by, True
    return replace(new, source=source, trust=source.trust), waits  # whoever rewrites it answers for it
