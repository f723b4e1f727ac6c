"""Connections to one Redis server. A read is repeated once if its connection was lost; a write is sent only once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreError,
    StoreUnavailable,
    WriteUnknown,
    in_one_line,
)
from inference_core.retrieval.documents import NO_EPOCH, Epoch

try:
    import redis
    from redis import Redis, exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise MissingExtra("A store in Redis", "redis") from error

DEFAULT_PREFIX: Final = "inference_core:"
TIMEOUT_S: Final = 5.0
_CONNECTIONS: Final = 50
_OPTIONS: Final = frozenset(
    ("db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout", "health_check_interval")
)
_OF_CLIENT: Final = frozenset(("host", "port", "path", "db", "username", "password", "credential_provider"))
_HELP: Final = "A Redis URL looks like 'redis://host:6379/0', 'rediss://host:6380/0' or 'unix:///path/redis.sock?db=0'"
_NO_CLUSTER: Final = "a store needs one primary server: Redis Cluster does not apply a batch as a whole"
_HINTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (exceptions.AuthenticationError, "; check user and password in the URL: redis://user:password@host:6379/0"),
    (exceptions.NoPermissionError, "; allow its user EVALSHA, SCRIPT LOAD and all keys with the store's prefix"),
    (exceptions.ReadOnlyError, "; this is a replica, name the primary in the URL"),
    (exceptions.AskError, f"; {_NO_CLUSTER}"),
    (exceptions.ClusterDownError, f"; {_NO_CLUSTER}"),
    (exceptions.ClusterCrossSlotError, f"; {_NO_CLUSTER}"),
)
Command = Sequence[Any]
_HISTORY: Final = re.compile(rb"master_replid:(\w+)")
"""A server has a new one after each start, and whenever it became a primary or the replica of another one."""
_REWRITING: Final = re.compile(rb"aof_rewrite_(?:in_progress|scheduled):1")


class Address(NamedTuple):
    """The URL of the server as redis-py takes it, the prefix of the store's keys, and what a client adds to the URL."""

    url: str
    prefix: str
    options: Mapping[str, Any] = {}


