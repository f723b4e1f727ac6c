"""Opens the store that the options and the settings name, for the time of a command."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from inference_core.cli.output import note, working
from inference_core.errors import ConfigurationError
from inference_core.stores.urls import parse_url, shown_url

if TYPE_CHECKING:
    from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
    from inference_core.settings import MemorySettings
    from inference_core.stores.store import MemoryStore

LOADING_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store with its service; ``by_meaning``: whether recall is by more than words."""

    settings: MemorySettings
    store: MemoryStore
    service: AgentMemoryStoreService
    by_meaning: bool

    @property
    def sync(self) -> SyncMemoryService:
        """The service's methods without async."""
        return self.service.sync


def memory_settings(url: str | None = None, embeddings: str | None = None) -> MemorySettings:
    """The settings of the environment; options that are given go first. Raises ConfigurationError."""
    from inference_core.settings import MemorySettings, read_settings  # noqa: PLC0415 - slow to import

    given: dict[str, Any] = {"store_url": url, "embeddings": embeddings}
    return read_settings(MemorySettings, **{name: value for name, value in given.items() if value is not None})


@contextmanager
def opened(
    url: str | None, agent: str | None = None, embeddings: str | None = None, *, embeds: bool, creates: bool = False
) -> Generator[Opened]:
    """The service on the store. ``embeds``: the embedding model is needed, and waited for.

    Raises ConfigurationError if there is no store yet and ``creates`` is not set, and what `open_store` raises.
    """
    from inference_core.services.agent_memory_service import AgentMemoryStoreService  # noqa: PLC0415 - slow to import
    from inference_core.stores.factory import open_configured_store  # noqa: PLC0415 - slow to import

    settings = memory_settings(url, embeddings)
    if not creates:
        check_exists(settings.store_url)
    options = {} if embeds else {"embeddings": None}
    with open_configured_store(settings, **options) as store:
        ready = embeds and _wait_ready(store)
        service = AgentMemoryStoreService.from_settings(settings, store, agent_name=agent)
        yield Opened(settings, store, service, ready)


def check_exists(url: str) -> None:
    """Raises ConfigurationError if ``url`` names a file that is not there, so that a typing error makes no new one."""
    path = parse_url(url).path
    if path is not None and not path.exists():
        raise ConfigurationError(f"There is no store at {shown_url(url)} yet; save a memory, or name another --url")


def _wait_ready(store: MemoryStore) -> bool:
    embedder = store.engine.embedder
    if embedder is None:
        return False
    with working("Loading the embedding model …"):
        ready = store.wait_ready(LOADING_S)
    if not ready:
        note(f"{embedder.failure or 'The embedding model is not ready'}; recall is by words alone")
    return ready
