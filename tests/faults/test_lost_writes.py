"""A database that lost acknowledged writes: no process shows them any more, and none misses what was saved since.

The sequence numbers of the lost writes are given again, so a process that went by these alone would take the new rows
for those that it has.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import psycopg
import pytest
from databases import database
from postgres_server import copy_data, new_server
from redis_cluster import redis_cluster
from redis_server import redis_server

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.errors import StoreUnavailable, VersionConflict
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import encode_label
from inference_core.retrieval.documents import NO_EPOCH, Document, Epoch
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.stores.backend import Put, bucket_of
from inference_core.stores.backends.sql.postgres import PostgresBackend
from inference_core.testing import FrozenClock

LOST = 5
SAVED_AFTER = {"fewer": 3, "as many": LOST, "more": LOST + 3}
"""By user: how many rows are written in place of the lost ones."""
_WAIT_S = 60
T = TypeVar("T")


def service_of(store: MemoryStore) -> SyncMemoryService:
    return AgentMemoryStoreService(store, timeout=_WAIT_S).sync


def known(store: MemoryStore, user: str) -> set[str]:
    """What a recall finds of a user, in the index of this process and in the rows that it keeps."""
    found = retried(partial(service_of(store).recall_memories, user, "a fact about tea", k=50))
    return {one.content for one in found}


def save(store: MemoryStore, user: str, word: str, many: int) -> set[str]:
    facts = {f"{word} fact {number} about tea" for number in range(many)}
    for fact in sorted(facts):
        service_of(store).save_memory(user, fact)
    return facts


def retried(call: Callable[[], T]) -> T:
    """What ``call`` returns once the server answers: a breaker may keep callers away for a moment."""
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < end
            time.sleep(0.05)


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_S
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def check_losses(url: str, remember: Callable[[], object], lose: Callable[[], None], mark: str = "") -> None:
    """``remember`` marks the state of the database that it has again after ``lose``; users' ids begin with ``mark``."""
    saved_after, first = {f"{mark}{user}": many for user, many in SAVED_AFTER.items()}, f"{mark}fewer"
    with open_store(url, embeddings=None) as store:
        kept = {user: save(store, user, "kept", 5) for user in saved_after}
        service_of(store).save_memory(first, "as it was about tea", memory_id="edited")
        kept[first].add("as it was about tea")
        remember()
        lost = {user: retried(partial(save, store, user, "lost", LOST)) for user in saved_after}
        service_of(store).update_memory(first, "edited", "lost edit about tea")
        for user in saved_after:
            assert known(store, user) >= lost[user]
        while store.engine._indexes.follow():  # now, not in the background before the lost numbers are given again
            pass
        lose()
        with open_store(url, embeddings=None) as other:
            new = {user: retried(partial(save, other, user, "new", many)) for user, many in saved_after.items()}
            for turn in range(2):
                for user in saved_after:
                    seen = known(store, user)
                    assert seen == known(other, user) == kept[user] | new[user], (turn, user)
                    new[user] |= retried(partial(save, store if turn else other, user, "later", 3))
        for user in saved_after:
            assert known(store, user) == kept[user] | new[user]


def test_regression_a_postgres_folder_that_was_restored(tmp_path: Path) -> None:
    """Restored in place: 5 lost memories were shown for good, and 5 new ones were never found."""
    with closing(new_server("postgres")) as server:

        def remember() -> None:
            server.stop()
            copy_data(server.data, server.folder / "backup")
            server.start()

        def lose() -> None:
            server.kill()
            copy_data(server.folder / "backup", server.data)
            server.start()

        check_losses(server.url(), remember, lose)


