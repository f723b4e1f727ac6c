"""Connections to a Redis server, to the primary that Sentinels name, or to the servers of a cluster.

A read is repeated once if its connection was lost; a write is sent only once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha1
from typing import Any, ClassVar, Final, cast

import redis
from redis import Redis, RedisCluster, exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from inference_core.errors import (
    ConfigurationError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    WriteUnknown,
    in_one_line,
)
from inference_core.retrieval.documents import NO_EPOCH, Epoch
from inference_core.stores.backends.redis.address import HELP, Address

TIMEOUT_S: Final = 5.0
REPLICATED_S: Final = 1.0
"""How long a write waits for its replicas, if it waits for any."""
_CONNECTIONS: Final = 50
_HINTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (exceptions.AuthenticationError, "; check user and password in the URL: redis://user:password@host:6379/0"),
    (exceptions.NoPermissionError, "; allow its user EVALSHA, SCRIPT LOAD and all keys with the store's prefix"),
    (MasterNotFoundError, "; no Sentinel that answers knows a primary of this name"),
    (exceptions.ReadOnlyError, "; this is a replica, name the primary in the URL"),
    (exceptions.ClusterDownError, "; a part of the cluster has no primary until a replica takes over"),
    (exceptions.AskError, "; a part of the cluster moves to another server; try again"),
    (exceptions.TryAgainError, "; a part of the cluster moves to another server; try again"),
)
_DEFAULTS: Final[Mapping[str, Any]] = {
    "max_connections": _CONNECTIONS,
    "socket_timeout": TIMEOUT_S,
    "socket_connect_timeout": TIMEOUT_S,
    "retry": Retry(NoBackoff(), 0),
    "protocol": 2,
}
_MOVING: Final = (exceptions.AskError, exceptions.TryAgainError)
_LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
_TURNS: Final = 3
_FIRST_SAFE: Final = 8
"""With earlier versions of redis-py, a look at the servers of a cluster closes connections that other threads use."""
Command = Sequence[Any]
_FACTS: Final[Command] = ("INFO", "replication")
_HISTORY: Final = re.compile(rb"master_replid:(\w+)")
"""A server has a new one after each start, and whenever it became a primary or the replica of another one."""
_REWRITING: Final = re.compile(rb"aof_rewrite_(?:in_progress|scheduled):1")


class Server:
    """The server at ``address``, by a pool of connections; safe for threads.

    Raises ConfigurationError for a malformed URL, a refused login and a server of another kind, StoreUnavailable if
    nothing answers.
    """

    is_cluster: ClassVar[bool] = False

    def __init__(self, address: Address) -> None:
        self._closed, self._wait, self.name = False, address.wait, address.name
        try:
            timeout_s = float(address.options.get("socket_timeout", TIMEOUT_S))
            self._replicated_ms = max(1, int(1_000 * min(REPLICATED_S, timeout_s / 2)))
            self._connect(address, {**_DEFAULTS, **address.options})
            facts = self._answering(("INFO", "cluster"))
        except ConfigurationError:
            raise
        except (ValueError, TypeError):
            raise ConfigurationError(HELP) from None
        self.may_inform = all(isinstance(answer, bytes) for answer in facts)
        if not self.is_cluster and self.may_inform and b"cluster_enabled:1" in facts[0]:
            self.close()
            raise ConfigurationError(f"{self.name} belongs to a Redis Cluster; open that: 'redis+cluster://host:port'")

    def ask(self, commands: Sequence[Command], *, together: bool = False) -> list[Any]:
        """The answers to reads; ``together``: as of one moment. Raises StoreUnavailable."""
        return self._read(commands, together=together)[0]

    def ask_in_epoch(self, commands: Sequence[Command], *, together: bool = False) -> tuple[list[Any], list[Epoch]]:
        """Like `ask`, and the epoch of the server that gave each answer; none if the user may not ask for it."""
        return self._read(commands, together=together, informs=self.may_inform)

    def change(self, commands: Sequence[Command]) -> None:
        """Sends writes that may be repeated, in their order. Raises StoreUnavailable."""
        self._read(commands, waits=True)

    def settings(self, name: str) -> set[str]:
        """The values of a setting on the servers that disclose it. Raises StoreUnavailable."""
        answers = self._answering(("CONFIG", "GET", name))
        return {answer[1].decode() for answer in answers if isinstance(answer, list) and answer}

    def tell(self, command: Command) -> None:
        """Sends one write. Raises StoreUnavailable, WriteUnknown if the answer was lost."""
        (answer,) = self._sent([command])
        if isinstance(answer, StoreError):
            raise answer

    def evaluate(self, script: str, calls: Sequence[Command]) -> list[Any]:
        """The answer of ``script`` to each call, or a StoreUnavailable; 0 if the server did not have the script.

        The error is a WriteUnknown if the answer was lost, or too few replicas have confirmed the write.
        """
        digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
        answers = self._sent([("EVALSHA", digest, *call) for call in calls])
        if None in answers:
            for answer in self._answering(("SCRIPT", "LOAD", script)):
                if isinstance(answer, exceptions.RedisError):
                    raise self._failure(answer) from answer
        return [answer or 0 for answer in answers]

    def rewrite_logs(self, wait_s: float) -> None:
        """Has each server write its append-only file anew. Raises StoreUnavailable if that takes longer."""
        until = time.monotonic() + wait_s
        self._each(("BGREWRITEAOF",))
        pause = 0.01
        while any(map(_REWRITING.search, states := self._each(("INFO", "persistence")))):
            if time.monotonic() > until:
                raise StoreUnavailable(f"{self.name} has not written its append-only file anew in {wait_s:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        if not all(b"aof_last_bgrewrite_status:ok" in state for state in states):
            raise StoreUnavailable(f"{self.name} could not write its append-only file anew; its log says why")

    def place_of(self, key: bytes) -> str:
        """Names the server that has ``key`` now: what lies on another one may fail by itself."""
        del key
        return self.name

    def check(self) -> None:
        """Raises StoreUnavailable after `close`."""
        if self._closed:
            raise StoreUnavailable("The store is closed")

    def close(self) -> None:
        """Closes idle connections now, and the others after use."""
        self._closed = True
        for client in self._clients():
            client.connection_pool.disconnect(inuse_connections=False)

    def _connect(self, address: Address, options: dict[str, Any]) -> None:
        """Makes the clients, which connect when they are first used."""
        pool: redis.ConnectionPool
        if address.kind == "sentinel":
            of_all = {name: options[name] for name in options if name.startswith("ssl") or name in _DEFAULTS}
            sentinels = Sentinel(list(address.nodes), sentinel_kwargs={**of_all, **address.of_sentinels})
            pool = SentinelConnectionPool(address.service, sentinels, **options)
        else:
            pool = redis.BlockingConnectionPool(timeout=int(TIMEOUT_S), **options)
        self._client = Redis(connection_pool=pool)
        self._client.response_callbacks.clear()

    def _clients(self) -> Sequence[Redis]:
        """A client for each server."""
        return [self._client]

    def _run(self, commands: Sequence[Command], **how: bool) -> tuple[list[Any], list[Epoch]]:
        """The answers, some of which may be errors, and the epochs of the servers that gave them."""
        return self._run_on(self._client, commands, **how)

    def _run_on(
        self,
        client: Redis,
        commands: Sequence[Command],
        *,
        together: bool = False,
        informs: bool = False,
        waits: bool = False,
    ) -> tuple[list[Any], list[Epoch]]:
        """What one server answers. ``waits``: a write that too few replicas have confirmed is a WriteUnknown."""
        waits = waits and self._wait > 0
        behind: list[Command] = [_FACTS] if informs else []
        behind += [("WAIT", self._wait, self._replicated_ms)] if waits else []
        try:
            with client.pipeline(transaction=together) as pipeline:
                for command in (*commands, *behind):
                    pipeline.execute_command(*command)
                answers: list[Any] = pipeline.execute(raise_on_error=False)
        except exceptions.RedisError as error:
            return [error] * len(commands), [NO_EPOCH] * len(commands)
        finally:
            if self._closed:
                client.connection_pool.disconnect(inuse_connections=False)
        last: Any = answers.pop() if behind else None
        if waits and not (isinstance(last, int) and last >= self._wait):
            why = f"{last} of {self._wait} replicas confirmed it" if isinstance(last, int) else in_one_line(last)
            unknown = self._unknown(why)
            answers = [one if isinstance(one, Exception) or one == 0 else unknown for one in answers]
        found = _HISTORY.search(last) if informs and isinstance(last, bytes) else None
        return answers, [found[1].decode() if found else NO_EPOCH] * len(answers)

    def _everywhere(self, command: Command) -> list[Any]:
        """What each server answers, which may be an error."""
        self.check()
        answers: list[Any] = []
        for client in self._clients():
            ((answer,), _) = self._run_on(client, [command])
            if _may_repeat(answer):
                ((answer,), _) = self._run_on(client, [command])
            answers.append(answer)
        return answers

    def _answering(self, command: Command) -> list[Any]:
        """What the servers answer that can be reached. Raises StoreUnavailable, ConfigurationError if none can be."""
        answers = self._everywhere(command)
        found = [answer for answer in answers if not isinstance(answer, _LOST)]
        if not found:
            raise self._refused(answers[0]) from answers[0]
        return found

    def _each(self, command: Command) -> list[Any]:
        """What each server answers. Raises StoreUnavailable."""
        answers = self._everywhere(command)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise self._failure(answer) from answer
        return answers

    def _read(self, commands: Sequence[Command], **how: bool) -> tuple[list[Any], list[Epoch]]:
        self.check()
        answers, epochs = self._run(commands, **how)
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if any(map(_may_repeat, errors)):
            answers, epochs = self._run(commands, **how)
            errors = [answer for answer in answers if isinstance(answer, Exception)]
        for error in errors:
            if isinstance(error, StoreError):
                raise error
            raise self._failure(error) from error
        return answers, epochs

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to writes, or StoreErrors; None where the server did not have the script."""
        self.check()
        answers, _ = self._run(commands, waits=True)
        return [self._outcome(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def _outcome(self, error: Exception) -> StoreError | None:
        if isinstance(error, exceptions.NoScriptError):
            return None
        if isinstance(error, StoreError):
            return error
        # The server has refused it, or has not answered.
        is_refused = isinstance(error, exceptions.ResponseError)
        return self._failure(error) if is_refused else self._unknown(_told(error))

    def _unknown(self, why: str) -> WriteUnknown:
        return WriteUnknown(f"{self.name} did not confirm the write: {why}; retry it under the same id")

    def _failure(self, error: Exception) -> StoreUnavailable:
        hint = next((text for kind, text in _HINTS if isinstance(error, kind)), "")
        kind = StoreBusy if isinstance(error, _MOVING) else StoreUnavailable
        return kind(f"{self.name}: {_told(error)}{hint}")

    def _refused(self, error: Exception) -> Exception:
        """What opening the store raises."""
        failure = self._failure(error)
        return ConfigurationError(str(failure)) if isinstance(error, exceptions.AuthenticationError) else failure


class Cluster(Server):
    """The servers of a cluster; each command goes to the primary that has its key."""

    is_cluster = True

    def place_of(self, key: bytes) -> str:
        with suppress(exceptions.RedisClusterException):
            return self._node_of(key).name
        return ""

    def _connect(self, address: Address, options: dict[str, Any]) -> None:
        if int(redis.__version__.partition(".")[0]) < _FIRST_SAFE:
            raise ConfigurationError(
                f"A Redis Cluster needs redis-py {_FIRST_SAFE}: pip install 'redis>={_FIRST_SAFE}'"
            )
        nodes = [ClusterNode(host, port) for host, port in address.nodes]
        try:
            self._cluster = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)
        except exceptions.RedisClusterException as error:
            cause = error.__cause__
            if isinstance(cause, exceptions.RedisError):
                raise self._refused(cause) from cause
            raise ConfigurationError(
                f"{self.name} cannot be opened: {in_one_line(cause or error)}. It may be one server "
                "('redis://host:port'), or not let its user call CLUSTER SLOTS"
            ) from None

    def _node_of(self, key: bytes) -> ClusterNode:
        """The primary that has ``key``, as far as is known. Raises RedisClusterException if none does."""
        return cast("ClusterNode", self._cluster.get_node_from_key(key))  # None only for replicas

    def _client_of(self, node: ClusterNode) -> Redis:
        client = self._cluster.get_redis_connection(node)
        client.response_callbacks.clear()
        return client

    def _clients(self) -> Sequence[Redis]:
        return list(map(self._client_of, self._cluster.get_nodes()))

    def _run(self, commands: Sequence[Command], **how: bool) -> tuple[list[Any], list[Epoch]]:
        answers: list[Any] = [None] * len(commands)
        epochs: list[Epoch] = [NO_EPOCH] * len(commands)
        waiting: Sequence[int] = range(len(commands))
        for turn in range(_TURNS):
            if turn:
                self._refresh()
            groups: dict[str, tuple[ClusterNode, list[int]]] = {}
            for at in waiting:
                try:
                    node = self._node_of(_key_in(commands[at]))
                    groups.setdefault(node.name, (node, []))[1].append(at)
                except exceptions.RedisClusterException as error:
                    answers[at] = exceptions.ClusterDownError(str(error))
            for node, places in groups.values():
                found = self._run_on(self._client_of(node), [commands[at] for at in places], **how)
                for at, answer, epoch in zip(places, *found, strict=True):
                    answers[at], epochs[at] = answer, epoch
            waiting = [at for at in waiting if isinstance(answers[at], exceptions.MovedError)]
            if not waiting:
                break
        if any(isinstance(answer, (*_LOST, exceptions.ClusterDownError)) for answer in answers):
            self._refresh()  # for the next call: a replica may have taken over
        return answers, epochs

    def _refresh(self) -> None:
        """Asks which server has what now. If nobody can say that, it stays as it was known."""
        with suppress(exceptions.RedisError, exceptions.RedisClusterException):
            self._cluster.nodes_manager.initialize()


def connect(address: Address) -> Server:
    """The server or the cluster at ``address``. Raises what `Server` raises."""
    return (Cluster if address.kind == "cluster" else Server)(address)


def _told(error: Exception) -> str:
    """What ``error`` says, without the clients that redis-py may name behind it with all that they know."""
    return in_one_line(error).partition(" : <")[0]


def _may_repeat(answer: object) -> bool:
    """Whether ``answer`` is a lost connection, so that a read is tried once more."""
    return isinstance(answer, exceptions.ConnectionError) and not isinstance(answer, exceptions.AuthenticationError)


def _key_in(command: Command) -> bytes:
    """The first key of ``command``, or what names a place as a key does."""
    return command[3] if command[0] in ("EVALSHA", "SCAN") else command[1]


def encoded(text: str) -> bytes:
    """``text`` in UTF-8. Raises StoreError for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"Redis cannot hold this: {error}") from error


def chunked(items: list[Any], size: int) -> Iterator[list[Any]]:
    """``items`` in lists of at most ``size``."""
    return (items[start : start + size] for start in range(0, len(items), size))
