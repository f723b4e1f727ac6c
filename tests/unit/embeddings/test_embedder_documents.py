"""Documents and queries as the index wants them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from inference_core.effects import run
from inference_core.embeddings.embedder import (
    ACROSS,
    DocumentVectors,
    Embedder,
    Passage,
    TextEncoding,
    embed_documents,
    embed_documents_now,
    embed_query,
    word_numbers,
)
from inference_core.errors import EmbeddingError
from inference_core.retrieval.documents import QueryVectors, passages
from inference_core.retrieval.vectors import (
    MULTILINGUAL,
    PLAIN,
    Floats,
    pack_tokens,
    pack_vectors,
    space_of,
    unpack_vectors,
)

ONLY = frozenset({PLAIN})
LONG = "The tea is green. " * 60 + "The car is red. " * 60


def _unit(number: int) -> Floats:
    return np.eye(1, 8, number % 8, dtype=np.float32)[0]


class Plain(Embeddings):
    """Unit vectors by the length of the text; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [_unit(len(text)).tolist() for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return _unit(len(text)).tolist()


class ByWord(Plain):
    """Gives a token for each word besides, at the place of the word's length."""

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        self.asked.append(texts)
        return [self._encoded(text) for text in texts]

    def encode_query(self, text: str) -> TextEncoding:
        return self._encoded(text)

    def _encoded(self, text: str) -> TextEncoding:
        words = text.lower().split()
        return TextEncoding(_unit(len(text)), _tokens(words), tuple(words))


def _tokens(words: Sequence[str]) -> Floats:
    return np.array([_unit(len(word)) for word in words], np.float32).reshape(-1, 8)


def _vector(*texts: str) -> bytes:
    return pack_vectors(np.stack([_unit(len(text)) for text in texts]))


def _both(embedder: Embedder, texts: Sequence[str], *, with_tokens: bool) -> list[DocumentVectors]:
    """What the plan gives and what the blocking call gives, which is the same."""
    given = list(map(Passage, texts))
    planned = run(embed_documents(embedder, given, None, with_tokens=with_tokens))
    assert embed_documents_now(embedder, given, with_tokens=with_tokens) == planned
    return planned


def _asked(embedder: Embedder, text: str, *, with_tokens: bool) -> QueryVectors:
    return run(embed_query(embedder, text, None, ONLY, with_tokens=with_tokens))[PLAIN]


def test_no_texts_have_no_vectors():
    assert _both(Embedder(Plain(), "f"), [], with_tokens=True) == []


def test_passages_are_embedded_together_and_belong_to_their_texts():
    model = ByWord()
    parts = passages(LONG)
    found = _both(Embedder(model, "f"), ["tea", LONG, ""], with_tokens=True)
    assert len(parts) > 4
    assert model.asked == [["tea", *parts, ""]] * 2
    assert [vectors.vector for vectors in found] == [_vector("tea"), _vector(*parts), _vector("")]
    words = [part.lower().split() for part in parts]
    assert [vectors.tokens for vectors in found] == [
        pack_tokens([_tokens(["tea"])]),
        pack_tokens(list(map(_tokens, words))),
        None,
    ]


@pytest.mark.parametrize(("model", "with_tokens"), [(ByWord(), False), (Plain(), True)], ids=["unwanted", "none"])
def test_without_tokens_there_are_vectors_only(model: Embeddings, with_tokens: bool):
    embedder = Embedder(model, "f")
    assert _both(embedder, ["tea"], with_tokens=with_tokens) == [DocumentVectors(_vector("tea"), None)]
    vector, tokens, words, weight, _ = _asked(embedder, "tea", with_tokens=with_tokens)
    assert (vector.tolist(), tokens, words, weight) == (_unit(3).tolist(), None, (), 1.0)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("what is the colour of tea ?", ["colour", "tea"]),
        ("Green ##ing the", ["green", "##ing"]),
        ("what is the", ["what", "is", "the"]),
        ("? !", ["?", "!"]),
        ("\u8336", ["\u8336"]),
        ("", []),
    ],
    ids=["content", "pieces", "stop words only", "punctuation only", "Han", "empty"],
)
def test_of_a_query_the_tokens_that_carry_meaning_are_compared(text: str, chosen: list[str]):
    vector, tokens, words, *_ = _asked(Embedder(ByWord(), "f"), text, with_tokens=True)
    assert vector.tolist() == _unit(len(text)).tolist()
    assert tokens is not None
    assert tokens.tolist() == _tokens(chosen).tolist()
    assert len(words) == len(chosen)


