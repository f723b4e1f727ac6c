"""Marks by which a user is recognized, for places that others may see, such as a stream of an agent's state."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

_SALT_BYTES: Final = 8
_DIGEST_BYTES: Final = 16
_MARK: Final = re.compile(rf"owner:([0-9a-f]{{{2 * _SALT_BYTES}}}):[0-9a-f]{{{2 * _DIGEST_BYTES}}}")


def owner_mark(user_id: str) -> str:
    """A salted digest of ``user_id``, another one at each call; "" for "", which stands for nobody."""
    return _marked(user_id, secrets.token_bytes(_SALT_BYTES)) if user_id else ""


def is_owner(mark: str | None, user_id: str) -> bool:
    """Whether ``mark`` is one of ``user_id``, or the plain id, as earlier versions kept it."""
    found = _MARK.fullmatch(mark or "")
    # A mark is never compared as text: somebody who has seen it could take it for a user id.
    return mark == (_marked(user_id, bytes.fromhex(found[1])) if found else user_id)


def _marked(user_id: str, salt: bytes) -> str:
    digest = hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, salt=salt).hexdigest()
    return f"owner:{salt.hex()}:{digest}"
