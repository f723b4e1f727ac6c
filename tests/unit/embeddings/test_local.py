"""The local model, really run."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from inference_core.embeddings import local
from inference_core.embeddings.encoder import TOKENS_AT_ONCE
from inference_core.embeddings.local import DIMENSIONS, FINGERPRINT, MAX_TOKENS, MODEL, TOKENIZER, LocalEmbeddings
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


def test_no_call_of_the_model_takes_more_tokens_than_memory_allows(
    model: LocalEmbeddings, monkeypatch: pytest.MonkeyPatch
):
    shapes = list[tuple[int, ...]]()
    model.load()
    run = model._session.run

    def watched(names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        shapes.append(inputs["input_ids"].shape)
        return run(names, inputs)

    monkeypatch.setattr(model, "_session", SimpleNamespace(run=watched))
    model.encode(["word " * length for length in (300, 200, 3, 0, 100, 3, 5_000)] + ["tea"] * 100)
    assert sum(count for count, _ in shapes) == 107
    assert max(count * length for count, length in shapes) <= TOKENS_AT_ONCE
    assert max(length for _, length in shapes) == MAX_TOKENS
    assert len(shapes) == 6


def test_no_texts_have_no_vectors(model: LocalEmbeddings):
    assert model.embed_documents([]) == []


def test_text_beyond_256_tokens_is_not_read(model: LocalEmbeddings):
    long = "tea and cake " * 200
    assert model.embed_query(long) == model.embed_query(long + "Paris in spring")


TEXTS = ["tea", "", "The user likes green tea.", "\u6771\u4eac", "\U0001f600", "x" * 400, "word " * 5_000]
IDS = ["word", "empty", "sentence", "Han", "emoji", "long word", "long text"]


@pytest.mark.parametrize("text", TEXTS, ids=IDS)
def test_there_is_a_vector_of_unit_length_for_each_token(model: LocalEmbeddings, text: str):
    (encoding,) = model.encode([text])
    assert encoding.tokens is not None
    assert encoding.tokens.shape == (len(encoding.pieces), 128)
    assert np.linalg.norm(encoding.tokens, axis=1).tolist() == pytest.approx([1] * len(encoding.pieces), abs=1e-5)
    assert not {"[CLS]", "[SEP]", "[PAD]"}.intersection(encoding.pieces)
    assert encoding.vector.tolist() == model.embed_query(text)
    assert len(encoding.pieces) <= MAX_TOKENS - 2


def test_tokens_are_named(model: LocalEmbeddings):
    (encoding,) = model.encode(["What is Embeddings?"])
    assert encoding.pieces == ("what", "is", "em", "##bed", "##ding", "##s", "?")
    assert model.encode([""])[0].pieces == ()


def test_a_text_has_the_same_tokens_in_a_batch_as_alone(model: LocalEmbeddings):
    for text, together in zip(TEXTS, model.encode(TEXTS), strict=True):
        (alone,) = model.encode([text])
        assert alone.tokens is not None
        assert together.tokens is not None
        assert together.pieces == alone.pieces
        assert together.tokens.shape == alone.tokens.shape
        assert (together.tokens * alone.tokens).sum(axis=1).tolist() == pytest.approx([1] * len(alone.pieces), abs=0.05)
        assert float(together.vector @ alone.vector) > 0.99


def test_a_query_is_read_like_any_text(model: LocalEmbeddings):
    query, (document,) = model.encode_query("green tea"), model.encode(["green tea"])
    assert query.pieces == document.pieces
    assert query.vector.tolist() == document.vector.tolist()
    assert query.tokens is not None
    assert document.tokens is not None
    assert query.tokens.tolist() == document.tokens.tolist()


def test_a_token_is_closer_to_its_like_than_to_others(model: LocalEmbeddings):
    likes, loves, car = (encoding.tokens for encoding in model.encode(["green tea", "black tea", "a red car"]))
    assert likes is not None
    assert loves is not None
    assert car is not None
    assert likes[1] @ loves[1] > max(likes[1] @ car.T) + 0.2


def test_the_projection_keeps_a_third_of_the_dimensions(model: LocalEmbeddings):
    model.load()
    projection = model._axes
    assert projection.shape == (DIMENSIONS, 128)
    assert projection.dtype == np.float32
    np.testing.assert_allclose(projection.T @ projection, np.eye(128), atol=5e-3)


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
    opened = local.open_session

    def counted(model: Path) -> object:
        loads.append(1)
        return opened(model)

    monkeypatch.setattr(local, "open_session", counted)
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
    assert MODEL[2][:12] in FINGERPRINT.split(":")
    assert Path(MODEL[1]).suffix == ".onnx"


@pytest.mark.parametrize(
    ("needed", "needless"),
    [
        ("When does my lease end?", "Thank you so much!"),
        ("Is the vet open when I pick up Rex?", "Make that shorter, please."),
        ("Reply to the landlord about the broken boiler.", "How many metres are in a mile?"),
    ],
)
def test_it_says_whether_a_reply_needs_memory(model: LocalEmbeddings, needed: str, needless: str):
    """None of these is a text that it was fitted to. Only queries are judged."""
    high, low = (model.encode_query(text).necessity for text in (needed, needless))
    assert high is not None
    assert low is not None
    assert high > 0 > low
    assert model.encode([needed])[0].necessity is None