class Telling(Plain):
    """A model with a space for each group of languages, which says in each how much a reply needs memory."""

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        raise NotImplementedError

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        return [TextEncoding(_unit(1), space=space, necessity=1.0 + space) for space in sorted(spaces)]


@pytest.mark.parametrize(
    ("text", "spaces", "told"),
    [
        ("Where do I live?", {PLAIN}, {PLAIN: 1.0}),
        ("Where do I live?", {PLAIN, MULTILINGUAL}, {PLAIN: 1.0, MULTILINGUAL: 2.0}),
        ("Wo wohne ich eigentlich?", {PLAIN}, {PLAIN: None, MULTILINGUAL: 2.0}),
        ("danke", {PLAIN}, {PLAIN: None, MULTILINGUAL: 2.0}),
        ("Wo wohne ich eigentlich?", set[int](), dict[int, float]()),
    ],
    ids=["English", "both", "German, of English texts", "of no certain language", "of no texts"],
)
def test_a_model_that_knows_the_language_says_whether_memory_is_needed(
    text: str, spaces: set[int], told: dict[int, float | None]
):
    embedder = Embedder(Telling(), "f")
    found = run(embed_query(embedder, text, None, frozenset(spaces), with_tokens=False))
    assert {space: one.necessity for space, one in found.items()} == told


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        ("", []),
        ("my dog", [0, 1]),
        ("the ku ##ber ##net ##es cluster", [0, 1, 1, 1, 1, 2]),
        ("##ness of mind", [0, 1, 2]),
    ],
    ids=["none", "words", "pieces", "begun before"],
)
def test_the_pieces_of_a_word_have_its_number(pieces: str, numbers: list[int]):
    """A word of five pieces counted five times in late interaction."""
    assert word_numbers(pieces.split()) == numbers


def test_words_are_numbered_before_stop_words_are_left_out():
    """Else pieces of two words would become neighbours, and one word."""
    found = _asked(Embedder(ByWord(), "f"), "ku ##ber of ##fer my ##cel", with_tokens=True)
    assert found.words == [0, 0, 1, 2]


def test_a_model_that_fails_is_an_embedding_error():
    embedder = Embedder(Plain(), "f", load=lambda: None)
    with pytest.raises(EmbeddingError, match="is being loaded"):
        run(embed_documents(embedder, [Passage("tea")], None, with_tokens=True))
    with pytest.raises(EmbeddingError, match="is being loaded"):
        run(embed_query(embedder, "tea", None, ONLY, with_tokens=True))


class TwoSpaces(ByWord):
    """A model with a space for English, and one for all other languages."""

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        spaces = [PLAIN if language == "en" else MULTILINGUAL for language in languages]
        return [self._encoded(text)._replace(space=space) for text, space in zip(texts, spaces, strict=True)]

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        return [self._encoded(text)._replace(space=space) for space in sorted(spaces)]


def test_all_passages_of_a_text_are_in_the_space_of_its_language():
    """Guards that a passage of a German text that shows no language would be compared with texts in English."""
    texts = [Passage(LONG, "de"), Passage("tea", "en")]
    found = run(embed_documents(Embedder(TwoSpaces(), "f"), texts, None, with_tokens=True))
    assert [space_of(one.vector) for one in found] == [MULTILINGUAL, PLAIN]
    assert [space_of(one.tokens or b"") for one in found] == [MULTILINGUAL, PLAIN]
    assert unpack_vectors(found[0].vector).shape == (len(passages(LONG)), 8)


@pytest.mark.parametrize(
    ("text", "weight"),
    [("where is the tea?", 1.0), ("tea 7", 1.0), ("wo ist der Tee und die Tasse?", ACROSS)],
    ids=["English", "no sign", "German"],
)
def test_texts_in_english_count_less_for_a_question_in_another_language(text: str, weight: float):
    embedder = Embedder(TwoSpaces(), "f")
    found = run(embed_query(embedder, text, None, frozenset({PLAIN, MULTILINGUAL}), with_tokens=True))
    assert {space: one.weight for space, one in found.items()} == {PLAIN: weight, MULTILINGUAL: 1.0}
    assert list(run(embed_query(embedder, text, None, frozenset({MULTILINGUAL}), with_tokens=True))) == [MULTILINGUAL]
    assert run(embed_query(embedder, text, None, frozenset(), with_tokens=True)) == {}
