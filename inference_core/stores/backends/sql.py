"""What the SQL databases have in common: the columns of a row, in the order in which they are read, and questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from inference_core.clock import Clock, SystemClock
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, Term
from inference_core.stores.backend import Key, Pending, Put, Row, Tally, Unreadable
from inference_core.stores.backends.rows import MAX_WORDS, RowState, forms_of
from inference_core.stores.codec import (
    MAX_MICROS,
    MAX_SECONDS,
    MIN_MICROS,
    MIN_SECONDS,
    UNREADABLE,
    Cursor,
    WrongType,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    micros_of,
    near_micros,
    pack_namespace,
    to_micros,
    unpack_namespace,
    unpack_value,
)

T = TypeVar("T")
ROW: Final = "s.namespace, r.key, r.value, r.version, r.seq, r.created, r.updated, r.expires, r.ttl"
CHANGE: Final = (
    "r.seq, r.key, r.kind, r.created, r.value IS NOT NULL, r.text, r.terms, r.analyzer, r.session, r.by_assistant, "
    "r.happened, r.importance"
)
"""What is followed by the model and the vector, or by an empty model and NULL."""
KEY: Final = 1
SEQ: Final = 4
CREATED: Final = 5
"""Where these stand in ``ROW``."""
ALIVE: Final = "r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > :now)"
ROWS: Final = "memory_rows r JOIN memory_scopes s ON s.id = r.scope"
WRITTEN: Final = (
    "scope, key, seq, version, created, updated, kind, value, text, terms, analyzer, session, by_assistant, happened, "
    "importance, model, vector, expires, ttl"
)
"""What a write stores: the address, the numbers, then `columns_of` it."""
REPLACED: Final = ", ".join(f"{name} = excluded.{name}" for name in WRITTEN.split(", ")[2:])
CLEARED: Final = (
    "kind = '', value = NULL, text = NULL, terms = NULL, analyzer = NULL, session = '', by_assistant = FALSE, "
    "happened = NULL, importance = 0.5, model = '', vector = NULL, expires = NULL, ttl = NULL"
)
"""What a delete leaves of a row: its address, numbers and times."""
_BYTES: Final = (bytes, type(None))
_ROW_COLUMNS: Final = ROW.count(",") + 1


class SqlBackend(ABC):
    """The questions that all SQL databases answer alike, with parameters as SQLite names them: ``:now``."""

    contains: ClassVar[str]
    """The function that tells where a text holds another one."""
    packed_tokens: ClassVar[str]
    """The expression that gives the packed token vectors of a row."""
    any_kind: ClassVar[str] = "TRUE"
    """A condition that says nothing, by which a database takes its index by kind."""
    most_values: ClassVar[int]
    """So many scopes are asked for by one statement."""
    page_size: ClassVar[int] = 2_000
    """So many changes are read by one statement."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()

    @abstractmethod
    def _select(self, query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """All rows that ``query`` finds."""

    @abstractmethod
    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        """The condition that ``column`` is one of ``values``, and its parameters."""

    @abstractmethod
    def _of_keys(self, selection: str, keys: Sequence[Key], condition: str) -> Iterable[tuple[Any, ...]]:
        """The columns of ``selection`` of those rows of ``keys`` for which ``condition`` holds."""

    @abstractmethod
    def _root(self, label: str) -> str:
        """The first label of a namespace as it is stored beside it."""

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        rows = map(row_of, self._of_keys(ROW, keys, ALIVE))
        found = {(row.namespace, row.key): row for row in rows if row}
        return [found.get(key) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        rows = self._of_keys(f"s.namespace, r.key, {self.packed_tokens}", keys, "TRUE")
        found = {(unpack_namespace(name), key): tokens for name, key, tokens in rows}
        return [found.get(key) for key in keys]

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        condition = f"{ALIVE} AND {self.any_kind} GROUP BY 1, 2"
        found = self._of_scopes(f"s.namespace, r.kind, count(*), min(r.created) FROM {ROWS}", scopes, condition)
        return [
            Tally(unpack_namespace(name), kind, count, near_micros(oldest))
            for name, kind, count, oldest in found
            if type(kind) is str and type(oldest) is int
        ]

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        query = (
            "SELECT s.namespace FROM memory_scopes s "
            f"WHERE EXISTS (SELECT 1 FROM memory_rows r WHERE r.scope = s.id AND {ALIVE})"
        )
        given: dict[str, object] = {"now": self._now()}
        if prefix:
            query, given = f"{query} AND s.root = :root", given | {"root": self._root(prefix[0])}
        names = (namespace_of(name) for (name,) in self._select(query, given))
        return sorted(name for name in names if name and name[: len(prefix)] == prefix)

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``, read by pages.

        A key that is written while it is read may come twice, the newer state last.
        """
        query = (
            f"SELECT {CHANGE}, r.model, r.vector FROM memory_rows r WHERE r.scope = "
            "(SELECT id FROM memory_scopes WHERE namespace = :name) AND r.seq > :since ORDER BY r.seq LIMIT :size"
        )
        name, last = pack_namespace(scope), since
        while type(last) is int:  # numbers that are damaged, as texts, come last, and nothing is known by them
            page = self._select(query, {"name": name, "since": last, "size": self.page_size})
            yield from filter(None, map(change_of, page))
            last = page[-1][0] if len(page) == self.page_size else None

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``, counted by the database."""
        given: dict[str, object] = {"name": pack_namespace(scope), "limit": limit}
        counted: list[str] = []
        for at, word in enumerate(words[:MAX_WORDS]):
            names = {f"word{at}_{of}": f" {form} " for of, form in enumerate(forms_of(word))}
            is_held = " OR ".join(f"{self.contains}(words, :{name}) > 0" for name in names)
            counted.append(f"CASE WHEN {is_held} THEN 1 ELSE 0 END")
            given |= names
        if not counted:
            return []
        query = (
            f"SELECT * FROM (SELECT *, {' + '.join(counted)} AS held FROM (SELECT {CHANGE}, '', NULL, "
            f"' ' || r.terms || ' ' AS words FROM {ROWS} WHERE s.namespace = :name AND r.text IS NOT NULL) spaced"
            ") counted WHERE held > 0 ORDER BY held DESC, seq DESC LIMIT :limit"
        )
        return list(filter(None, (change_of(found[:-2]) for found in self._select(query, given))))

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        query = (
            f"SELECT s.namespace, r.key, r.version, r.text FROM {ROWS} "
            "WHERE r.text IS NOT NULL AND (r.model < :model OR r.model > :model)"
        )
        return self._first(limit, pending_of, query, {"model": model})

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        query = f"SELECT s.namespace, r.key FROM {ROWS} WHERE r.expires <= :now"
        return self._first(limit, _address_of, query, {"now": self._now()})

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        found = self._select("SELECT value FROM memory_meta WHERE name = :name", {"name": name})
        return found[0][0] if found else None

    def forget(self, user: str) -> None:  # noqa: B027 - there is nothing to do for any of them
        """Nothing is remembered of who follows changes."""

    def _now(self) -> int:
        return to_micros(self._clock.now())

    def _of_kind(self, kinds: frozenset[str] | None) -> tuple[str, dict[str, object]]:
        """The condition that a row is of one of ``kinds``, and its parameters."""
        return (self.any_kind, {}) if kinds is None else self._among("r.kind", list(kinds))

    def _of_scopes(
        self, selection: str, scopes: Sequence[Namespace], condition: str, given: Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        """What a query finds in ``scopes``, so many at a time as a statement takes."""
        packed = [pack_namespace(scope) for scope in dict.fromkeys(scopes)]
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(packed), self.most_values):
            among, names = self._among("s.namespace", packed[start : start + self.most_values])
            query = f"SELECT {selection} WHERE {among} AND {condition}"
            found += self._select(query, {"now": self._now(), **(given or {}), **names})
        return found

    def _first(
        self, limit: int, of: Callable[[tuple[Any, ...]], T | None], query: str, given: Mapping[str, object]
    ) -> list[T]:
        """The first ``limit`` of what ``query`` finds that ``of`` can read."""
        size = limit
        while True:
            found = self._select(f"{query} LIMIT :size", {**given, "size": size})
            sound = [one for one in map(of, found) if one is not None][:limit]
            if len(sound) == limit or len(found) < size:
                return sound
            size *= 2  # others in the place of those that cannot be read


class Undecodable(NamedTuple):
    """A text that is not UTF-8, in place of the text."""

    raw: bytes


def row_of(found: tuple[Any, ...], *, strictly: bool = False) -> Row | None:
    """The row whose columns are ``ROW``; None if it cannot be read. ``strictly``: raises one of ``UNREADABLE`` then."""
    try:
        namespace, key, value, version, seq, created, updated, expires, ttl = found
        # SQLite stores whatever comes in whatever column, so that a damaged row may have a number for a text.
        if type(key) is not str or not type(version) is type(seq) is int:
            raise WrongType
        return Row(
            namespace=unpack_namespace(namespace),
            key=key,
            value=unpack_value(value),
            version=version,
            seq=seq,
            created_at=from_micros(created),
            updated_at=from_micros(updated),
            expiry=expiry_of(expires, ttl),
        )
    except UNREADABLE:
        if strictly:
            raise
        return None


def columns_of(written: Put | RowState, created: int) -> tuple[Any, ...]:
    """The columns ``WRITTEN`` behind the numbers, of what was ``created`` then."""
    expiry = (to_micros(written.expiry.at), micros_of(written.expiry.ttl)) if written.expiry else (None, None)
    of_text: tuple[Any, ...] = (None, None, None, *DocumentMetadata(), "", None)
    if written.document is not None:
        text, terms, analyzer, situation, model, vector, _ = written.document
        of_text = (text, terms, analyzer, *situation, model, vector)
    return (created, to_micros(written.updated_at), written.kind, written.value, *of_text, *expiry)


def cursor_of(found: tuple[Any, ...]) -> Cursor:
    """The cursor behind the row whose columns are ``ROW``, of which namespace, key and creation can be read."""
    return Cursor(from_micros(found[CREATED]), found[KEY], unpack_namespace(found[0]))


def change_of(found: tuple[Any, ...], *, strictly: bool = False) -> Change | None:
    """The change whose columns are ``CHANGE``, model and vector: of a row that cannot be read, as of a deleted one.

    None if not even its address can be read. ``strictly``: raises one of ``UNREADABLE`` instead of either.
    """
    seq, key, kind, created, is_there, text, terms, analyzer, session, reply, happened, weight, model, vector = found
    try:
        if not type(key) is type(kind) is type(session) is str or type(seq) is not int:
            raise WrongType
        if not MIN_MICROS <= created <= MAX_MICROS:
            raise OverflowError
        if text is None:
            return Change(seq, key, kind, created / 1e6, None, bool(is_there))
        if not type(text) is type(terms) is type(analyzer) is type(model) is str or type(vector) not in _BYTES:
            raise WrongType
        if happened is not None and not MIN_SECONDS <= happened <= MAX_SECONDS:  # also if it is NaN
            raise OverflowError
        situation = DocumentMetadata(session, bool(reply), happened, weight + 0.0)
        return Change(seq, key, kind, created / 1e6, Document(text, terms, analyzer, situation, model, vector))
    except UNREADABLE:
        if strictly:
            raise
        return Change(seq, key, "", 0.0, None) if type(seq) is int and type(key) is str else None


def pending_of(found: tuple[Any, ...]) -> Pending | None:
    """The text that waits for its vector, of the columns namespace, key, version and text; None if it is damaged."""
    namespace = namespace_of(found[0])
    _, key, version, text = found
    is_sound = namespace and (type(key), type(version), type(text)) == (str, int, str)
    return Pending(namespace, key, version, text) if namespace and is_sound else None


def _address_of(found: tuple[Any, ...]) -> Key | None:
    namespace, key = namespace_of(found[0]), found[1]
    return (namespace, key) if namespace and type(key) is str else None


def inspected(root: object, found: Sequence[Any], place: Any) -> Row | Unreadable:
    """The row whose columns are ``ROW``, ``CHANGE``, model and vector, if all of them can be read.

    ``root`` is the label of its scope; ``place`` is how its backend finds it again.
    """
    of_row, of_change = tuple(found[:_ROW_COLUMNS]), tuple(found[_ROW_COLUMNS:])
    namespace, key = namespace_of(of_row[0]), of_row[1]
    label = root if type(root) is str else namespace[0] if namespace else None
    row = None
    try:
        row = row_of(of_row, strictly=True)
        change = change_of(of_change, strictly=True)
        vector = change.document.vector if change and change.document else None
        if row and (vector is None or is_vector(vector)):
            return row
        reason = "its vector cannot be unpacked"
    except UNREADABLE as error:
        is_text = any(type(column) is Undecodable for column in found)
        reason = fault_of(UnicodeError() if is_text else error)
    if isinstance(key, Undecodable):
        key = key.raw.decode(errors="backslashreplace")
    shown = key if type(key) is str else f"({type(key).__name__})"
    is_read = row is not None
    return Unreadable(root=label, namespace=namespace, key=shown, reason=reason, only_index=is_read, place=place)


def namespace_of(packed: object) -> Namespace | None:
    """The namespace of a packed one; None if it cannot be read."""
    try:
        return unpack_namespace(packed) if type(packed) is str else None
    except UNREADABLE:
        return None
