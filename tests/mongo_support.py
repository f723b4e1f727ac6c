"""A MongoDB for the tests: the server of MONGODB_URL, or a substitute in this process."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any

import mongomock
from mongomock.collection import Collection
from pymongo import MongoClient

from inference_core.clock import Clock
from inference_core.stores.backends.mongodb import MongoBackend

SERVER = os.environ.get("MONGODB_URL")
KIND = "mongodb" if SERVER else "mongodb-mock"
_LOCK = threading.RLock()


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _LOCK:
            return method(*args, **kwargs)

    return call


for _name in ("_find_and_modify", "_update", "_insert", "bulk_write", "_get_dataset"):
    setattr(Collection, _name, _one_at_a_time(getattr(Collection, _name)))
"""A server changes a document in one step; the substitute does so only if its callers take turns."""


@contextmanager
def mongodb(clock: Clock | None = None) -> Generator[MongoBackend]:
    """A backend over an empty database."""
    if SERVER is None:
        with closing(MongoBackend("mongodb://nowhere", clock=clock, client=mongomock.MongoClient())) as backend:
            yield backend
        return
    place, question, query = SERVER.partition("?")
    name = f"test_{secrets.token_hex(6)}"
    url = f"{place.rstrip('/')}/{name}{question}{query}"
    try:
        with closing(MongoBackend(url, clock=clock)) as backend:
            yield backend
    finally:
        with MongoClient[Any](SERVER) as client:
            client.drop_database(name)
