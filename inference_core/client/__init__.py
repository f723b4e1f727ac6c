"""A client of ``inference-core serve``, with the methods of the service."""

from inference_core.errors import MissingExtra

try:
    from inference_core.client.memory_client import MemoryClient, MemoryVerbs, SyncMemoryClient
except ModuleNotFoundError as missing:
    if missing.name != "httpx":
        raise
    raise MissingExtra("MemoryClient", "client") from missing

__all__ = ["MemoryClient", "MemoryVerbs", "SyncMemoryClient"]
