"""PostgreSQL: one database for many processes and machines, through psycopg.

Scope is the leading column of every index, so a user's rows cost the same however many users there are. Vectors are
ranked in this process. Reads never write, so a read-only replica serves them.

Connections to one PostgreSQL database, and the tables in it.

Connections are opened when needed, kept, and replaced when they break. The tables lie in the first schema of the
connection's search_path.

A pooler such as PgBouncer may give each transaction of a connection to another of the server's sessions, which serve
other applications too. So nothing here outlives a transaction: no prepared statement, no setting of the session, no
lock, cursor or temporary table of the session.
"""

from __future__ import annotations

import copy
import math
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from inference_core.clock import Clock
from inference_core.effects import HANG_S, awake_s
from inference_core.errors import ConfigurationError, StoreBusy, StoreUnavailable, WriteUnknown
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import (
    Batch,
    Capabilities,
    Key,
    Outcome,
    PageRequest,
    Row,
    Unreadable,
    check_schema,
    keys_of,
    namespace_of,
    pack_namespace,
    scopes_made,
    unpack_namespace,
    waits_for_disk,
)
from inference_core.stores.backends.sql.base import (
    ALIVE,
    CHANGE,
    CLEARED,
    KEY,
    REPLACED,
    ROW,
    ROWS,
    STATE,
    WRITTEN,
    BatchDecision,
    Refused,
    SqlBackend,
    cursor_of,
    decide,
    inspected,
    row_of,
    state_of,
)
from inference_core.stores.urls import shown_url

T = TypeVar("T")
MAX_CONNECTIONS: Final = 10
TIMEOUT_S: Final = 5
"""For connecting, and for waiting for a free connection. The settings limit statements and idle transactions."""
_THRESHOLD: Final = re.compile(r"(?<=[?&])prepare_threshold=(\d+)(?:&|$)")
_SCHEME: Final = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_DEFAULTS: Final = {
    "connect_timeout": TIMEOUT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "inference_core",
}
READING: Final = """
SELECT set_config('statement_timeout', '5s', true), set_config('jit', 'off', true),
    set_config('enable_seqscan', 'off', true)
"""
"""Settings of a transaction that only reads."""
_WRITING: Final = f"""
{READING}, set_config('idle_in_transaction_session_timeout', '5s', true), set_config('synchronous_commit', CASE
    WHEN NOT %s THEN 'off' WHEN current_setting('synchronous_commit') = 'off' THEN 'on'
    ELSE current_setting('synchronous_commit') END, true),
    CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
        THEN set_config('transaction_timeout', '15s', true) END
"""
"""Settings of a transaction that writes. From PostgreSQL 17 on, one whose client was cut off in the midst of a pipeline
ends, and with it its locks; to the server it is not idle."""
_UNLIMITED: Final = """
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true)
"""
_REFUSALS: Final = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded)
VERSION: Final = 2
_MIGRATION_LOCK: Final = 0x636F_616C_615F_6D65
WANTED: Final = """
unnest(%(names)b::text[], %(keys)b::text[]) AS s (namespace, key) CROSS JOIN LATERAL (
    SELECT * FROM memory_rows r
    WHERE r.scope = (SELECT id FROM memory_scopes known WHERE known.namespace = s.namespace) AND r.key = s.key OFFSET 0
) r
"""
"""Rows by their keys, written so that PostgreSQL uses the primary key even before it has statistics."""
SET_META: Final = "INSERT INTO memory_meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
ADD_META: Final = "INSERT INTO memory_meta VALUES (%s, %s) ON CONFLICT (name) DO NOTHING"
_MIGRATIONS: Final[dict[int, LiteralString]] = {
    1: """
    CREATE TABLE memory_meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    CREATE TABLE memory_scopes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        root text COLLATE "C" NOT NULL,
        namespace text COLLATE "C" NOT NULL UNIQUE,
        seq bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE INDEX memory_scopes_by_root ON memory_scopes (root);
    CREATE TABLE memory_rows (
        scope bigint NOT NULL REFERENCES memory_scopes (id),
        key text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        version bigint NOT NULL,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        kind text COLLATE "C" NOT NULL,
        value text,
        text text,
        terms text,
        analyzer text,
        session text NOT NULL DEFAULT '',
        by_assistant boolean NOT NULL DEFAULT false,
        happened double precision,
        importance double precision NOT NULL DEFAULT 0.5,
        model text COLLATE "C" NOT NULL DEFAULT '',
        vector bytea,
        tokens bytea,
        expires bigint,
        ttl bigint,
        PRIMARY KEY (scope, key)
    );
    ALTER TABLE memory_rows ALTER COLUMN vector SET STORAGE MAIN, ALTER COLUMN tokens SET STORAGE EXTERNAL;
    CREATE UNIQUE INDEX memory_rows_by_seq ON memory_rows (scope, seq);
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created DESC, key) WHERE value IS NOT NULL;
    CREATE INDEX memory_rows_by_model ON memory_rows (model) WHERE text IS NOT NULL;
    CREATE INDEX memory_rows_by_expiry ON memory_rows (expires) WHERE expires IS NOT NULL;
    """,
    2: """
    CREATE INDEX memory_rows_by_kind ON memory_rows (scope, kind, created DESC, key) INCLUDE (expires)
        WHERE value IS NOT NULL;
    """,
}


