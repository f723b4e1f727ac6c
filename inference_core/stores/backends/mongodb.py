"""MongoDB, experimental: tested against a simulation, not yet against a server.

Each row is a document. On a replica set a batch is one transaction; on a single server, which has none, a writer that
dies may leave a part of its batch.

Change feed: a writer leases the document of each scope, numbers its rows from the scope's head, writes them and then
advances the head. Readers read rows up to the head only, so no number at or below it can appear later. Rows that a dead
writer left above the head appear with the scope's next write.
"""

from __future__ import annotations

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
    StoreError,
    StoreUnavailable,
    WriteUnknown,
    without_quotes,
)
from inference_core.memory.namespaces import ERASED, Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import (
    LOST,
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
    check_schema,
    keys_of,
    namespace_of,
    near_micros,
    pack_namespace,
    scopes_made,
    to_micros,
)
from inference_core.stores.backends.rows import WriteSet, holding_most, tally

try:
    from bson import encode
    from bson.errors import BSONError
    from pymongo import MongoClient
    from pymongo.errors import PyMongoError, ServerSelectionTimeoutError
except ImportError as missing:
    raise MissingExtra("A MongoDB store", "mongodb") from missing

from inference_core.stores.backends.mongodb_documents import (
    Scopes,
    fields_of,
    id_of,
    inspected,
    is_alive,
    key_of,
    row_of,
    state_of,
    without_text,
)

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

    def discard(self, found: Sequence[Unreadable]) -> int:
        removed = 0
        with self._open():
            for damaged in found:
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
