"""Where a store in Redis is: the URLs of a server, of what Sentinels watch and of a cluster, and clients of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from inference_core.errors import ConfigurationError, MissingExtra

try:
    import redis
    from redis import Redis, RedisCluster
    from redis.connection import parse_url  # pyright: ignore[reportUnknownVariableType]
    from redis.sentinel import SentinelConnectionPool
except ImportError as error:
    raise MissingExtra("A store in Redis", "redis") from error

DEFAULT_PREFIX: Final = "inference_core:"
HELP: Final = (
    "A Redis URL looks like 'redis://host:6379/0', 'rediss://host:6380/0', 'unix:///path/redis.sock?db=0', "
    "'redis+sentinel://host1:26379,host2:26379/service/0' or 'redis+cluster://host1:6379,host2:6379'"
)
_SCHEMES: Final = frozenset(
    ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
)
_PORTS: Final = {"": 6379, "cluster": 6379, "sentinel": 26379}
_LOGIN: Final = frozenset(("username", "password"))
_OPTIONS: Final = frozenset(
    ("db", "client_name", "socket_timeout", "socket_connect_timeout", "health_check_interval", *_LOGIN)
)
_OF_SENTINELS: Final = "sentinel_"
_OF_CLIENT: Final = frozenset(("host", "port", "path", "db", "credential_provider", *_LOGIN))
_NONE: Final[Mapping[str, Any]] = {}


class Address(NamedTuple):
    """How to reach a store: what redis-py's connections take as ``options``, and the prefix of the store's keys.

    ``kind`` is "" for a single server, "cluster", or "sentinel"; the last two have ``nodes`` (host and port), of which
    one that answers will do. Sentinels call the primary ``service``. Writes wait for ``wait`` replicas.
    """

    options: Mapping[str, Any]
    prefix: str = DEFAULT_PREFIX
    wait: int = 0
    kind: str = ""
    nodes: Sequence[tuple[str, int]] = ()
    service: str = ""
    of_sentinels: Mapping[str, Any] = _NONE

    @property
    def name(self) -> str:
        """The store's URL without user and password."""
        kept = {} if self.prefix == DEFAULT_PREFIX else {"prefix": self.prefix}
        db = int(self.options.get("db", 0))
        if "path" in self.options:
            return f"unix://{quote(self.options['path'])}?{urlencode({'db': db} | kept)}"
        nodes = self.nodes or [(self.options.get("host", "localhost"), self.options.get("port", _PORTS[""]))]
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in nodes)
        scheme = f"{'rediss' if is_encrypted(self.options) else 'redis'}{'+' if self.kind else ''}{self.kind}"
        path = {"": f"/{db}", "cluster": "", "sentinel": f"/{quote(self.service)}/{db}"}[self.kind]
        return f"{scheme}://{hosts}{path}{'?' if kept else ''}{urlencode(kept)}"


def parse_address(url: str) -> Address:
    """The parts of a store's URL. Raises ConfigurationError, whose message holds no password."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        wait = int(given.pop("wait", "0"))
    except ValueError:
        raise ConfigurationError(HELP) from None
    if parts.scheme not in _SCHEMES or wait < 0:
        raise ConfigurationError(HELP)
    scheme, _, kind = parts.scheme.partition("+")
    prefix = given.pop("prefix", DEFAULT_PREFIX)
    of_sentinels = {name: given.pop(_OF_SENTINELS + name) for name in _LOGIN if _OF_SENTINELS + name in given}
    unknown = sorted(name for name in given if name not in _OPTIONS and not name.startswith("ssl_"))
    if unknown or (of_sentinels and kind != "sentinel"):
        names = ", ".join(unknown) or f"{_OF_SENTINELS}{min(of_sentinels)}"
        raise ConfigurationError(f"Unknown options of a Redis URL: {names}. {HELP}")
    login, at, hosts = parts.netloc.rpartition("@")
    first = hosts.split(",")[0] if kind else hosts
    service, _, db = parts.path[1:].partition("/") if kind == "sentinel" else ("", "", parts.path[1:])
    path = f"/{db}" if parts.path else ""
    try:
        options = cast("dict[str, Any]", parse_url(f"{scheme}://{login}{at}{first}{path}?{urlencode(given)}"))
        split = [urlsplit(f"//{host}") for host in hosts.split(",")]
        nodes = [(one.hostname or "localhost", one.port or _PORTS[kind]) for one in split] if kind else ()
    except ValueError:
        raise ConfigurationError(HELP) from None
    if not kind:
        return Address(options, prefix, wait)
    return _of_many(kind, nodes, options, prefix, wait, unquote(service), of_sentinels)


def address_of(client: Redis | RedisCluster) -> Address:
    """The server or cluster that ``client`` is connected to. Raises ConfigurationError if that is not known."""
    if isinstance(client, RedisCluster):
        manager: Any = client.nodes_manager
        nodes = [(node.host, node.port) for node in manager.startup_nodes.values()]
        return _of_many("cluster", nodes, _kept(manager.connection_kwargs) | {"address_remap": manager.address_remap})
    pool: Any = client.connection_pool
    given = _kept(pool.connection_kwargs)
    if issubclass(pool.connection_class, redis.SSLConnection):
        given["connection_class"] = redis.SSLConnection
    if issubclass(type(pool), SentinelConnectionPool):
        sentinels: Any = pool.sentinel_manager
        nodes = [(one["host"], one["port"]) for one in map(_options_of, sentinels.sentinels)]
        of_sentinels = _kept(sentinels.sentinel_kwargs)
        return _of_many("sentinel", nodes, given, service=pool.service_name, of_sentinels=of_sentinels)
    if not {"host", "path"} & given.keys():
        raise ConfigurationError(f"The address of this {type(client).__name__} is not known. {HELP}")
    return Address(given)


def _of_many(
    kind: str,
    nodes: Sequence[tuple[str, int]],
    options: Mapping[str, Any],
    prefix: str = DEFAULT_PREFIX,
    wait: int = 0,
    service: str = "",
    of_sentinels: Mapping[str, Any] = _NONE,
) -> Address:
    """The address of what several ``nodes`` know. Raises ConfigurationError."""
    if kind == "sentinel" and not service:
        raise ConfigurationError(f"Name the service that the Sentinels watch. {HELP}")
    if kind == "cluster" and int(options.get("db", 0) or 0):
        raise ConfigurationError("A Redis Cluster has only database 0; stores with other prefixes may share it")
    if kind == "cluster" and "{" in prefix:
        raise ConfigurationError("The prefix of a store in a Redis Cluster has no '{': it would keep all in one slot")
    taken = {"host", "port", "connection_class", *(["db"] if kind == "cluster" else [])}
    kept = {name: value for name, value in options.items() if name not in taken} | {"ssl": is_encrypted(options)}
    return Address(kept, prefix, wait, kind, nodes, service, of_sentinels)


def _options_of(client: Redis) -> Mapping[str, Any]:
    pool: Any = client.connection_pool
    return pool.connection_kwargs


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a client's connections know of the server and their login; its timeouts are its own."""
    kept = {name: options[name] for name in options if name in _OF_CLIENT or name.startswith("ssl")}
    if "path" in kept:
        kept["connection_class"] = redis.UnixDomainSocketConnection
    return kept


def is_encrypted(options: Mapping[str, Any]) -> bool:
    """Whether connections with these ``options`` use TLS."""
    return bool(options.get("ssl")) or options.get("connection_class") is redis.SSLConnection
