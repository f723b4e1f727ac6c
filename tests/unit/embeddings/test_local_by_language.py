"""Two models in one vector, really run."""

from __future__ import annotations

import numpy as np
import pytest

from inference_core.embeddings.factory import make_embedder
from inference_core.embeddings.local import BY_LANGUAGE_FINGERPRINT, LanguageEmbeddings
from inference_core.embeddings.local import DIMENSIONS as ENGLISH
from inference_core.embeddings.local import FINGERPRINT as LOCAL
from inference_core.embeddings.multilingual import FINGERPRINT as MULTILINGUAL

TEA = "The user likes green tea very much"
TEE = "Der Nutzer mag gr\u00fcnen Tee sehr gerne"


@pytest.fixture(scope="module")
def model() -> LanguageEmbeddings:
    return LanguageEmbeddings()


def test_each_text_has_numbers_in_its_models_part_only(model: LanguageEmbeddings):
    english, german = model.encode([TEA, TEE])
    assert np.linalg.norm(english.vector[:ENGLISH]) == pytest.approx(1, abs=1e-5)
    assert not english.vector[ENGLISH:].any()
    assert english.tokens is not None
    assert np.linalg.norm(german.vector[ENGLISH:]) == pytest.approx(1, abs=1e-5)
    assert not german.vector[:ENGLISH].any()
    assert german.tokens is None
    assert np.allclose(model.embed_documents([TEE, TEA]), [german.vector, english.vector], atol=1e-5)


def test_texts_in_the_two_languages_are_never_compared(model: LanguageEmbeddings):
    english, german = (np.array(vector) for vector in model.embed_documents([TEA, TEE]))
    assert english @ german == 0


def test_a_query_finds_texts_of_both_models(model: LanguageEmbeddings):
    model.load()
    query = np.array(model.embed_query("What does the user like to drink?"))
    far, near, fern = np.array(
        model.embed_documents(["The train is late", TEA, "Der Zug hat heute wieder viel Versp\u00e4tung"])
    )
    assert query @ near > query @ far
    assert query @ model.encode([TEE])[0].vector > query @ fern


@pytest.mark.parametrize("known", [LOCAL, MULTILINGUAL, BY_LANGUAGE_FINGERPRINT], ids=["local", "multilingual", "both"])
def test_auto_stays_with_the_model_that_made_the_vectors(known: str):
    embedder = make_embedder("auto", known)
    assert embedder is not None
    assert embedder.fingerprint == known


def test_auto_takes_both_models_for_a_new_store():
    for known in (None, "a model that is not installed"):
        embedder = make_embedder("auto", known)
        assert embedder is not None
        assert embedder.fingerprint == BY_LANGUAGE_FINGERPRINT
