"""Connections to one PostgreSQL database, and the tables in it.

Connections are opened when needed, kept, and replaced when they break. The tables lie in the first schema of the
connection's search_path.

A pooler such as PgBouncer may give each transaction of a connection to another of the server's sessions, which serve
other applications too. So nothing here outlives a transaction: no prepared statement, no setting of the session, no
lock, cursor or temporary table of the session.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from inference_core.effects import HANG_S, awake_s
from inference_core.errors import ConfigurationError, StoreBusy, StoreUnavailable
from inference_core.stores.backends.sql.base import Refused
from inference_core.stores.codec import check_schema

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
_LOCK: Final = 0x636F_616C_615F_6D65
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

    def begin(self) -> None:
        """Begins a transaction with the settings of the store's writes; in a pipeline, without waiting."""
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.execute(_WRITING, (self.is_durable,))

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
        given = conninfo_to_dict(_SCHEME.sub("postgresql://", url, count=1))
    except (psycopg.Error, UnicodeError):
        raise ConfigurationError(
            "The URL of the PostgreSQL store cannot be read. It looks like 'postgresql://user:password@host:5432/db'; "
            "special characters are written as %40 and the like, and parameters are those of libpq"
        ) from None
    threshold = int(asked[1]) if asked else None
    return {**_DEFAULTS, **given, "client_encoding": "utf8", "prepare_threshold": threshold}


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
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
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
