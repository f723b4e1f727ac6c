"""MongoDB, experimental: tested against a simulation, not yet against a server.

Each row is a document. On a replica set a batch is one transaction; on a single server, which has none, a writer that
dies may leave a part of its batch.

Change feed: a writer leases the document of each scope, numbers its rows from the scope's head, writes them and then
advances the head. Readers read rows up to the head only, so no number at or below it can appear later. Rows that a dead
writer left above the head appear with the scope's next write.

Times are microseconds since 1970. A value is JSON text, because BSON has no large integers and forbids some names.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from inference_core.clock import Clock, SystemClock
from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    WriteUnknown,
    without_quotes,
)
from inference_core.memory.namespaces import ERASED, Namespace
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, Term
from inference_core.stores.backend import (
    LOST,
    UNREADABLE,
    Batch,
    Capabilities,
    Head,
    Key,
    Outcome,
    PageRequest,
    Remove,
    Row,
    RowState,
    Tally,
    UnembeddedRow,
    Unreadable,
    WrongType,
    check_schema,
    expiry_micros,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    keys_of,
    namespace_of,
    near_micros,
    pack_namespace,
    scopes_made,
    to_micros,
    unpack_namespace,
)
from inference_core.stores.backends.rows import WriteSet, holding_most, lost, tally

try:
    from bson import encode
    from bson.errors import BSONError
    from pymongo import MongoClient
    from pymongo.errors import DuplicateKeyError, PyMongoError, ServerSelectionTimeoutError
except ImportError as missing:
    raise MissingExtra("A MongoDB store", "mongodb") from missing

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


VERSION: Final = 1
_CONNECT_MS: Final = 5_000
_SILENCE_MS: Final = 30_000
"""A server that does not answer for so long is gone; to list all of a large database takes a while."""
_DATABASE: Final = "memory"
_VERSION: Final = "schema_version"
_INDEXES: Final = (
    [("scope", 1), ("seq", 1)],
    [("scope", 1), ("created", -1), ("key", 1)],
    [("scope", 1), ("kind", 1), ("created", -1), ("key", 1)],
    "root",
    "expires",
    "model",
)


class MongoBackend:
    """Serves the database named in ``url``, or "memory". ``client`` replaces the connection, for tests.

    Raises ConfigurationError if the server cannot be reached or refuses, UnsupportedSchema.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, client: Any = None) -> None:
        self.name = shown(url)
        self._clock = clock or SystemClock()
        self._closed = False
        try:
            with ExitStack() as opened:
                if is_ours := client is None:
                    limits: dict[str, Any] = {"serverSelectionTimeoutMS": _CONNECT_MS, "socketTimeoutMS": _SILENCE_MS}
                    client = MongoClient[Any](url, w="majority", journal=True, **limits)
                self._client: Any = opened.enter_context(closing(client))
                hello: dict[str, Any] = client.admin.command("hello") if is_ours else {}
                # A replica set or the router of a cluster has transactions, a single server none.
                self._has_transactions = "setName" in hello or hello.get("msg") == "isdbgrid"
                database = self._client.get_default_database(_DATABASE)
                self._rows, self._meta = database["rows"], database["meta"]
                self._scopes = Scopes(database["scopes"], self._rows)
                self._meta.update_one({"_id": _VERSION}, {"$setOnInsert": {"value": str(VERSION)}}, upsert=True)
                check_schema(int(self._meta.find_one({"_id": _VERSION})["value"]), VERSION)
                for index in _INDEXES:
                    self._rows.create_index(index)
                opened.pop_all()
        except (PyMongoError, ValueError) as error:  # its message may quote the URL, and so the password
            raise ConfigurationError(
                f"Cannot open the store at {self.name}: {type(error).__name__}. Is the server there, and the URL right?"
            ) from None
        self.capabilities = Capabilities(
            durable=True, atomic=self._has_transactions, compare_and_set=True, change_feed=True, single_writer=False
        )

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies the batches one after the other."""
        outcomes: list[Outcome] = []
        with self._open():
            for batch in batches:
                # Every write looks at fences: if it leased them, all writers would wait for each other.
                made = scopes_made([batch])
                namespaces = made | {
                    namespace for namespace, _ in keys_of([batch]) if namespace in made or namespace[0] != ERASED
                }
                names = sorted(map(pack_namespace, namespaces))
                try:
                    with self._open():
                        self._scopes.prepare(names)
                        if self._has_transactions:
                            with self._client.start_session() as session:
                                outcomes.append(session.with_transaction(partial(self._write, batch, names)))
                        else:
                            outcomes.append(self._write(batch, names, None))
                except StoreUnavailable as error:
                    is_unsent = isinstance(error.__cause__, ServerSelectionTimeoutError) or error.__cause__ is None
                    outcomes.append(error if is_unsent else WriteUnknown(f"{error}; retry it under the same id"))
                except StoreError as error:
                    with suppress(StoreUnavailable), self._open():  # batches before this one are stored
                        self._scopes.drop_unused(names)
                    outcomes.append(error)
        return outcomes

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        with self._open():
            states = self._states(keys, is_alive(self._now()), without_text())
        return [states[key].row(*key) if key in states else None for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        with self._open():
            found = self._rows.find({"_id": {"$in": [id_of(key) for key in keys]}}, {"tokens": 1})
            tokens = {fields["_id"]: fields.get("tokens") for fields in found}
        return [tokens.get(id_of(key)) for key in keys]

    def page(self, request: PageRequest) -> list[Row]:
        if not request.limit:
            return []
        conditions = [_in(request.scopes, request.kinds), is_alive(self._now())]
        if after := request.after:
            created, scope = to_micros(after.created_at), pack_namespace(after.namespace)
            same_age = [{"key": {"$gt": after.key}}, {"key": after.key, "scope": {"$gt": scope}}]
            behind = [{"created": {"$lt": created}}, *({"created": created, **one} for one in same_age)]
            conditions.append({"$or": behind})
        with self._open():
            found = self._rows.find({"$and": conditions}, without_text())
            found = found.sort([("created", -1), ("key", 1), ("scope", 1)]).skip(request.offset)
            # Rows that cannot be read are skipped, so more may be needed than the limit.
            return list(islice(filter(None, map(row_of, found.batch_size(request.limit))), request.limit))

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        with self._open():
            return self._rows.count_documents(_in(namespaces, kinds) | is_alive(self._now()))

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        with self._open():
            found = self._rows.find(_in(namespaces, None) | is_alive(self._now()), {"kind": 1, "created": 1})
            places = ((key_of(one), one) for one in found if type(one["kind"]) is str and type(one["created"]) is int)
            sound = ((key[0], one["kind"], near_micros(one["created"])) for key, one in places if key)
            return tally(sound)

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        of_root = {"root": prefix[0]} if prefix else {}
        with self._open():
            names = map(namespace_of, self._rows.distinct("scope", of_root | is_alive(self._now())))
            return sorted(name for name in names if name and name[: len(prefix)] == prefix)

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        names = [pack_namespace(namespace) for namespace in namespaces]
        with self._open():
            heads = self._scopes.heads(names)
        return [Head(heads.get(name, 0)) for name in names]

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        (head,) = self.heads([namespace])
        wanted = {"scope": pack_namespace(namespace), "seq": {"$gt": since, "$lte": head}}
        with self._open():
            for fields in self._rows.find(wanted, {"tokens": 0}).sort("seq", 1):
                if key := key_of(fields):
                    yield state_of(fields).change(key[1])

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        return holding_most(self.changes(namespace, since), words, limit)

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        wanted: dict[str, Any] = {"text": {"$ne": None}, "model": {"$ne": model}}
        if keys is not None:
            wanted["_id"] = {"$in": [id_of(key) for key in keys]}
        with self._open():
            found = ((key_of(fields), fields) for fields in self._rows.find(wanted, {"version": 1, "text": 1}))
            sound = ((key, one) for key, one in found if key and isinstance(one["text"], str))
            return [UnembeddedRow(*key, one["version"], one["text"]) for key, one in islice(sound, limit)]

    def expired(self, limit: int) -> list[Key]:
        with self._open():
            found = self._rows.find({"expires": {"$lte": self._now()}}, {"_id": 1}).limit(limit)
            return [key for key in map(key_of, found) if key]

    def get_meta(self, name: str) -> str | None:
        with self._open():
            found = self._meta.find_one({"_id": name})
        return found and found["value"]

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        with self._open():
            self._meta.update_one(
                {"_id": name}, {"$setOnInsert" if is_first else "$set": {"value": value}}, upsert=True
            )

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        of_root = {} if root is None else {"root": root}
        with self._open():
            yield from map(inspected, self._rows.find({"value": {"$ne": None}} | of_root, {"tokens": 0}))

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        removed = 0
        with self._open():
            for damaged in unreadable:
                if damaged.namespace is None:
                    removed += self._rows.delete_one(damaged.place).deleted_count
                elif self._rows.find_one(damaged.place, {"_id": 1}):  # else it has changed since
                    (outcome,) = self.apply([[Remove(namespace=damaged.namespace, key=damaged.key)]])
                    removed += isinstance(outcome, list)
        return removed

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        with self._open():
            self._rows.delete_many({"$or": [{"root": root}, {"_id": {"$in": [id_of(key) for key in also]}}]})
            self._scopes.erase(root)

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """Does nothing: freeing space is up to the server."""
        del fully
        return ["freed space and the operations log of MongoDB, until they are used again"]

    def files(self) -> list[Path]:
        """None: the server's files lie elsewhere."""
        return []

    def forget(self, user: str) -> None:
        """Does nothing: no reader of changes is remembered."""

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _now(self) -> int:
        return to_micros(self._clock.now())

    @contextmanager
    def _open(self) -> Generator[None]:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        try:
            yield
        except PyMongoError as error:
            raise StoreUnavailable(f"{self.name}: {without_quotes(error)}") from error
        except (BSONError, UnicodeEncodeError, OverflowError) as error:
            raise StoreError(f"MongoDB cannot hold this: {without_quotes(error)}") from error

    def _states(
        self, keys: Iterable[Key], condition: dict[str, Any], leave_out: dict[str, int] | None, session: Any = None
    ) -> dict[Key, RowState]:
        wanted = {"_id": {"$in": [id_of(key) for key in keys]}}
        found = self._rows.find(wanted | condition, leave_out, session=session)
        return {key: state_of(one) for one in found if (key := key_of(one))}

    def _write(self, batch: Batch, names: Sequence[str], session: Any) -> list[int]:
        with self._scopes.taken(names, session) as heads:
            old = self._states(keys_of([batch]), {}, None, session)
            writes = WriteSet(old.get, lambda namespace: heads[pack_namespace(namespace)], self._clock.now())
            versions = writes.apply(batch)
            documents = {key: fields_of(key, state) for key, state in writes.states.items()}
            for fields in documents.values():
                encode(fields)  # refuses what cannot be stored before anything is written
            if added := [fields for key, fields in documents.items() if key not in old]:
                self._rows.insert_many(added, session=session)
            for key in documents.keys() & old.keys():
                known = {} if old[key].value == LOST else {"version": old[key].version, "seq": old[key].seq}
                as_read = {"_id": id_of(key)} | known
                if not self._rows.replace_one(as_read, documents[key], session=session).matched_count:
                    raise WriteUnknown(
                        "Another writer changed the same row meanwhile; read it and retry under the same id"
                    )
            heads |= {pack_namespace(namespace): head for namespace, head in writes.heads.items()}
        return versions


def shown(url: str) -> str:
    """``url`` without user, password and parameters."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _in(namespaces: Sequence[Namespace], kinds: frozenset[str] | None) -> dict[str, Any]:
    of_kind = {} if kinds is None else {"kind": {"$in": sorted(kinds)}}
    return {"scope": {"$in": [pack_namespace(namespace) for namespace in namespaces]}, **of_kind}
