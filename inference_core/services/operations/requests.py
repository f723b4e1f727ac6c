"""Idempotent requests: clients repeat them under a key of their own until they get an answer; each runs once."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import encode_label
from inference_core.memory.text import canonical_text, encode_json
from inference_core.services.operations.scope import MemoryScope, UserId
from inference_core.stores.backend import Expiry, Put

REQUESTS: Final = "~requests"
"""Second label of the namespace with the idempotency keys of a user's requests; no category and no agent has it."""
REQUEST_TTL: Final = timedelta(days=1)
MAX_REQUEST_KEY_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Request:
    """A request. The store keeps its ``mark``; writing the mark fails if the user has used the key before.

    ``id`` is derived from the key and from what the request says, ``digest`` from the latter alone.
    """

    mark: Put
    id: str
    digest: str


def request_of(scope: MemoryScope, user_id: UserId, request_key: str, told: Mapping[str, Any]) -> Operation[Request]:
    """The request with this key and the fields ``told``. Raises InvalidMemory for an invalid key."""
    name = canonical_text(request_key, what="idempotency key", max_bytes=MAX_REQUEST_KEY_BYTES)
    body = encode_json({field: str(value) for field, value in told.items()}, what="request")
    secret = yield from scope.engine.content_key()  # without it, what is kept says nothing about the memory
    key, digest, request_id = (
        hmac.new(secret, text.encode(), "sha256").hexdigest() for text in (name, body, f"{name}\n{body}")
    )
    now = scope.clock.now()
    mark = Put(
        namespace=(encode_label(user_id), REQUESTS),
        key=key,
        value=encode_json({"digest": digest}, what="request"),
        updated_at=now,
        expected=0,
        expiry=Expiry(now + REQUEST_TTL, REQUEST_TTL),
    )
    return Request(mark, request_id[:32], digest)


def check_same(scope: MemoryScope, request: Request) -> Operation[None]:
    """Raises InvalidInput if the key of ``request`` was used for one that says something else."""
    (row,) = yield from scope.engine.get([(request.mark.namespace, request.mark.key)])
    if row and row.value.get("digest") != request.digest:
        raise InvalidInput("This idempotency key was used for another request; choose a new one")
