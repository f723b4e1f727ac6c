"""The local model, really run."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from inference_core.embeddings import local
from inference_core.embeddings.local import DIMENSIONS, FINGERPRINT, MODEL, TOKENIZER, LocalEmbeddings
from inference_core.errors import EmbeddingError, MissingExtra


@pytest.fixture(scope="module")
def model() -> LocalEmbeddings:
    return LocalEmbeddings()


def _vectors(model: LocalEmbeddings, *texts: str) -> np.ndarray:
    return np.array(model.embed_documents(list(texts)))


def test_the_same_text_has_the_same_vector(model: LocalEmbeddings):
    one, _, other = model.embed_documents(["The user likes green tea", "x", "The user likes green tea"])
    assert one == other
    assert model.embed_query("The user likes green tea") == model.embed_query("The user likes green tea")


@pytest.mark.parametrize("text", ["tea", "", "\u6771\u4eac", "\U0001f600", "word " * 5_000, "x" * 20_000])
def test_a_vector_has_384_dimensions_and_unit_length(model: LocalEmbeddings, text: str):
    vector = np.array(model.embed_query(text))
    assert vector.shape == (DIMENSIONS,)
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)


def test_the_order_of_the_texts_is_kept_over_batches(model: LocalEmbeddings):
    texts = [f"The user has {number} cats and {'very ' * (number % 7)}many dogs" for number in range(70)]
    together = _vectors(model, *texts)
    for at in (0, 1, 31, 32, 33, 63, 64, 69):
        similarity = together @ np.array(model.embed_query(texts[at]))
        assert int(similarity.argmax()) == at
        assert similarity[at] > 0.99


def test_no_texts_have_no_vectors(model: LocalEmbeddings):
    assert model.embed_documents([]) == []


def test_text_beyond_256_tokens_is_not_read(model: LocalEmbeddings):
    long = "tea and cake " * 200
    assert model.embed_query(long) == model.embed_query(long + "Paris in spring")


@pytest.mark.parametrize(
    ("text", "paraphrase", "unrelated"),
    [
        ("The user is a vegetarian", "She does not eat any meat", "The train departs from platform nine"),
        ("He lives in Warsaw", "His home is in the capital of Poland", "The recipe needs three eggs"),
        ("Prefers short answers", "Likes replies to be brief", "The dog is called Rex"),
    ],
)
def test_a_paraphrase_is_closer_than_unrelated_text(model: LocalEmbeddings, text: str, paraphrase: str, unrelated: str):
    wanted, near, far = _vectors(model, text, paraphrase, unrelated)
    assert wanted @ near > wanted @ far + 0.2


def test_it_is_loaded_once_and_safe_for_threads(monkeypatch: pytest.MonkeyPatch):
    loads: list[int] = []
    session = local._session

    def counted() -> object:
        loads.append(1)
        return session()

    monkeypatch.setattr(local, "_session", counted)
    model = LocalEmbeddings()
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(model.embed_query("tea"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]
    assert found == [found[0]] * 4


@pytest.mark.parametrize(("constant", "entry"), [("MODEL", MODEL), ("TOKENIZER", TOKENIZER)])
def test_a_file_with_another_content_is_refused(
    monkeypatch: pytest.MonkeyPatch, constant: str, entry: tuple[str, str, str]
):
    monkeypatch.setattr(local, constant, (*entry[:2], "0" * 64))
    with pytest.raises(EmbeddingError, match="is not the one that was published"):
        LocalEmbeddings().load()


@pytest.mark.parametrize(("constant", "entry"), [("MODEL", MODEL), ("TOKENIZER", TOKENIZER)])
def test_a_file_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, constant: str, entry: tuple[str, str, str]):
    monkeypatch.setattr(local, constant, (entry[0], "no such file", entry[2]))
    with pytest.raises(EmbeddingError, match="cannot be read; install the 'local' extra again"):
        LocalEmbeddings().embed_query("tea")


@pytest.mark.parametrize("package", ["no_such_package_is_installed", "this"])
@pytest.mark.parametrize("constant", ["MODEL", "TOKENIZER"])
def test_a_package_that_is_missing_is_a_missing_extra(monkeypatch: pytest.MonkeyPatch, constant: str, package: str):
    monkeypatch.setattr(local, constant, (package, "model.onnx", "0" * 64))
    with pytest.raises(MissingExtra, match=r"inference-core-memory\[local\]"):
        LocalEmbeddings()


def test_the_fingerprint_follows_from_the_file():
    assert MODEL[2].startswith(FINGERPRINT.rpartition(":")[2])
    assert Path(MODEL[1]).suffix == ".onnx"
