"""The documents of MongoDB: one for each row, and one for each scope, which writers lease.

Times are microseconds since 1970. A value is JSON text, because BSON has no large integers and forbids some names.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pymongo.errors import DuplicateKeyError

from inference_core.errors import StoreBusy, WriteUnknown
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import (
    UNREADABLE,
    Key,
    Row,
    RowState,
    Unreadable,
    WrongType,
    expiry_micros,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    pack_namespace,
    to_micros,
    unpack_namespace,
)
from inference_core.stores.backends.rows import lost

Fields = dict[str, Any]
_INDEXED: Final = ("terms", "text", "vector", "tokens")
LEASE_S: Final = 30.0
"""A writer that takes longer loses its scopes. The clocks of all writers must agree much better than that."""
_WAIT_S: Final = 10.0
_PAUSE_S: Final = 0.005


def without_text() -> dict[str, int]:
    """The projection that reads a row without what its index needs; a new one, as drivers may change what they get."""
    return dict.fromkeys(_INDEXED, 0)


def id_of(key: Key) -> str:
    """The ``_id`` of a row's document, unique to its key."""
    namespace, name = key
    return pack_namespace((*namespace, name))


def key_of(fields: Fields) -> Key | None:
    """The key of a row's document, or None if it cannot be read."""
    try:
        *namespace, name = unpack_namespace(fields["_id"])
    except UNREADABLE:
        return None
    return (tuple(namespace), name) if namespace else None


def fields_of(key: Key, state: RowState) -> Fields:
    """The document of a row."""
    namespace, name = key
    expires, ttl = expiry_micros(state.expiry)
    document = state.document._asdict() | {"situation": list(state.document.situation)} if state.document else {}
    return {
        "_id": id_of(key),
        "root": namespace[0],
        "scope": pack_namespace(namespace),
        "key": name,
        "seq": state.seq,
        "version": state.version,
        "kind": state.kind,
        "created": to_micros(state.created_at),
        "updated": to_micros(state.updated_at),
        "value": state.value,
        "expires": expires,
        "ttl": ttl,
        "text": None,
        **document,
    }


def state_of(fields: Fields) -> RowState:
    """The state of a row's document, without the text that was not read; `lost` if it cannot be read."""
    try:
        return checked_state(fields)
    except UNREADABLE:
        return lost(fields.get("seq"), fields.get("version"))


def checked_state(fields: Fields) -> RowState:
    """The state of a row's document. Raises one of ``UNREADABLE``."""
    if not type(fields["seq"]) is type(fields["version"]) is int or type(fields["kind"]) is not str:
        raise WrongType
    if not (isinstance(fields["value"], str | None) and isinstance(fields.get("vector"), bytes | None)):
        raise WrongType
    document = None
    if fields.get("text") is not None:
        text, terms, analyzer, model = texts = [fields[name] for name in ("text", "terms", "analyzer", "model")]
        if not all(type(text) is str for text in texts):
            raise WrongType
        situation = DocumentMetadata(*fields["situation"])
        document = Document(text, terms, analyzer, situation, model, fields.get("vector"), fields.get("tokens"))
    return RowState(
        seq=fields["seq"],
        version=fields["version"],
        kind=fields["kind"],
        created_at=from_micros(fields["created"]),
        updated_at=from_micros(fields["updated"]),
        value=fields["value"],
        document=document,
        expiry=expiry_of(fields["expires"], fields["ttl"]),
    )


def row_of(fields: Fields) -> Row | None:
    """The row of a document, or None if it cannot be read."""
    key = key_of(fields)
    return state_of(fields).row(*key) if key else None


