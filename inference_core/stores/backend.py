"""Backend: the one protocol that every database has to serve, and the rows that cross it.

The contract suite, ``tests/contract/test_backend_contract.py``, tests all of it on every database.
``docs/extending.md`` says how to add one; `factory.py` is where its scheme goes.
The end of the module packs values, namespaces and instants as databases hold them.
"""

from __future__ import annotations

import copy
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar, cast

from inference_core.clock import aware
from inference_core.errors import InvalidInput, StoreUnavailable, UnsupportedSchema, VersionConflict
from inference_core.memory.namespaces import GLOBAL, ROOTS, Namespace
from inference_core.memory.secrets import quoted
from inference_core.memory.text import is_text
from inference_core.retrieval.documents import NO_EPOCH, Change, Document, Epoch, Term

MIN_MICROS: Final = -62_135_596_800_000_000
MAX_MICROS: Final = 253_402_300_799_999_999
MIN_SECONDS: Final = MIN_MICROS / 1e6
MAX_SECONDS: Final = MAX_MICROS / 1e6
"""The first and the last instant of the calendar, as `to_micros` and in seconds since 1970."""
UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What unpacking damaged data raises. The message may quote the data: see `fault_of`."""
ENCRYPTED: Final = b"\x00ics1"
"""The prefix of each field that EncryptedBackend encrypts; packed vectors begin with a number of passages, not 0."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970, exact."""
    return (aware(moment) - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant of ``to_micros``."""
    return _EPOCH + timedelta(microseconds=micros)


def near_micros(micros: int) -> datetime:
    """The instant of ``to_micros``; a damaged one outside of the calendar becomes its nearer end."""
    return from_micros(min(max(micros, MIN_MICROS), MAX_MICROS))


def expiry_micros(expiry: Expiry | None) -> tuple[int | None, int | None]:
    """When a row ends, as `to_micros`, and its time to live in microseconds; None twice if it does not expire."""
    return (to_micros(expiry.at), expiry.ttl // _MICROSECOND) if expiry else (None, None)


def expiry_of(at: int | None, ttl: int | None) -> Expiry | None:
    """The inverse of `expiry_micros`."""
    return None if at is None or ttl is None else Expiry(from_micros(at), timedelta(microseconds=ttl))


@lru_cache(maxsize=4_096)
def pack_namespace(namespace: Namespace) -> str:
    """A namespace as text; different namespaces give different texts."""
    return _COMPACT.encode(namespace)


BUCKETS: Final = 1_024
"""A database that is split over servers keeps the rows of each bucket together. This number never changes."""
_BESIDE: Final = "@"
"""How the last label begins that names a bucket."""


def bucket_of(namespace: Namespace) -> int:
    """The bucket of the rows of ``namespace``: that of its first label, which is its owner's.

    What belongs to nobody lies where `beside` has put it, or by its first two labels. Databases are laid out by this:
    the first 8 bytes of the SHA-256 of the labels, as a big-endian number, modulo 1,024.
    """
    if namespace[0] not in ROOTS:
        return _bucket(namespace[0])
    sign, number = namespace[-1][:1], namespace[-1][1:]
    if sign == _BESIDE and number.isdecimal():
        return int(number) % BUCKETS
    return _bucket("/".join(namespace[: 1 if namespace[0] == GLOBAL else 2]))


@lru_cache(maxsize=4_096)
def _bucket(label: str) -> int:
    return int.from_bytes(sha256(label.encode(errors="surrogatepass")).digest()[:8]) % BUCKETS


def beside(backend: Backend, namespace: Namespace, owner: str) -> Namespace:
    """``namespace``, which belongs to nobody, in the place where one batch can write to it and to rows of ``owner``.

    ``owner`` is a first label. Only a database that is split over servers has such places.
    """
    return (*namespace, f"{_BESIDE}{_bucket(owner)}") if backend.capabilities.split else namespace


def apart(backend: Backend, writes: Iterable[AnyWrite]) -> Iterable[list[AnyWrite]]:
    """``writes``, which need not be applied together, in batches that ``backend`` can apply."""
    found: dict[str, list[AnyWrite]] = {}
    for write in writes:
        found.setdefault(part_of(backend, write), []).append(write)
    return found.values()


def part_of(backend: Backend, write: Write) -> str:
    """Names the rows that ``backend`` can write in one batch with ``write``."""
    return write.namespace[0] if backend.capabilities.split else ""


def waits_for_disk(batches: Iterable[Batch]) -> bool:
    """Whether the transaction of ``batches`` has to survive a power loss."""
    return any(
        write.waits_for_disk if isinstance(write, Put) else not isinstance(write, (Check, WriteRule))
        for batch in batches
        for write in batch
    )


def by_namespace(keys: Iterable[Key]) -> dict[Namespace, list[str]]:
    """The distinct ``keys`` of each namespace, in their order."""
    found: dict[Namespace, dict[str, None]] = {}
    for namespace, key in keys:
        found.setdefault(namespace, {})[key] = None
    return {namespace: list(names) for namespace, names in found.items()}


@lru_cache(maxsize=4_096)
def unpack_namespace(text: str) -> Namespace:
    """The namespace of ``pack_namespace``. Raises one of ``UNREADABLE``."""
    labels = cast("list[object]", json.loads(text))
    if type(labels) is not list or not labels or not all(type(label) is str for label in labels):
        raise WrongType
    return tuple(map(str, labels))


def namespace_of(packed: object) -> Namespace | None:
    """The namespace that was packed; None if it cannot be parsed."""
    try:
        return unpack_namespace(packed) if type(packed) is str else None
    except UNREADABLE:
        return None


def unpack_value(text: str) -> dict[str, Any]:
    """A value that was stored as JSON. Raises one of ``UNREADABLE``."""
    value: dict[str, Any] = json.loads(text)
    if type(value) is not dict:
        raise WrongType
    return value


def is_vector(packed: bytes) -> bool:
    """Whether ``packed`` can be unpacked as the vectors of a text, or is encrypted."""
    if packed.startswith(ENCRYPTED):
        return True
    from inference_core.retrieval.vectors import is_packed  # noqa: PLC0415 - numpy is slow to import

    return is_packed(packed)


def check_schema(found: int, known: int) -> None:
    """Raises UnsupportedSchema if a store has a later schema than the one that this package knows."""
    if found > known:
        raise UnsupportedSchema(
            f"This store has schema version {found}; this package knows up to {known}. Update the package"
        )


class WrongType(TypeError):
    """A stored value does not have the type that belongs in its place."""


def fault_of(error: Exception) -> str:
    """Why stored data could not be unpacked, in words of our own: the message of ``error`` may quote the data."""
    match error:
        case UnicodeError():
            return "a text is not UTF-8"
        case json.JSONDecodeError():
            return "a value is not JSON"
        case OverflowError():
            return "a time lies outside of the calendar"
        case RecursionError():
            return "a value is nested too deeply"
        case TypeError() | LookupError() | AttributeError():
            return "a value has a wrong type"
        case _:
            return "a value cannot be unpacked"


# Pages of a list of rows: the request for a page, and the cursor behind which the list goes on.

_MAX_LENGTH: Final = 16_384
Place = tuple[int, str, str]
"""What lists are sorted by: the newest creation first, ties by key, then by the packed namespace."""


class Cursor(NamedTuple):
    """The row at which a page ended; the list goes on behind it whatever was added or removed meanwhile."""

    created_at: datetime
    key: str
    namespace: Namespace

    @classmethod
    def of(cls, row: Row) -> Cursor:
        """The cursor for the rows behind ``row``."""
        return cls(row.created_at, row.key, row.namespace)

    @property
    def place(self) -> Place:
        """Where it stands in a list."""
        return -to_micros(self.created_at), self.key, pack_namespace(self.namespace)

    def encode(self) -> str:
        """The cursor as text for a URL, which only `decode` needs to understand."""
        micros = to_micros(self.created_at)
        return urlsafe_b64encode(json.dumps([micros, self.key, *self.namespace]).encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """The cursor of `encode`. Raises InvalidInput for anything else."""
        with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            micros, key, *namespace = json.loads(urlsafe_b64decode(text[:_MAX_LENGTH] + "=" * (-len(text) % 4)))
            if type(micros) is int and namespace and all(map(is_text, [key, *namespace])):
                return cls(from_micros(micros), key, tuple(namespace))
        raise InvalidInput(f"Not the cursor of a page: {quoted(text)}")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which rows a list wants: of exactly ``scopes`` (and of ``kinds``) behind ``after``, the newest creation first.

    ``offset`` skips rows, for a list that is read in one go.
    """

    scopes: Sequence[Namespace]
    _: KW_ONLY
    kinds: frozenset[str] | None = None
    limit: int
    after: Cursor | None = None
    offset: int = 0


def place_of(row: Row) -> Place:
    """Where ``row`` stands in a list."""
    return Cursor.of(row).place


EXTRA: Final = "_inference_core"
"""The key of a value in another library's store that holds the version, the indexed text and the vector."""
EMBEDDING_META: Final = "embedding"
"""The setting of a store that names the model of its vectors."""
CONTENT_KEY_META: Final = "content_key"
"""The setting of a store with the key for names that are derived from contents."""
MAX_VALUE_BYTES: Final = 64 * 1024 * 1024
"""The largest value of an item. Memories have a limit of their own, `MAX_CONTENT_BYTES`."""
MAX_KEY_LENGTH: Final = 1_024
MAX_KIND_LENGTH: Final = 64
Key = tuple[Namespace, str]
"""The exact address of a row."""
LOST: Final = ""
"""The value of a row that is there and cannot be read."""


class Head(int):
    """The sequence number of a scope's last write, and the ``epoch`` of the database that it was read from."""

    epoch: Epoch

    def __new__(cls, seq: int, epoch: Epoch = NO_EPOCH) -> Self:
        """The number ``seq``."""
        head = super().__new__(cls, seq)
        head.epoch = epoch
        return head


class Expiry(NamedTuple):
    """When a row ends, ``ttl`` after it was last put or touched; from ``at`` on it is not there any more."""

    at: datetime
    ttl: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stored value with what the store knows about it.

    ``version`` grows by one with each put of the key, also across a delete. ``seq`` is the number, within the scope, of
    the row's last write, including a SetVector but not a Touch; 0 where the store numbers no writes. Instants are
    aware, in UTC. ``epoch`` is that of the database when `Backend.get` read the row; other methods do not give it.
    """

    namespace: Namespace
    key: str
    value: dict[str, Any]
    version: int
    seq: int
    created_at: datetime
    updated_at: datetime
    expiry: Expiry | None = None
    epoch: Epoch = field(default=NO_EPOCH, compare=False, repr=False)
    parsed: dict[type, Any] = field(default_factory=dict[type, Any], compare=False, repr=False)
    """Caches what the value is parsed into, by its class: rows stay in memory, so that each is parsed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Stores ``value``, a JSON object as text, under a key, replacing what was there.

    ``kind`` is a label that recall can filter by before it ranks. ``document`` None means: not found by a query.
    ``created_at`` is kept from the first put unless it is given. ``expected`` is the version that must be there
    (0: nothing), None any. ``above``: the new version is greater than this, for a row that takes another one's place.
    ``is_new``: the key is a fresh random one, so the backend may insert without reading. ``waits_for_disk`` False: a
    power loss may undo it, but no later write without it; SQLite and PostgreSQL then commit sooner.
    """

    namespace: Namespace
    key: str
    value: str
    document: Document | None = None
    kind: str = ""
    created_at: datetime | None = None
    updated_at: datetime
    expected: int | None = None
    above: int = 0
    expiry: Expiry | None = None
    is_new: bool = False
    waits_for_disk: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Removes a key's value, document and vector; nothing happens if it is not there, unless ``expected`` is given."""

    namespace: Namespace
    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVector:
    """Adds vectors to a text that has none of ``model`` yet; skipped if the row has changed since ``version``.

    An expired row takes them too, so that it is not pending forever.
    """

    namespace: Namespace
    key: str
    version: int
    model: str
    vector: bytes
    tokens: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Stores the same value and document in another form; skipped if the row has changed since ``version``.

    The version and the times stay, so that readers see no change.
    """

    namespace: Namespace
    key: str
    version: int
    value: str
    document: Document | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """Moves the end of a row that has an expiry to ``at``; skipped if the row has changed since ``version``."""

    namespace: Namespace
    key: str
    version: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Removes a row as a Remove does, but only if it has expired; ``is_strict``: else refuses the batch."""

    namespace: Namespace
    key: str
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Changes nothing, but refuses the batch unless a row is at version ``expected`` (0: nothing is there)."""

    namespace: Namespace
    key: str
    expected: int


class Outdated(VersionConflict):
    """What ``rule`` had read when its batch was sent has changed since: see `WriteRule.renew`."""

    def __init__(self, rule: WriteRule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class WriteRule:
    """A condition that a batch has to meet, checked in its transaction. A rule follows the writes that it is about.

    ``reads`` are the rows that the rule looks at besides those of the batch, ``makes`` the namespaces in which it may
    put rows that are not there yet. Both are known before the transaction begins, as their scopes are locked with the
    others. `check` sees no other rows, so a rule about a number of rows keeps a count in a row of its own, as quotas
    do. `check` runs while the scopes are locked, so work that takes long and depends on the batch alone is done before.
    """

    reads: Sequence[Key] = ()
    makes: Sequence[Namespace] = ()

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """Returns further writes for this batch, which changes rows from ``before`` to ``after``; raises to refuse it.

        ``before`` has all stored rows of the batch and of ``reads``, expired and deleted ones too; ``after`` has the
        rows that change. `check` may be called again for the same batch, if a writer of another process was faster.
        """
        raise NotImplementedError

    def renew(self, error: Exception) -> bool:
        """Whether to send the batch, which was refused with ``error``, again. Reads what was outdated; blocks.

        Raises StoreError to refuse the batch with that error instead.
        """
        del error
        return False

    def landed(self, *, is_sure: bool) -> None:
        """Called once the batch is stored; without ``is_sure``, it may be stored or not."""


AnyWrite = TypeVar("AnyWrite", bound="Write")
Write = Put | Remove | SetVector | Rewrite | Touch | Expire | Check
Batch = Sequence[Write | WriteRule]
"""Writes, and behind them the rules that they have to meet."""
Outcome = list[int] | Exception
"""The outcome of one batch: the version after each write (0: no row), or the error that kept all from being applied."""


def keys_of(batches: Iterable[Batch]) -> dict[Key, None]:
    """The rows that ``batches`` write or look at, in their order."""
    return dict.fromkeys(chain.from_iterable(map(keys_in, batches)))


def keys_in(batch: Batch) -> Iterator[Key]:
    """The keys of the rows that ``batch`` writes or looks at, in its order, some more than once."""
    for write in batch:
        if isinstance(write, WriteRule):
            yield from write.reads
        else:
            yield write.namespace, write.key


def scopes_made(batches: Iterable[Batch]) -> set[Namespace]:
    """The namespaces in which ``batches`` may put rows."""
    made: set[Namespace] = set()
    for batch in batches:
        for write in batch:
            if isinstance(write, WriteRule):
                made.update(write.makes)
            elif isinstance(write, Put):
                made.add(write.namespace)
    return made


def answered(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """``outcomes``, whose errors each concern one batch. Raises StoreUnavailable if every batch failed with it."""
    kinds = {type(one) for one in outcomes}
    if outcomes and len(kinds) == 1 and isinstance(outcomes[0], StoreUnavailable):
        raise outcomes[0]
    return list(outcomes)


@dataclass(frozen=True, slots=True)
class UnembeddedRow:
    """A row whose text waits for its vector."""

    namespace: Namespace
    key: str
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class RowState:
    """What is stored under a key. After a delete ``value`` is None, and ``version`` and ``seq`` are the delete's."""

    seq: int
    version: int
    kind: str
    created_at: datetime
    updated_at: datetime
    value: str | None
    document: Document | None = None
    expiry: Expiry | None = None

    def is_alive(self, now: datetime) -> bool:
        """Whether there is a value that has not expired."""
        return self.value is not None and not self.is_expired(now)

    def is_expired(self, now: datetime) -> bool:
        """Whether its expiry lies at or before ``now``."""
        return self.expiry is not None and self.expiry.at <= now

    def deleted(self, seq: int) -> RowState:
        """The state after a delete with the number ``seq``."""
        return replace(self, seq=seq, version=self.version + 1, kind="", value=None, document=None, expiry=None)

    def row(self, namespace: Namespace, key: str, epoch: Epoch = NO_EPOCH) -> Row | None:
        """The row, or None if it was deleted or cannot be read."""
        try:
            return Row(
                namespace=namespace,
                key=key,
                value=unpack_value(self.value or LOST),
                version=self.version,
                seq=self.seq,
                created_at=self.created_at,
                updated_at=self.updated_at,
                expiry=self.expiry,
                epoch=epoch,
            )
        except UNREADABLE:
            return None

    def change(self, key: str, epoch: Epoch = NO_EPOCH) -> Change:
        """The change that an index reads."""
        document = self.document and self.document._replace(tokens=None)
        return Change(self.seq, key, self.kind, self.created_at.timestamp(), document, bool(self.value), epoch)

    def pending(self, namespace: Namespace, key: str, model: str) -> UnembeddedRow | None:
        """The text, if it waits for a vector of ``model``."""
        if self.document is None or self.document.model == model:
            return None
        return UnembeddedRow(namespace, key, self.version, self.document.text)


States = Mapping[Key, RowState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A stored row that cannot be read, and why; none of its content is here, so this may be shown and logged.

    ``root`` is the first label of its namespace, the user's; it and ``namespace`` are None if they cannot be read
    either, and ``key`` is then shown with escapes. ``only_index``: the row itself can be read, and what indexes know of
    it cannot. ``place`` is how its backend finds it again.
    """

    root: str | None
    namespace: Namespace | None
    key: str
    reason: str
    only_index: bool = False
    place: Any


class Tally(NamedTuple):
    """How many rows a namespace has of a kind, and when the first of them was created."""

    namespace: Namespace
    kind: str
    rows: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a database promises.

    ``durable``: what `apply` has written is on disk when it returns, or soon if the store was opened so. ``atomic``: a
    batch is applied as a whole or not at all. ``compare_and_set``: expected versions are checked against all other
    writers, those of other processes included. ``change_feed``: writes are numbered, so that `changes` gives what is
    new; without it, a search reads the whole scope again, and expired rows stay until a caller removes them.
    ``single_writer``: waiting writes are joined into one transaction by one thread. ``writable`` False: it was opened
    for reading alone, and every write raises ReadOnlyStore. ``split``: the rows of different owners may lie on
    different servers, so a batch is of one owner and what lies `beside` its rows; any other raises SeveralOwners.
    """

    durable: bool
    atomic: bool
    compare_and_set: bool
    change_feed: bool
    single_writer: bool
    writable: bool = True
    split: bool = False


class Backend(Protocol):
    """Rows of exact scopes. Methods block, may be called from any thread, and raise StoreError.

    A row that cannot be read is left out by everything but `count`, `tally` and `inspect`; it can be replaced and
    deleted. An expired row is not there for `get`, `page`, `count`, `tally`, `namespaces` and expected versions;
    indexes keep it until an Expire removes it.
    """

    @property
    def name(self) -> str:
        """Where the data is, without secrets."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this database promises."""
        ...

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies each batch as a whole or not at all, all of them durable when this returns.

        A rule in a batch is checked with the rows as they are in the transaction, behind the writes before it; what it
        adds is part of the batch. Its own place in the outcome is 0.
        """
        ...

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key, None where there is none."""
        ...

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key's text, None where there are none."""
        ...

    def page(self, request: PageRequest) -> list[Row]:
        """The rows that ``request`` asks for, in its order; ties by key, then by the packed namespace.

        A page with fewer rows than the limit is the last. With each page's last row as the next one's cursor, every row
        that is not written meanwhile comes exactly once.
        """
        ...

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``namespaces`` hold (of ``kinds``)."""
        ...

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``namespaces`` hold, by namespace and kind; in no order."""
        ...

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with the labels of ``prefix``, sorted."""
        ...

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        """The sequence number of each scope's last write; 0 for a scope that was never written.

        Heads, changes and rows say which epoch of the database they are from, each read in the same step as the epoch:
        the server behind a connection may change between two steps. What a process keeps is used only with heads of the
        same epoch.
        """
        ...

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key that was written after ``since``, in the order of the writes."""
        ...

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        """The newest state, without vectors, of at most ``limit`` keys whose terms hold the most of ``words``.

        It reads all terms that were written after ``since``, so it needs no index. Of keys with equally many, the last
        written win.
        """
        ...

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        """At most ``limit`` rows whose text has no vector of ``model`` yet, among ``keys`` or in the whole store."""
        ...

    def expired(self, limit: int) -> list[Key]:
        """The keys of expired rows that no Expire has removed yet, at most ``limit``."""
        ...

    def get_meta(self, name: str) -> str | None:
        """A setting of the store as a whole."""
        ...

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        """Stores a setting of the store as a whole; with ``is_first``, only if it has none of that name."""
        ...

    def forget(self, user: str) -> None:
        """Drops what this object keeps for readers of the changes in scopes whose first label is ``user``.

        They then read these scopes from the start.
        """
        ...

    def inspect(self, root: str | None = None) -> Iterable[Row | Unreadable]:
        """Every row, readable or not, of the namespaces that begin with the label ``root``, or of all."""
        ...

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        """Removes rows that `inspect` could not read, but for those that have changed since. Returns how many."""
        ...

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        """Removes all rows and scopes whose first label is ``root``, and the rows ``also``; their keys and numbers too.

        Unlike after a Remove, nothing says that they were there. Durable when it returns; may be interrupted and
        repeated. Writers under ``root`` must be kept out meanwhile: see `Fence`.
        """
        ...

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """Overwrites what removed rows have left in files and journals.

        Returns, in words, the places where their bytes may still be. ``fully``: also by means that block all other
        readers and writers meanwhile.
        """
        ...

    def files(self) -> list[Path]:
        """The files of this machine that rows are written to, journals included."""
        ...

    def close(self) -> None:
        """Releases connections and files."""
        ...


class _BeforeAllTime:
    """A clock by which nothing has expired yet."""

    def now(self) -> datetime:
        return datetime(1, 1, 2, tzinfo=UTC)  # a day later than the first, for the sake of time zones


def with_ended(backend: Backend) -> Backend:
    """The same database, read as if no row had expired: a legal hold may keep expired rows.

    For the backend of a database, not for a wrapper such as EncryptedBackend.
    """
    found = copy.copy(backend)
    vars(found)["_clock"] = _BeforeAllTime()
    return found


def change_of(row: Row, change: Change, backend: Backend) -> Change:
    """The change that ``row`` shows: ``change``, unless the row was written after that was read.

    If it was written once more, the change may be newer than the row.
    """
    if row.seq in (0, change.seq):
        return change
    newer = backend.changes(row.namespace, row.seq - 1)
    return next((change for change in newer if change.key == row.key), change)
