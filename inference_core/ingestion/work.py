"""Work: what a worker does with a batch of the outbox, be it messages or periodic work."""

from __future__ import annotations

from typing import Protocol

from inference_core.effects import Operation
from inference_core.ingestion.candidates import Extraction
from inference_core.ingestion.consolidation import Effects
from inference_core.ingestion.outbox import Claim
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.backend import Write


class TaskHandler(Protocol):
    """One kind of work. The last two plans may be run again after a crash."""

    def extracted(self, scope: MemoryScope, claim: Claim) -> Operation[Extraction]:
        """What the batch suggests; kept until it is applied. Raises ModelError, StoreError."""
        ...

    def effects(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[Effects]:
        """What that does to memories; the same if some of it is done already. Raises StoreError."""
        ...

    def settled(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[list[Write]]:
        """The writes in the outbox with which the batch is done. Raises StoreError."""
        ...