class Interrupted(StoreUnavailable):
    """Nothing was changed and a retry may succeed: the connection was lost, or another transaction won."""


class Unanswered(psycopg.OperationalError):
    """The server, or what stands between, has not answered for too long; the connection was closed from this side."""


class Connection(psycopg.Connection[Any]):
    """A connection that never waits forever: after `silence_s` without a sign of the server it raises Unanswered.

    TCP notices that a machine is gone, but not that a proxy in between answers for a server that does not.
    """

    silence_s: float = HANG_S
    """Seconds in which this process could run; longer than `READING` lets a statement take."""
    is_durable = True

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """What psycopg calls for all that it waits for. Raises Unanswered."""
        return super().wait(self._heard(gen), *args, **kwargs)

    def _heard(self, gen: PQGen[T]) -> PQGen[T]:
        heard = awake_s()
        try:
            ready = yield next(gen)
            while True:
                if ready:
                    heard = awake_s()
                elif awake_s() - heard >= self.silence_s:
                    self.pgconn.finish()
                    raise Unanswered(f"no answer for {self.silence_s:g} s")
                ready = yield gen.send(ready)
        except StopIteration as done:
            return done.value

    @contextmanager
    def waiting(self, silence_s: float) -> Generator[None]:
        """Another limit for what is asked in it."""
        before, self.silence_s = self.silence_s, silence_s
        try:
            yield
        finally:
            self.silence_s = before

    def begin(self, *, waits_for_disk: bool) -> None:
        """Begins a transaction with the settings of the store's writes; in a pipeline, without waiting."""
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.execute(_WRITING, (self.is_durable and waits_for_disk,))

    @contextmanager
    def writing(self) -> Generator[None]:
        """A transaction with the settings of the store's writes."""
        with self.transaction():
            self.execute(_WRITING, (self.is_durable,))
            yield


class PostgresConnections:
    """At most ``MAX_CONNECTIONS`` connections to the database at ``url``; safe for threads.

    None of them waits longer than `Connection.silence_s` for an answer. ``durable``: a commit survives a crash of the
    server. Raises ConfigurationError for a URL that cannot be parsed.
    """

    # Not psycopg_pool, which connects in threads of its own. While a server is down, each caller would wait for the
    # whole timeout, and not hear the reason, instead of failing at once; and as the pool doubles its pause after each
    # failure, a server that is back would not be used at once.

    def __init__(self, url: str, *, durable: bool) -> None:
        self._parameters = parameters_of(url)
        self._durable = durable
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._idle: list[Connection] = []
        self._closed = False

    def attempt(self, work: Callable[[Connection], T]) -> T:
        """Calls ``work`` with a connection in autocommit mode, and again with a new one if it was interrupted.

        Raises StoreUnavailable, StoreBusy, Refused, and what ``work`` raises.
        """
        try:
            with self._connection() as connection:
                return work(connection)
        except Interrupted:
            pass
        with self._connection() as connection:
            return work(connection)

    def read(self, query: Any, parameters: Any = None) -> list[tuple[Any, ...]]:
        """All rows that ``query`` finds."""

        def ask(connection: Connection) -> list[tuple[Any, ...]]:
            with connection.pipeline():  # one round trip, and one transaction, as nothing in it ends one
                connection.execute(READING)
                found = connection.execute(query, parameters, binary=True)
            return found.fetchall()

        return self.attempt(ask)

    @contextmanager
    def frozen(self) -> Generator[PostgresConnections]:
        """Connections that all read what was committed now."""
        with self._connection() as connection, connection.waiting(math.inf):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                connection.execute(READING)
                connection.execute(_UNLIMITED)
                yield _Frozen(connection)
            finally:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """Closes idle connections now and the others after use; later calls raise StoreUnavailable."""
        self._closed = True
        self._drop_idle()

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        if not self._slots.acquire(timeout=TIMEOUT_S):
            raise StoreBusy(f"PostgreSQL: all {MAX_CONNECTIONS} connections are in use")
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                with translated(connection):
                    yield connection
            finally:
                # What broke one connection, such as a restart of the server, has broken the others too.
                drops = connection.broken or self._closed  # in the meantime
                if connection.info.transaction_status is TransactionStatus.IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()
                if drops:
                    self._drop_idle()
        finally:
            self._slots.release()

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(**self._parameters, autocommit=True)
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {_said(error)}") from error
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        connection.is_durable = self._durable
        return connection

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Frozen(PostgresConnections):
    """One connection in a transaction, for every read."""

    def __init__(self, connection: Connection) -> None:  # pyright: ignore[reportMissingSuperCall] - it has no pool
        self._one = connection

    def read(self, query: Any, parameters: Any = None) -> list[tuple[Any, ...]]:
        with translated(self._one):
            return self._one.execute(query, parameters, binary=True).fetchall()

    def attempt(self, work: Callable[[Connection], T]) -> T:
        with translated(self._one):
            return work(self._one)


