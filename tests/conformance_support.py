"""A factory for the conformance suite: our store at the URL that stands in the place's file."""

from __future__ import annotations

from pathlib import Path

from inference_core import MemoryStore, open_store
from inference_core.testing.conformance.subject import WatchedEmbeddings

URL_FILE = "url"


def opened(place: Path, embeddings: WatchedEmbeddings) -> MemoryStore:
    store = open_store((place / URL_FILE).read_text(encoding="utf-8"), embeddings=embeddings)
    assert store.wait_ready(30)
    return store
