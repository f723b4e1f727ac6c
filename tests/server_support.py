"""A server in this process, clients of it with keys of all kinds, and what it serves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from inference_core import AgentMemoryStoreService
from inference_core.effects import run
from inference_core.server.app import create_app
from inference_core.server.identity.auth import ApiKeys, Permission, create_key
from inference_core.server.identity.gate import Access

BASE = "http://localhost"
READ_WRITE = (Permission.READ, Permission.WRITE)


@dataclass
class Served:
    """The application on ``service``."""

    service: AgentMemoryStoreService
    app: FastAPI

    def key(self, user: str | None, permissions: Collection[Permission] = READ_WRITE, days: float | None = None) -> str:
        scope = self.service.scope
        return run(create_key(scope.engine, scope.clock, user=user, permissions=permissions, days=days))[1]

    def client(self, user: str | None = None, permissions: Collection[Permission] = READ_WRITE) -> httpx.AsyncClient:
        """A client with a key of ``user``; None: without a key."""
        headers = {} if user is None else {"Authorization": f"Bearer {self.key(user, permissions)}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=BASE, headers=headers)


def served(service: AgentMemoryStoreService, *, ledger: Path | None = None, **access: Any) -> Served:
    """Serves ``service`` to whoever has a key; without limits of rate unless they are given."""
    ring = ApiKeys(service.scope.engine, service.scope.clock, service.timeout)
    given: dict[str, Any] = {"checks": [ring], "rate": 1e6, "burst": 1_000_000, "failures": 1_000_000}
    return Served(service, create_app(service, Access(**given | access), ledger=ledger))