def parse_address(url: str) -> Address:
    """The parts of a store's URL. Raises ConfigurationError, whose message holds no password."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        raise ConfigurationError(_HELP) from None
    if "+" in parts.scheme:
        raise ConfigurationError(f"{parts.scheme}:// cannot be opened: {_NO_CLUSTER}. {_HELP}")
    prefix = options.pop("prefix", DEFAULT_PREFIX)
    unknown = sorted(name for name in options if name not in _OPTIONS and not name.startswith("ssl_"))
    if unknown:
        raise ConfigurationError(f"Unknown options of a Redis URL: {', '.join(unknown)}. {_HELP}")
    return Address(f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(options)}", prefix)


def address_of(client: Redis) -> Address:
    """The server that ``client`` is connected to. Raises ConfigurationError if it follows a Sentinel or a cluster."""
    pool = client.connection_pool
    given: dict[str, Any] = dict(pool.connection_kwargs)
    if not {"host", "path"} & given.keys() or "connection_pool" in given:
        raise ConfigurationError(f"The address of this {type(client).__name__} is not known. {_HELP}")
    is_encrypted = issubclass(pool.connection_class, redis.SSLConnection)
    scheme = "unix" if "path" in given else "rediss" if is_encrypted else "redis"
    options = {name: given[name] for name in given if name in _OF_CLIENT or name.startswith("ssl_")}
    return Address(f"{scheme}://", DEFAULT_PREFIX, options)


class Server:
    """A pool of connections to the server at ``address``; safe for threads.

    Raises ConfigurationError for a malformed URL, a refused login and Redis Cluster, StoreUnavailable if nothing
    answers.
    """

    def __init__(self, address: Address) -> None:
        self._closed = False
        try:
            self._pool = redis.BlockingConnectionPool.from_url(
                address.url,
                **address.options,
                max_connections=_CONNECTIONS,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
            # The store's URL without user and password.
            kept = {} if address.prefix == DEFAULT_PREFIX else {"prefix": address.prefix}
            options: dict[str, Any] = self._pool.connection_kwargs
            db = int(options.get("db", 0))
            if "path" in options:
                self.name = f"unix://{quote(options['path'])}?{urlencode({'db': db} | kept)}"
            else:
                host, port = options.get("host", "localhost"), options.get("port", 6379)
                place = f"{f'[{host}]' if ':' in host else host}:{port}/{db}{'?' if kept else ''}{urlencode(kept)}"
                self.name = f"{address.url.partition(':')[0]}://{place}"
            self._client = redis.Redis(connection_pool=self._pool)
            self._client.response_callbacks.clear()
            (facts,) = self._run([("INFO", "cluster")])
        except (ValueError, TypeError):
            raise ConfigurationError(_HELP) from None
        except exceptions.AuthenticationError as error:
            raise ConfigurationError(str(self._failure(error))) from None
        except exceptions.RedisError as error:
            raise self._failure(error) from error
        self.may_inform = isinstance(facts, bytes)
        if isinstance(facts, bytes) and b"cluster_enabled:1" in facts:
            self.close()
            raise ConfigurationError(f"{self.name} cannot be opened: {_NO_CLUSTER}")

    def ask(self, commands: Sequence[Command], *, together: bool = False) -> list[Any]:
        """The answers to reads; ``together``: as of one moment. Raises StoreUnavailable."""
        answers = self._answers(commands, together=together)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise self._failure(answer) from answer
        return answers

    def ask_in_epoch(self, commands: Sequence[Command], *, together: bool = False) -> tuple[list[Any], Epoch]:
        """Like `ask`, and the epoch of the server that has answered; none if the user may not ask for it."""
        if not self.may_inform:
            return self.ask(commands, together=together), NO_EPOCH
        *answers, facts = self.ask([*commands, ("INFO", "replication")], together=together)
        found = _HISTORY.search(facts)
        return answers, found[1].decode() if found else NO_EPOCH

    def setting(self, name: str) -> str:
        """A setting of the server, "" if it does not disclose it. Raises StoreUnavailable."""
        (answer,) = self._answers([("CONFIG", "GET", name)])
        return "" if not answer or isinstance(answer, exceptions.RedisError) else answer[1].decode()

    def tell(self, command: Command) -> None:
        """Sends one write. Raises StoreUnavailable, WriteUnknown if the answer was lost."""
        (answer,) = self._sent([command])
        if isinstance(answer, exceptions.RedisError):
            raise self._failure(answer) from answer

    def evaluate(self, script: str, calls: Sequence[Command]) -> list[Any]:
        """The answer of ``script`` to each call, or a StoreUnavailable; 0 if the server did not have the script.

        Raises WriteUnknown if the answers were lost.
        """
        digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
        answers = self._sent([("EVALSHA", digest, *call) for call in calls])
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            self.tell(("SCRIPT", "LOAD", script))
        for at, answer in enumerate(answers):
            if isinstance(answer, exceptions.NoScriptError):
                answers[at] = 0
            elif isinstance(answer, exceptions.RedisError):
                answers[at] = self._failure(answer)
        return answers

    def rewrite_log(self, wait_s: float) -> None:
        """Has the server write its append-only file anew. Raises StoreUnavailable if that takes longer."""
        until = time.monotonic() + wait_s
        self.ask([("BGREWRITEAOF",)])
        pause = 0.01
        while _REWRITING.search(state := self.ask([("INFO", "persistence")])[0]):
            if time.monotonic() > until:
                raise StoreUnavailable(f"{self.name} has not written its append-only file anew in {wait_s:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        if b"aof_last_bgrewrite_status:ok" not in state:
            raise StoreUnavailable(f"{self.name} could not write its append-only file anew; its log says why")

    def check(self) -> None:
        """Raises StoreUnavailable after `close`."""
        if self._closed:
            raise StoreUnavailable("The store is closed")

    def close(self) -> None:
        """Closes idle connections now, and the others after use."""
        self._closed = True
        self._pool.disconnect(inuse_connections=False)

    def _answers(self, commands: Sequence[Command], *, together: bool = False, tries: int = 2) -> list[Any]:
        self.check()
        try:
            return self._run(commands, together=together)
        except exceptions.RedisError as error:
            is_refused = isinstance(error, exceptions.AuthenticationError)
            if tries > 1 and isinstance(error, exceptions.ConnectionError) and not is_refused:
                return self._answers(commands, together=together, tries=tries - 1)
            raise self._failure(error) from error

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        self.check()
        try:
            return self._run(commands)
        except exceptions.RedisError as error:
            raise WriteUnknown(
                f"{self.name} did not confirm the write: {in_one_line(error)}; retry it under the same id"
            ) from error

    def _run(self, commands: Sequence[Command], *, together: bool = False) -> list[Any]:
        try:
            with self._client.pipeline(transaction=together) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return pipeline.execute(raise_on_error=False)
        finally:
            if self._closed:
                self._pool.disconnect(inuse_connections=False)

    def _failure(self, error: Exception) -> StoreUnavailable:
        hint = next((text for kind, text in _HINTS if isinstance(error, kind)), "")
        return StoreUnavailable(f"{self.name}: {in_one_line(error)}{hint}")


def encoded(text: str) -> bytes:
    """``text`` in UTF-8. Raises StoreError for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"Redis cannot hold this: {error}") from error


def chunked(items: list[Any], size: int) -> Iterator[list[Any]]:
    """``items`` in lists of at most ``size``."""
    return (items[start : start + size] for start in range(0, len(items), size))
