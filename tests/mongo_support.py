"""A MongoDB for the tests: the server of MONGODB_URL, or a substitute in this process."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import Mock, patch

import mongomock
from mongomock.collection import Collection
from mongomock.store import ServerStore
from pymongo import MongoClient

from inference_core.clock import Clock
from inference_core.stores.backends import mongodb as mongodb_module
from inference_core.stores.backends.mongodb import MongoBackend

SERVER = os.environ.get("MONGODB_URL")
KIND = "mongodb" if SERVER else "mongodb-mock"
_LOCK = threading.RLock()
_CLIENT: Any = mongomock.MongoClient


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _LOCK:
            return method(*args, **kwargs)

    return call


for _name in ("_find_and_modify", "_update", "_insert", "bulk_write", "_get_dataset"):
    setattr(Collection, _name, _one_at_a_time(getattr(Collection, _name)))
"""A server changes a document in one step; the substitute does so only if its callers take turns."""


class _Simulated(_CLIENT):
    """Clients of one simulated server, for who opens a store by its URL."""

    server = ServerStore()
    admin = Mock(command=Mock(return_value={}))

    def __init__(self, url: str, **_: Any) -> None:
        super().__init__(url, _store=self.server)

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


@contextmanager
def mongodb_url() -> Generator[str]:
    """The URL of an empty database."""
    name = f"test_{secrets.token_hex(6)}"
    if SERVER is None:
        with patch.object(mongodb_module, "MongoClient", _Simulated):
            yield f"mongodb://nowhere/{name}"
        return
    place, question, query = SERVER.partition("?")
    try:
        yield f"{place.rstrip('/')}/{name}{question}{query}"
    finally:
        with MongoClient[Any](SERVER) as client:
            client.drop_database(name)


@contextmanager
def mongodb(clock: Clock | None = None) -> Generator[MongoBackend]:
    """A backend over an empty database."""
    with mongodb_url() as url, closing(MongoBackend(url, clock=clock)) as backend:
        yield backend
