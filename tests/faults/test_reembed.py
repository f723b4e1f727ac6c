"""Moving a store to another embedding model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import FailingEmbeddings, HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.__main__ import main
from inference_core.errors import ConfigurationError, EmbeddingError, EmbeddingMismatch
from inference_core.transfer.copying import reembed


class Other(HashingEmbeddings):
    dimensions = 32


@pytest.fixture
def url(sqlite_url: str) -> str:
    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store).sync
        for number in range(70):
            service.save_memory("ada", f"fact {number}", "facts")
    return sqlite_url


def test_another_model_is_refused_until_the_store_was_embedded_anew(url: str) -> None:
    with pytest.raises(EmbeddingMismatch, match="python -m inference_core reembed"):
        open_store(url, embeddings=Other())
    heard: list[tuple[int, int]] = []
    assert reembed(url, Other(), lambda done, total: heard.append((done, total))) == 70
    assert heard[-1] == (70, 70)
    assert reembed(url, Other()) == 0
    with open_store(url, embeddings=Other()) as store:
        assert store.search(("ada",), query="fact 7", limit=1)[0].value["content"] == "fact 7"


def test_a_model_that_does_not_answer_changes_nothing(url: str) -> None:
    with pytest.raises(EmbeddingError):
        reembed(url, FailingEmbeddings())
    open_store(url, embeddings=HashingEmbeddings()).close()


def test_a_store_is_never_embedded_by_nothing(url: str) -> None:
    with pytest.raises(ConfigurationError):
        reembed(url, None)


def test_the_command_says_what_it_did(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reembed", url, "--embeddings", "local"]) == 0
    assert "Embedded 70 texts." in capsys.readouterr().err
    assert main(["reembed", f"sqlite:///{tmp_path}/memory.db", "--embeddings", "nonsense"]) == 1
    assert "Unknown embeddings" in capsys.readouterr().err
