"""Moving a store to another embedding model."""

from __future__ import annotations

from pathlib import Path

import mpnet_support
import pytest
from support import FailingEmbeddings, HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.__main__ import main
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.large import FINGERPRINT as LARGE
from inference_core.embeddings.large import LargeEmbeddings
from inference_core.errors import ConfigurationError, EmbeddingError, EmbeddingMismatch, MissingExtra
from inference_core.transfer import copying
from inference_core.transfer.copying import reembed

FORMER_BY_LANGUAGE = (
    "local-by-language:local:all-MiniLM-L6-v2:int8:8199be6f699a:axes-1"
    "+local-multilingual:use-multilingual-3:6bit:0db566fd0af8"
)


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


@pytest.mark.parametrize(
    "former",
    [
        pytest.param("local-multilingual:use-multilingual-3:6bit:0db566fd0af8", marks=pytest.mark.full),
        FORMER_BY_LANGUAGE,
    ],
    ids=["multilingual", "by language"],
)
def test_a_store_of_a_model_that_is_gone_still_opens(
    tmp_path: Path, former: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """An update of the package that replaced the model must not keep an application from its memories."""
    url = f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=Embedder(HashingEmbeddings(), former)) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Ada likes green tea", "facts")
    with pytest.raises(EmbeddingMismatch, match="python -m inference_core reembed"):
        open_store(url, embeddings="local-multilingual")
    with open_store(url) as store:
        assert any("inference-core reembed URL --embeddings auto" in said for said in caplog.messages)
        service = AgentMemoryStoreService(store).sync
        assert [memory.content for memory in service.recall_memories("ada", "tea")] == ["Ada likes green tea"]
        service.save_memory("ada", "Ada lives in York", "facts")
    assert main(["doctor", "--url", url]) == 1
    assert "which this version no longer has" in " ".join(capsys.readouterr().out.split())
    assert main(["reembed", url, "--embeddings", "auto"]) == 0
    assert "Embedded 2 texts." in capsys.readouterr().err
    with open_store(url) as store:
        assert store.engine.embedder is not None
        assert store.engine.embedder.wait_ready(60)
        found = AgentMemoryStoreService(store).sync.recall_memories("ada", "What does she drink?")
        assert found[0].content == "Ada likes green tea"


@pytest.mark.parametrize("is_real", [False, True], ids=["made up", "real"])
def test_recall_goes_on_while_a_larger_model_takes_a_store_over(
    is_real: bool, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process that has the store open with the smaller model, and in one that opens it half way."""
    if not is_real:
        mpnet_support.install(tmp_path / "parts", monkeypatch)
    else:
        try:
            LargeEmbeddings()
        except MissingExtra:
            pytest.skip("the files of all-mpnet-base-v2 are not installed")
    monkeypatch.setattr(copying, "EMBEDDING_PORTION", 8)
    texts = [f"Report {number} was sent to the client" for number in range(20)]
    texts[3], texts[17] = "She drinks green tea", "Her car is parked on level P3"
    found: list[tuple[str, str]] = []

    def first(service: AgentMemoryStoreService) -> tuple[str, str]:
        recall = service.sync.recall_memories
        return recall("ada", "Which tea does she drink?")[0].content, recall("ada", "the level of her car")[0].content

    with open_store(sqlite_url, embeddings="local") as store:
        assert store.engine.embedder is not None
        assert store.engine.embedder.wait_ready(60)
        service = AgentMemoryStoreService(store)
        for text in texts:
            service.sync.save_memory("ada", text, "facts")

        def stop_half_way(done: int, total: int) -> None:
            found.append(first(service))
            if done > total / 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            reembed(sqlite_url, "local-large", stop_half_way)
        with open_store(sqlite_url) as other:
            assert other.engine.embedder is not None
            assert other.engine.embedder.fingerprint == LARGE
            found.append(first(AgentMemoryStoreService(other)))
        reembed(sqlite_url, "local-large", lambda _done, _total: found.append(first(service)))
        found.append(first(service))
        assert not store.engine.backend.pending(LARGE, 1)
    with open_store(sqlite_url, embeddings="local-large") as store:
        assert store.engine.embedder is not None
        assert store.engine.embedder.wait_ready(60)
        found.append(first(AgentMemoryStoreService(store)))
    assert found == [(texts[3], texts[17])] * len(found)
    assert len(found) >= 5
