"""Every place of a store where something of a user lies: an erasure removes and counts them, and nothing is forgotten.

What lies under a user's label is removed whatever its second label is; ``PLACES`` names it in receipts. ``ROOTS`` are
the first labels that belong to no user. A test fails for a label of this package that is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inference_core.memory.namespaces import (
    AUDIT,
    ERASED,
    FORGOTTEN,
    GRANTS,
    MEMORIES_STORE_NAME,
    MIGRATED,
    PENDING,
    QUEUE_ROOT,
    SEALS,
    USAGE,
    VERSIONS,
)
from inference_core.memory.quota import QUOTA
from inference_core.memory.types import MEMORY_CATEGORIES

PLACES: Final[Mapping[str, str]] = {
    **dict.fromkeys((*MEMORY_CATEGORIES, MEMORIES_STORE_NAME), "memories"),
    FORGOTTEN: "archive",
    USAGE: "recall counts",
    VERSIONS: "earlier versions",
    QUOTA: "counts of memories",
    AUDIT: "audit events",
    PENDING: "memories that wait for confirmation",
    "~receipts": "receipts of recalls",
    "~requests": "requests of the service",
    "outbox": "waiting messages and work",
    "outbox_dead": "dead letters",
    "ingested": "marks of messages",
    "messages": "kept messages",
    "jobs": "jobs",
    "short_term": "conversations",
    "vector_store": "passages of conversations",
}
"""What lies in a namespace with this second label, in the words of a receipt."""
ITEMS: Final = "items of the application"
LISTED: Final = "lists of work, of API keys and of roles"
ROOTS: Final[Mapping[str, str | None]] = {
    **dict.fromkeys((QUEUE_ROOT, "#keys", GRANTS), "user"),
    ERASED: None,
    SEALS: None,
    MIGRATED[0]: None,
    "~global": None,
    "#store": None,
}
"""First labels that belong to no user, with the field of their rows that holds a user's id; None: no row names one."""