@contextmanager
def translated(connection: psycopg.Connection[Any]) -> Generator[None]:
    """Turns psycopg's errors into StoreErrors, whose messages hold no stored data."""
    try:
        yield
    except (errors.SerializationFailure, errors.DeadlockDetected) as error:
        raise Interrupted(f"PostgreSQL: {_said(error)}") from error
    except (*_REFUSALS, UnicodeEncodeError, OverflowError) as error:
        raise Refused(f"PostgreSQL cannot hold this: {_said(error)}") from error
    except psycopg.Error as error:
        is_silent = isinstance(error, Unanswered)  # to ask once more would take as long
        kind = Interrupted if connection.broken and not is_silent else StoreUnavailable
        raise kind(f"PostgreSQL: {_said(error)}") from error


def _said(error: Exception) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).partition("\n")[0] or type(error).__name__


def parameters_of(url: str) -> dict[str, Any]:
    """The connection parameters in ``url``: libpq's, and psycopg's prepare_threshold; without it nothing is prepared.

    Raises ConfigurationError, never quoting the URL as libpq does.
    """
    asked = _THRESHOLD.search(url)
    url = _THRESHOLD.sub("", url)
    place = url.partition("://")[2].partition("?")[0]
    try:
        if "@" in place.partition("@")[2] + place.partition("/")[2]:
            raise psycopg.ProgrammingError
        parameters = conninfo_to_dict(_SCHEME.sub("postgresql://", url, count=1))
    except (psycopg.Error, UnicodeError):
        raise ConfigurationError(
            "The URL of the PostgreSQL store cannot be read. It looks like 'postgresql://user:password@host:5432/db'; "
            "special characters are written as %40 and the like, and parameters are those of libpq"
        ) from None
    threshold = int(asked[1]) if asked else None
    return {**_DEFAULTS, **parameters, "client_encoding": "utf8", "prepare_threshold": threshold}


def migrate(connection: Connection) -> None:
    """Creates or updates the tables in one transaction; processes that start together take turns.

    Raises UnsupportedSchema if a newer version of the package wrote them, ConfigurationError if the database's encoding
    is not UTF-8 or its user may not create tables.
    """
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise ConfigurationError("A store needs a PostgreSQL database with the encoding UTF8")
    if _version(connection) == VERSION:
        return
    try:
        with connection.waiting(math.inf), connection.transaction():
            connection.execute(_UNLIMITED)
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            for step in range(_version(connection) + 1, VERSION + 1):
                connection.execute(_MIGRATIONS[step])
                connection.execute(SET_META, ("schema_version", str(step)))
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
        raise ConfigurationError(
            f"The tables of the store cannot be made: {error.diag.message_primary}. "
            "Grant the database's user CREATE on a schema of its search_path"
        ) from error


def has_tables(connection: psycopg.Connection[Any]) -> bool:
    """Whether the tables of a store are on the search_path."""
    # to_regclass may not see yet what another process made while this one waited for the lock; a table's scan does.
    query = "SELECT FROM pg_catalog.pg_class WHERE relname = 'memory_meta' AND pg_table_is_visible(oid)"
    return connection.execute(query).fetchone() is not None


