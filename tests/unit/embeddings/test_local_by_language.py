"""Two models, each with a vector space of its own, really run."""

from __future__ import annotations

import mpnet_support
import numpy as np
import pytest

from inference_core.embeddings.by_language import FINGERPRINT as BY_LANGUAGE
from inference_core.embeddings.by_language import LanguageEmbeddings
from inference_core.embeddings.factory import make_embedder
from inference_core.embeddings.local import FINGERPRINT as LOCAL
from inference_core.embeddings.local import LocalEmbeddings
from inference_core.embeddings.multilingual import FINGERPRINT as OTHERS
from inference_core.embeddings.multilingual import MultilingualEmbeddings
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN

TEA = "The user likes green tea very much"
TEE = "Der Nutzer mag gr\u00fcnen Tee sehr gerne"


@pytest.fixture(scope="module")
def model() -> LanguageEmbeddings:
    return LanguageEmbeddings()


def test_each_text_is_encoded_by_the_model_for_its_language(model: LanguageEmbeddings):
    english, german, short = model.encode_in([TEA, TEE, "Rex: 3 km"], ["en", "de", ""])
    assert [one.space for one in (english, german, short)] == [PLAIN, MULTILINGUAL, PLAIN]
    assert english.vector.tolist() == pytest.approx(LocalEmbeddings().encode([TEA])[0].vector.tolist(), abs=1e-5)
    assert german.vector.tolist() == pytest.approx(MultilingualEmbeddings().encode([TEE])[0].vector.tolist(), abs=1e-5)
    assert english.tokens is not None
    assert german.tokens is not None


def test_a_query_is_encoded_in_the_wanted_spaces_only(model: LanguageEmbeddings):
    """Guards the time of a question to a user all of whose memories are in English."""
    assert [one.space for one in model.encode_query_in(TEA, frozenset({PLAIN}))] == [PLAIN]
    assert [one.space for one in model.encode_query_in(TEA, frozenset({PLAIN, MULTILINGUAL}))] == [PLAIN, MULTILINGUAL]
    assert model.encode_query_in(TEA, frozenset()) == []


def test_as_plain_embeddings_texts_in_the_two_languages_are_never_compared(model: LanguageEmbeddings):
    english, german = (np.array(vector) for vector in model.embed_documents([TEA, TEE]))
    assert english @ german == 0
    query = np.array(model.embed_query("What does the user like to drink?"))
    far, fern = model.embed_documents(["The train is late", "Der Zug hat heute wieder viel Versp\u00e4tung"])
    assert query @ english > query @ np.array(far)
    assert query @ german > query @ np.array(fern)


@pytest.mark.parametrize("known", [LOCAL, OTHERS, BY_LANGUAGE], ids=["local", "multilingual", "both"])
def test_auto_stays_with_the_model_that_made_the_vectors(known: str):
    embedder = make_embedder("auto", known)
    assert embedder is not None
    assert embedder.fingerprint == known


def test_auto_takes_both_models_for_a_new_store(monkeypatch: pytest.MonkeyPatch):
    mpnet_support.uninstall(monkeypatch)
    for known in (None, "a model that is not installed"):
        embedder = make_embedder("auto", known)
        assert embedder is not None
        assert embedder.fingerprint == BY_LANGUAGE
