"""Opens the store that the options and the settings name, for the time of a command."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from inference_core.cli.output import note, working
from inference_core.clock import time_zone
from inference_core.errors import ConfigurationError
from inference_core.stores.urls import parse_url, shown_url

if TYPE_CHECKING:
    from inference_core.embeddings.embedder import Embedder
    from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
    from inference_core.settings import MemorySettings
    from inference_core.stores.store import MemoryStore

LOADING_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store with its service. ``by_meaning``: whether recall compares meanings, not only words."""

    settings: MemorySettings
    store: MemoryStore
    service: AgentMemoryStoreService
    by_meaning: bool

    @property
    def sync(self) -> SyncMemoryService:
        """The service's methods without async."""
        return self.service.sync

    @property
    def zone(self) -> tzinfo:
        """The time zone that dates are given and shown in."""
        return time_zone(self.settings.timezone)


def memory_settings(url: str | None = None, embeddings: str | None = None) -> MemorySettings:
    """The settings of the environment; options that are given go first. Raises ConfigurationError."""
    from inference_core.settings import MemorySettings, read_settings

    given: dict[str, Any] = {"store_url": url, "embeddings": embeddings}
    return read_settings(MemorySettings, **{name: value for name, value in given.items() if value is not None})


def existing_settings(url: str | None, embeddings: str | None = None) -> MemorySettings:
    """Like `memory_settings`; raises ConfigurationError if the URL names a file that does not exist.

    So a mistyped URL creates no store.
    """
    settings = memory_settings(url, embeddings)
    path = parse_url(settings.store_url).path
    if path is not None and not path.exists():
        shown = shown_url(settings.store_url)
        raise ConfigurationError(f"There is no store at {shown} yet; save a memory, or name another --url")
    return settings


@contextmanager
def opened(
    url: str | None, agent: str | None = None, embeddings: str | None = None, *, embeds: bool, creates: bool = False
) -> Generator[Opened]:
    """The service on the store. ``embeds``: the command needs the embedding model, and waits for it.

    Raises ConfigurationError if there is no store yet and ``creates`` is not set, and what `open_store` raises.
    """
    from inference_core.services.agent_memory_service import AgentMemoryStoreService
    from inference_core.stores.factory import open_configured_store

    settings = memory_settings(url, embeddings) if creates else existing_settings(url, embeddings)
    with open_configured_store(settings, **({} if embeds else {"embeddings": None})) as store:
        by_meaning = embeds and wait_ready(store.engine.embedder)
        service = AgentMemoryStoreService.from_settings(settings, store, agent_name=agent)
        yield Opened(settings, store, service, by_meaning)


def wait_ready(embedder: Embedder | None) -> bool:
    """Waits until the embedding model is loaded; False, with a note, if there is none that answers."""
    if embedder is None:
        return False
    with working("Loading the embedding model …"):
        ready = embedder.wait_ready(LOADING_S)
    if not ready:
        note(f"{embedder.failure or 'The embedding model is not ready'}; recall is by words alone")
    return ready
