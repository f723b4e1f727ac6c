"""Embeddings of OpenAI's API: nothing but the API is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from inference_core.embeddings.embedder import Passage
from inference_core.embeddings.factory import make_embedder

REQUESTS: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        REQUESTS.append(request)
        vectors = [{"object": "embedding", "index": at, "embedding": [1.0, 0.5]} for at in range(len(request["input"]))]
        body = json.dumps({"object": "list", "data": vectors, "model": request["model"], "usage": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_no_tokenizer_is_loaded_from_the_internet(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain counted tokens with tiktoken, which loads a file: without internet there were no vectors."""
    pytest.importorskip("langchain_openai")
    tiktoken = pytest.importorskip("tiktoken")

    def refuse(name: str) -> None:
        raise OSError(f"the file of {name} would be loaded from the internet")

    monkeypatch.setattr(tiktoken, "encoding_for_model", refuse)
    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    embedder = make_embedder("openai:text-embedding-3-small")
    assert embedder is not None
    assert len(embedder.embed_now([Passage("two falcons"), Passage("a barn")])) == 2
    assert REQUESTS[-1]["input"] == ["two falcons", "a barn"]