def _version(connection: psycopg.Connection[Any]) -> int:
    if not has_tables(connection):
        return 0
    found = connection.execute("SELECT value FROM memory_meta WHERE name = 'schema_version'").fetchone()
    version = int(found[0]) if found else 0
    check_schema(version, VERSION)
    return version


_NEW_SCOPES: Final = """
INSERT INTO memory_scopes (root, namespace)
SELECT root, namespace FROM unnest(%b::text[], %b::text[]) AS wanted (root, namespace)
WHERE NOT EXISTS (SELECT FROM memory_scopes s WHERE s.namespace = wanted.namespace)
ORDER BY namespace COLLATE "C" ON CONFLICT DO NOTHING
"""
_LOCK: Final = """
SELECT namespace, id, seq FROM memory_scopes WHERE namespace = ANY(%b) ORDER BY namespace FOR NO KEY UPDATE
"""
_FIND: Final = f"SELECT s.namespace, r.key, {STATE} FROM {WANTED}"
_UPSERT: Final = f"""
INSERT INTO memory_rows ({WRITTEN}, tokens)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %b, %s, %s, %b)
ON CONFLICT (scope, key) DO UPDATE SET {REPLACED}, tokens = excluded.tokens
"""
_TOUCH: Final = "UPDATE memory_rows SET expires = %s WHERE scope = %s AND key = %s"
_DISCARD: Final = f"""
WITH head AS (UPDATE memory_scopes SET seq = seq + 1 WHERE id = %(id)s RETURNING seq)
UPDATE memory_rows SET seq = (SELECT seq FROM head), version = version + 1, created = 0, updated = 0, {CLEARED},
    tokens = NULL
WHERE scope = %(id)s AND key = %(key)s AND seq = %(seq)s
"""
_ERASE: Final = """
DELETE FROM memory_rows WHERE (scope, key) IN (
    SELECT r.scope, r.key FROM memory_rows r WHERE r.scope IN (SELECT id FROM memory_scopes WHERE root = %(root)s)
    LIMIT %(limit)s
)
"""
"""By the primary key: a ctid is unique only within one partition."""
_ERASE_ROW: Final = """
DELETE FROM memory_rows WHERE scope = (SELECT id FROM memory_scopes WHERE namespace = %s) AND key = %s
"""
_NEW_SEQS: Final = """
UPDATE memory_scopes s SET seq = n.seq FROM unnest(%b::bigint[], %b::bigint[]) AS n (id, seq) WHERE s.id = n.id
"""
_DROP_SCOPES: Final = """
DELETE FROM memory_scopes s WHERE s.id = ANY(%b::bigint[])
AND NOT EXISTS (SELECT FROM memory_rows r WHERE r.scope = s.id)
"""
_STARTED: Final = "extract(epoch FROM pg_postmaster_start_time())"
_RECOVERED: Final = "extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())"
"""When the statistics were reset, which the server does after one of its processes has crashed, too."""
_CHEAP_STATISTICS: Final = 150_000
"""The first version of the server in which reading their time does not wait for another process."""
_LARGEST: Final = 2**63 - 1
_PARAMETER: Final = re.compile(r"(?<!:):(\w+)")