def test_regression_a_standby_that_was_promoted_without_the_last_writes() -> None:
    """After an asynchronous failover, a running process showed the 5 lost memories and none of the 5 new ones."""
    with closing(new_server("postgres")) as primary, closing(new_server("postgres", follows=primary)) as standby:
        hosts = ",".join(quote(str(one.folder), safe="") for one in (primary, standby))

        def remember() -> None:
            ((at,),) = primary.execute("SELECT pg_current_wal_lsn()")
            wait(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{at}'") == [(True,)])
            with closing(PostgresBackend(standby.url())) as replica:
                assert replica.heads([("more", "semantic")])[0].epoch != NO_EPOCH, "a standby says it, too"
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            wait(lambda: standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])

        def lose() -> None:
            primary.kill()
            assert standby.execute("SELECT pg_promote()") == [(True,)]

        check_losses(f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write", remember, lose)


def test_regression_a_crash_of_one_process_of_postgres_is_another_epoch() -> None:
    """It takes commits along that did not wait for the disk, and the server says that it has run since before."""
    with closing(new_server("postgres")) as server, open_store(server.url(), embeddings=None) as store:
        save(store, "ada", "kept", 1)

        def heads() -> list[tuple[int, Epoch]]:
            return [(head, head.epoch) for head in store.engine.backend.heads([("ada", "semantic")])]

        before = heads()
        assert heads() == before
        ((pid,),) = server.execute("SELECT pg_backend_pid()")
        with psycopg.connect(server.url(), autocommit=True) as witness:
            os.kill(pid, signal.SIGKILL)
            with suppress(psycopg.OperationalError):  # the server has noticed, and ends all others, too
                while True:
                    witness.execute("SELECT 1")
                    time.sleep(0.01)
        server.start()
        ((head, epoch),), ((known_head, known_epoch),) = retried(heads), before
        assert head == known_head
        assert epoch != known_epoch


@contextmanager
def redis_of_snapshots() -> Generator[tuple[str, Callable[[], object], Callable[[], None]]]:
    """A server that keeps what it held at its last snapshot."""
    from redis import Redis

    with redis_server() as server, Redis(unix_socket_path=str(server.socket)) as client:

        def lose() -> None:
            server.kill()
            server.start()

        yield server.url, client.save, lose


def test_regression_redis_that_was_restarted_from_an_old_snapshot() -> None:
    """With Redis' default settings, a restart was enough."""
    with redis_of_snapshots() as (url, remember, lose):
        check_losses(url, remember, lose)


def test_a_replica_of_a_cluster_that_took_over_without_the_last_writes() -> None:
    """Another server of the cluster answers for these users, and gives the numbers of the lost writes again."""
    with redis_cluster("--cluster-require-full-coverage", "no") as cluster:
        primary = cluster.holder_of("{0}")
        marks = (f"{number}-" for number in count())
        mark = next(
            mark
            for mark in marks
            if all(cluster.holder_of(f"{{{bucket_of((mark + user,))}}}") is primary for user in SAVED_AFTER)
        )
        replica = cluster.replica_of(primary)

        def remember() -> None:
            with primary.client() as client:
                assert client.wait(1, 1_000 * _WAIT_S) == 1
                replica.pause()
                client.client_kill_filter(_type="replica")

        def lose() -> None:
            primary.kill()
            replica.go_on()

        check_losses(cluster.url, remember, lose, mark)


def test_regression_a_sqlite_file_into_which_a_backup_was_copied(tmp_path: Path, sqlite_url: str) -> None:
    """Through SQLite, as its shell's .restore does: the file stays where it is."""
    file, backup = tmp_path / "memory.db", tmp_path / "backup.db"

    def copied(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
            reader.backup(writer)

    check_losses(sqlite_url, lambda: copied(file, backup), lambda: copied(backup, file))


@pytest.mark.parametrize("is_remembered", [True, False])
def test_regression_user_files_that_were_replaced_by_older_ones(
    tmp_path: Path, *, is_remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process has only the index of a user, whose file was too many to keep."""
    if not is_remembered:
        monkeypatch.setattr("inference_core.stores.backends.file._CACHE_BYTES", 0)
    with database("file", tmp_path) as url:
        users, backup = tmp_path / "memories" / "users", tmp_path / "backup"

        def lose() -> None:
            for path in backup.iterdir():
                Path(shutil.copy2(path, users / f"{path.name}.tmp")).replace(users / path.name)

        check_losses(url, lambda: shutil.copytree(users, backup), lose)


@pytest.mark.parametrize("is_first", [True, False])
def test_regression_an_erasure_that_was_lost_and_repeated(tmp_path: Path, *, is_first: bool) -> None:
    """A process kept the key that names fences, and a fence that said the same as the next one."""
    ledger, user = Ledger(tmp_path / "erasures.jsonl"), encode_label("ada")
    with redis_of_snapshots() as (url, remember, lose), ExitStack() as opened:
        one = opened.enter_context(open_store(url, embeddings=None))
        save(one, "ada", "kept", 3)
        if not is_first:
            erase([one.engine.backend], "bob", ledger)
        remember()
        erase([one.engine.backend], "ada", ledger)
        known_before = one.engine.fences.checks([user])
        lose()
        other = opened.enter_context(open_store(url, embeddings=None))
        assert len(retried(partial(known, other, "ada"))) == len(known(one, "ada")) == 3
        erase([other.engine.backend], "ada", ledger)
        (outcome,) = other.engine.backend.apply([known_before])
        assert isinstance(outcome, VersionConflict), "what began before the second erasure would bring something back"
        scope, at = (user, "semantic"), FrozenClock().now()
        for number in range(3):  # as many as there were: scopes that are made anew count from 1
            new = Put(namespace=scope, key=f"{number}", value="{}", document=Document.of("back"), updated_at=at)
            other.engine.backend.apply([[new]])
        (view,) = one.engine._indexes.views([scope])
        assert sorted(view.keys[: view.slots]) == ["0", "1", "2"]


def test_regression_a_key_of_a_user_that_was_lost_is_not_used_again() -> None:
    """A process went on with it, so the audit trail could not be compared with what it recorded."""
    with redis_of_snapshots() as (url, remember, lose), ExitStack() as opened:
        one = opened.enter_context(open_store(url, embeddings=None))
        save(one, "bob", "kept", 1)  # with the keys of the store itself
        remember()
        save(one, "ada", "lost", 2)
        lose()
        other = opened.enter_context(open_store(url, embeddings=None))
        retried(partial(save, other, "ada", "new", 2))
        retried(partial(save, one, "ada", "later", 1))
        stored = other.engine.audit_log.key_of("ada")
        assert stored is not None
        assert one.engine.audit_log._keys["ada"].secret == stored