def inspected(fields: Fields) -> Row | Unreadable:
    """The row of a document if all of it can be read, or else what is wrong with it."""
    key = key_of(fields)
    root = fields.get("root") if isinstance(fields.get("root"), str) else None
    place = {name: fields.get(name) for name in ("_id", "seq", "version")}
    if key is None or (fields.get("scope"), fields.get("key")) != (pack_namespace(key[0]), key[1]):
        name = key[1] if key else "?"
        return Unreadable(root=root, namespace=None, key=name, reason="its address cannot be read", place=place)
    only_index = False
    try:
        state = checked_state(fields)
        row, vector = state.row(*key), state.document and state.document.vector
        only_index = row is not None and vector is not None and not is_vector(vector)
        if row and not only_index:
            return row
        reason = "its vector cannot be unpacked" if only_index else "a value is not JSON"
    except UNREADABLE as error:
        reason = fault_of(error)
        only_index = row_of(fields | {"text": None}) is not None
    return Unreadable(root=key[0][0], namespace=key[0], key=key[1], reason=reason, only_index=only_index, place=place)


def is_alive(now: int) -> Fields:
    """Matches rows that are neither deleted nor expired."""
    return {"value": {"$ne": None}, "$or": [{"expires": None}, {"expires": {"$gt": now}}]}


class Scopes:
    """The heads of scopes and who may write them, in the collection ``scopes``."""

    def __init__(self, scopes: Any, rows: Any) -> None:
        self._scopes = scopes
        self._rows = rows
        self._known: set[str] = set()

    def heads(self, names: Sequence[str]) -> dict[str, int]:
        """The number of each scope's last complete write."""
        return {found["_id"]: found["head"] for found in self._scopes.find({"_id": {"$in": list(names)}})}

    def prepare(self, names: Sequence[str]) -> None:
        """Creates missing documents; call it outside of a transaction."""
        for name in set(names) - self._known:
            with suppress(DuplicateKeyError):  # another writer has created it
                self._scopes.update_one({"_id": name}, {"$setOnInsert": {"head": 0, "until": 0.0}}, upsert=True)
            self._known.add(name)

    def drop_unused(self, names: Sequence[str]) -> None:
        """Removes documents that were made for a refused write: they may name a user who was erased."""
        self._scopes.delete_many({"_id": {"$in": list(names)}, "head": 0, "until": 0.0})
        self._known.difference_update(names)

    def erase(self, root: str) -> None:
        """Removes the documents of all scopes whose first label is ``root``."""
        start = re.escape(pack_namespace((root,))[:-1])
        self._scopes.delete_many({"_id": {"$regex": rf"^{start}[,\]]"}})
        self._known.clear()

    @contextmanager
    def taken(self, names: Sequence[str], session: Any) -> Generator[dict[str, int]]:
        """Leases the scopes and yields their last numbers by name; what the caller changes them to become the heads.

        Raises StoreBusy if another writer keeps a lease, WriteUnknown if this one has run out.
        """
        writer = secrets.token_hex(8)
        heads: dict[str, int] = {}
        published: dict[str, int] = {}
        has_expired = False
        try:
            for name in sorted(names):  # the same order for all writers, so that they cannot deadlock
                deadline = time.monotonic() + _WAIT_S
                while True:
                    now = time.time()
                    lease = {"$set": {"writer": writer, "until": now + LEASE_S}}
                    free = {"_id": name, "until": {"$lt": now}}
                    if found := self._scopes.find_one_and_update(free, lease, session=session):
                        break
                    if not self._scopes.find_one({"_id": name}, session=session):
                        self._known.discard(name)
                        if session:  # `prepare` does not work in a transaction
                            raise StoreBusy("The scope was removed meanwhile; try again")
                        self.prepare([name])
                    if time.monotonic() > deadline:
                        raise StoreBusy("Another writer keeps this scope; try again later")
                    time.sleep(_PAUSE_S)
                published[name] = found["head"]
                # A writer that died may have left rows above the head.
                newest = self._rows.find({"scope": name}, {"seq": 1}, session=session).sort("seq", -1).limit(1)
                heads[name] = max(published[name], *(found["seq"] for found in newest), 0)
            yield heads
            published = heads
        finally:
            for name, head in published.items():
                ours, free = {"_id": name, "writer": writer}, {"$set": {"head": head, "until": 0.0}}
                has_expired |= not self._scopes.update_one(ours, free, session=session).matched_count
        if has_expired:
            raise WriteUnknown("Another writer has taken over because this one took too long; retry under the same id")