class PostgresBackend(SqlBackend):
    """A Backend on the database at ``url``, whose tables are created if they are missing.

    With ``durable=False`` a crash of the server may lose the last commits. Raises ConfigurationError if the URL cannot
    be parsed or the tables cannot be created, StoreUnavailable if the server cannot be reached, UnsupportedSchema if a
    newer version of the package wrote the tables.
    """

    product, holds_nul = "PostgreSQL", False
    contains = "strpos"
    has_langgraph = (
        "SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass('store') AND attname IN ('prefix', 'key')"
    )
    packed_tokens = "r.tokens"
    scope_heads = "s.namespace, s.id, s.seq FROM memory_scopes s"
    most_values = _LARGEST
    capabilities = Capabilities(durable=True, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, url: str, *, durable: bool = True, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.name = shown_url(url)
        self.connections = PostgresConnections(url, durable=durable)
        with ExitStack() as opened:
            opened.callback(self.close)
            self.connections.attempt(migrate)
            version = self.connections.attempt(lambda connection: connection.info.server_version)
            opened.pop_all()
        # A server never goes back while it runs. Which one answers may change with each statement, behind a pooler too,
        # and so may its state: a failover, a restored folder, a crash with commits that had not waited for the disk.
        since = [_STARTED, *([_RECOVERED] if version >= _CHEAP_STATISTICS else [])]
        self.epoch = f"(SELECT hashtextextended(concat_ws(' ', {', '.join(since)}), 0))"

    def page(self, request: PageRequest) -> list[Row]:
        """The rows that ``request`` asks for, from ranges of an index.

        Each scope and kind is one range, or two behind a cursor. Each range gives at most as many rows as the page has;
        the results are sorted together.
        """
        parameters = {
            "now": self._now(),
            "names": [pack_namespace(namespace) for namespace in request.scopes],
            "kinds": [*(request.kinds or ())],
            "last": min(request.limit + request.offset, _LARGEST),
            "limit": min(request.limit, _LARGEST),
            "offset": request.offset,
        }
        parts = [""]
        if request.after is not None:
            age, key, of = request.after.place
            # PostgreSQL's parameters and keys hold no NUL, so the rows behind the key are those behind its part before
            # the first NUL.
            parameters |= {"created": -age, "key": key.partition("\x00")[0], "of": of}
            # A row of the same age and key comes after the cursor's if its namespace does.
            parts = [
                "AND r.created = :created AND r.key >= :key AND (r.key > :key OR s.namespace > :of)",
                "AND r.created < :created",
            ]
        kinds, of_kind = "", ""
        if request.kinds is not None:
            kinds, of_kind = "CROSS JOIN unnest(:kinds::text[]) AS k (kind)", "AND r.kind = k.kind"
        ranges = " UNION ALL ".join(
            f"(SELECT * FROM memory_rows r WHERE r.scope = s.id AND {ALIVE} {of_kind} {part} "
            "ORDER BY r.created DESC, r.key LIMIT :last)"
            for part in parts
        )
        query = (
            f"SELECT {ROW} FROM memory_scopes s {kinds} CROSS JOIN LATERAL ({ranges}) r "
            "WHERE s.namespace = ANY(:names) ORDER BY r.created DESC, r.key, s.namespace LIMIT :limit OFFSET :offset"
        )
        found = self._select(query, parameters)
        rows = list(filter(None, map(row_of, found)))
        if len(rows) == len(found) or len(found) < request.limit:
            return rows
        # More, in place of those that cannot be read.
        return rows + self.page(replace(request, limit=request.limit - len(rows), after=cursor_of(found[-1]), offset=0))

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        of_kind, parameters = self._of_kind(kinds)
        rows = self._of_scopes(f"count(*) FROM {ROWS}", namespaces, f"{ALIVE} AND {of_kind}", parameters)
        return sum(count for (count,) in rows)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        query = ADD_META if is_first else SET_META

        def set_meta(connection: Connection) -> None:
            with connection.writing():
                connection.execute(query, (name, value))

        self.connections.attempt(set_meta)

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        of_root = "" if root is None else "AND s.root = :root"
        query = (
            f"SELECT s.id, s.root, {ROW}, {CHANGE}, r.model, r.vector FROM {ROWS} WHERE r.value IS NOT NULL "
            f"{of_root} AND (r.scope, r.key) > (:scope, :key) ORDER BY r.scope, r.key LIMIT {self.page_size}"
        )
        parameters: dict[str, object] = {"root": root and pack_namespace((root,)), "scope": -1, "key": ""}
        while page := self._select(query, parameters):
            for scope, packed, *columns in page:
                label = namespace_of(packed)
                yield inspected(label and label[0], scope, columns)
            parameters |= {"scope": page[-1][0], "key": page[-1][2 + KEY]}

    def discard(self, unreadable: Sequence[Unreadable]) -> int:

        def discard(connection: Connection) -> int:
            with connection.writing():
                return sum(connection.execute(_DISCARD, damaged.place._asdict()).rowcount for damaged in unreadable)

        return self.connections.attempt(discard)

    @contextmanager
    def snapshot(self) -> Generator[PostgresBackend]:
        """The database as of one moment, for reading alone."""
        with self.connections.frozen() as connections:
            frozen = copy.copy(self)
            frozen.connections = connections
            yield frozen

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        def portion(connection: Connection) -> bool:
            with connection.writing():
                label = {"root": pack_namespace((root,)), "limit": self.page_size}
                if connection.execute(_ERASE, label).rowcount == self.page_size:
                    return True
                connection.execute("DELETE FROM memory_scopes WHERE root = %(root)s", label)
                for namespace, key in also:
                    connection.execute(_ERASE_ROW, (pack_namespace(namespace), key))
                return False

        def drain(connection: Connection) -> None:
            with connection.writing():  # waits for all that began before the user's fence was put up
                connection.execute("LOCK TABLE memory_scopes IN EXCLUSIVE MODE")

        self.connections.attempt(drain)
        while self.connections.attempt(portion):
            pass

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """``fully``: with VACUUM FULL, which blocks all readers and writers. Tables of another role are left out."""

        def vacuum(connection: Connection) -> None:
            with connection.waiting(math.inf):  # VACUUM runs in no transaction: the server's own limit holds for it
                connection.execute(f"VACUUM {'(FULL) ' if fully else ''}memory_rows, memory_scopes, memory_meta")

        self.connections.attempt(vacuum)
        freed = [] if fully else ["freed pages of PostgreSQL's tables, until they are used again or VACUUM FULL is run"]
        return [*freed, "PostgreSQL's write-ahead log, until it is recycled"]

    def files(self) -> list[Path]:
        """None: the server's files lie elsewhere."""
        return []

    def close(self) -> None:
        self.connections.close()

    def _select(self, query: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self.connections.read(_PARAMETER.sub(r"%(\1)s", query), parameters)

    def _of_keys(self, selection: str, keys: Sequence[Key], condition: str) -> list[tuple[Any, ...]]:
        distinct = [key for key in dict.fromkeys(keys) if "\x00" not in key[1]]
        names, wanted = [pack_namespace(name) for name, _ in distinct], [key for _, key in distinct]
        query = f"SELECT {selection} FROM {WANTED} WHERE {condition}"
        return self._select(query, {"names": names, "keys": wanted, "now": self._now()})

    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        return f"{column} = ANY(:{column[2:]}s)", {f"{column[2:]}s": list(values)}

    def _transact(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies ``batches`` in two round trips: lock and read, then store and commit.

        Scopes are locked in the order of their names, so transactions cannot deadlock. Raises WriteUnknown if the
        connection was lost during the commit.
        """
        keys = [(pack_namespace(namespace), key) for namespace, key in keys_of(batches)]
        made = scopes_made(batches)

        def apply(connection: Connection) -> list[Outcome]:
            is_sent = False
            try:
                with connection.pipeline() as pipeline:
                    while True:
                        connection.begin(waits_for_disk=waits_for_disk(batches))
                        if made:
                            roots = [pack_namespace(scope[:1]) for scope in made]
                            connection.execute(_NEW_SCOPES, (roots, [*map(pack_namespace, made)]))
                        if not keys:  # nobody asks for more than a commit, which a read-only replica has too
                            connection.execute("COMMIT")
                            return [[] for _ in batches]
                        scopes = connection.execute(
                            _LOCK, ([*{name for name, _ in keys} | set(map(pack_namespace, made))],), binary=True
                        )
                        wanted = {"names": [name for name, _ in keys], "keys": [key for _, key in keys]}
                        rows = connection.execute(_FIND, wanted, binary=True)
                        pipeline.sync()  # the server ends an idle transaction only after this
                        heads = {unpack_namespace(name): (scope, seq) for name, scope, seq in scopes.fetchall()}
                        states = {(unpack_namespace(name), key): state_of(row) for name, key, *row in rows.fetchall()}
                        if made.union(namespace for namespace, _ in states) <= heads.keys():
                            break
                        # Another transaction has dropped an unused scope, or made one between the lock and the read.
                        connection.execute("ROLLBACK")
                    decision = decide(batches, heads, states, self._clock.now())
                    unused = [scope for scope, seq in heads.values() if not seq and scope not in decision.heads]
                    _store(connection, decision, unused)
                    is_sent = True
                    connection.execute("COMMIT")
            except psycopg.Error as error:
                if is_sent and connection.broken:
                    raise WriteUnknown(
                        "The connection to PostgreSQL was lost during the commit; retry the write under the same id"
                    ) from error
                raise
            return decision.outcomes

        return self.connections.attempt(apply)


def _store(connection: Connection, decision: BatchDecision, unused: Sequence[int]) -> None:
    with connection.cursor() as cursor:
        if unused:  # it was made for a batch that was refused, and may name a user who was erased
            cursor.execute(_DROP_SCOPES, (unused,))
        if decision.changed:
            cursor.executemany(_UPSERT, decision.changed)
            cursor.execute(_NEW_SEQS, ([*decision.heads], [*decision.heads.values()]))
        if decision.touched:
            cursor.executemany(_TOUCH, decision.touched)


def has_store(url: str) -> bool:
    """Whether there is a store at ``url``. Raises ConfigurationError, StoreUnavailable."""
    with closing(PostgresConnections(url, durable=True)) as connections:
        return connections.attempt(has_tables)
