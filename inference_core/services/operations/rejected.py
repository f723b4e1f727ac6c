"""Rejected words: what a user has rejected, no agent saves again, as whatever type of memory.

The mark of a rejection lies where the proposal waited. Its name is an HMAC of the user and the text.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.errors import UntrustedWrite
from inference_core.memory.namespaces import PENDING, encode_label, holds_pending, owner_in, space_in
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import encode_json, mapping_field
from inference_core.memory.trust import Trust
from inference_core.services.operations.scope import MemoryScope, UserId
from inference_core.stores.backend import Backend, Row
from inference_core.stores.indexing.reader import content_key_of

NOTE: Final = "_pending"
_NAMES: Final = 4
"""How many names a text can get: the next one each time that a memory of it was approved and has ended since."""


def check_rejected(scope: MemoryScope, record: MemoryRecord) -> Operation[None]:
    """Raises UntrustedWrite if ``record`` repeats rejected words that the user has not stated since; StoreError."""
    if record.source.trust is Trust.STATED:
        return
    owner = owner_in(record.namespace)
    if (yield from scope.engine.ask(partial(is_rejected_on, owner, record.content))):
        reviewer = "the user" if space_in(record.namespace) is None else "an admin of the space"
        raise UntrustedWrite(f"Not saved: {reviewer} has rejected these words before. Do not retry")


def is_rejected_on(user_id: UserId, content: str, backend: Backend) -> bool:
    """Whether the user has rejected this text. Raises StoreError."""
    places = [one for one in backend.namespaces((encode_label(user_id),)) if holds_pending(one)]
    if not places:
        return False
    names = list(names_of(content_key_of(backend), user_id, content))
    return any(row and is_rejected(row) for row in backend.get([(place, name) for place in places for name in names]))


def is_rejected(row: Row) -> bool:
    """Whether ``row`` is the mark of a rejection."""
    return "rejected" in mapping_field(row.value, NOTE)


def names_of(key: bytes, user_id: UserId, content: str) -> Iterator[str]:
    """The ids that this text of the user can get, whatever its type. Without the key they reveal nothing."""
    text = " ".join(content.casefold().rstrip(".!").split())
    for attempt in range(_NAMES):
        told: list[Any] = [PENDING, encode_label(user_id), text, attempt]
        yield hmac.new(key, encode_json(told, what="memory").encode(), "sha256").hexdigest()[:32]
