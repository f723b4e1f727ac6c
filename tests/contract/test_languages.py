"""A model with a vector space for English and one for all other languages, behind a store."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.embeddings.embedder import Embedder, TextEncoding
from inference_core.ingestion.verbatim import ingest
from inference_core.outbox.messages import ConversationMessage, Role, Transcript
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, space_of
from inference_core.transfer.copying import reembed

ENGLISH = ["Ada likes green tea in the morning", "Ada has a dog called Rex", "Ada works from home on Fridays"]
GERMAN = ["Ada mag am Morgen gr\u00fcnen Tee", "Ada hat einen Hund, der Rex hei\u00dft", "Ada ist am Freitag nicht da"]
NO_SIGN = "Rex: 3 km"


class ByLanguage(HashingEmbeddings):
    """Notes in which spaces queries are asked for; fails while ``is_away``."""

    def __init__(self) -> None:
        self.asked: list[frozenset[int]] = []
        self.is_away = False

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        if self.is_away:
            raise ConnectionError
        return [
            self._encoded(text, PLAIN if language in ("", "en") else MULTILINGUAL)
            for text, language in zip(texts, languages, strict=True)
        ]

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        self.asked.append(spaces)
        return [self._encoded(text, space) for space in sorted(spaces)]

    def _encoded(self, text: str, space: int) -> TextEncoding:
        return TextEncoding(np.array(self.embed_query(text), np.float32), space=space)


@pytest.fixture
def model() -> ByLanguage:
    return ByLanguage()


@pytest.fixture
def store(model: ByLanguage, sqlite_url: str) -> Iterator[MemoryStore]:
    with open_store(sqlite_url, embeddings=Embedder(model, "by-language")) as store:
        yield store


def spaces(store: MemoryStore) -> dict[str, int]:
    """The space of each text's vectors, once all have some."""
    backend = store.engine.backend
    deadline = time.monotonic() + 10
    while backend.pending("by-language", 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    changes = [change for namespace in backend.namespaces() for change in backend.changes(namespace, 0)]
    documents = [change.document for change in changes if change.document]
    return {document.text: space_of(document.vector or b"") for document in documents}


def test_each_text_is_in_the_space_of_its_language(store: MemoryStore):
    service = AgentMemoryStoreService(store).sync
    for text in (*ENGLISH, *GERMAN):
        service.save_memory("ada", text)
    assert spaces(store) == dict.fromkeys(ENGLISH, PLAIN) | dict.fromkeys(GERMAN, MULTILINGUAL)


@pytest.mark.parametrize("others", [GERMAN, ENGLISH, []], ids=["German", "English", "nothing"])
def test_a_text_without_a_sign_of_its_language_is_where_most_of_its_scope_is(store: MemoryStore, others: list[str]):
    """Guards that two such texts among fifty counted as English, and changed how all the others were ranked."""
    service = AgentMemoryStoreService(store).sync
    for text in others:
        service.save_memory("ada", text)
    service.save_memory("bob", "Bob is glad that the sun is out")
    service.save_memory("ada", NO_SIGN)
    assert spaces(store)[NO_SIGN] == (MULTILINGUAL if others == GERMAN else PLAIN)


def test_it_is_there_as_well_if_it_gets_its_vectors_later(store: MemoryStore, model: ByLanguage):
    service = AgentMemoryStoreService(store).sync
    model.is_away = True
    for text in (NO_SIGN, *GERMAN):
        service.save_memory("ada", text)
    model.is_away = False
    store.engine.embed_later()
    assert spaces(store) == dict.fromkeys([NO_SIGN, *GERMAN], MULTILINGUAL)


def test_it_is_there_as_well_if_many_come_at_once(store: MemoryStore):
    messages = [ConversationMessage(session_id="s", role=Role.USER, text=text, id=text) for text in (NO_SIGN, *GERMAN)]
    for _ in ingest(AgentMemoryStoreService(store).scope, "ada", Transcript(messages, len(messages))):
        pass
    assert set(spaces(store).values()) == {MULTILINGUAL}


def test_a_store_that_is_embedded_anew_has_each_text_in_its_space(sqlite_url: str):
    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store).sync
        for text in (NO_SIGN, *GERMAN):
            service.save_memory("ada", text)
    reembed(sqlite_url, Embedder(ByLanguage(), "by-language"))
    with open_store(sqlite_url, embeddings=Embedder(ByLanguage(), "by-language")) as store:
        assert spaces(store) == dict.fromkeys([NO_SIGN, *GERMAN], MULTILINGUAL)


def test_a_question_is_embedded_only_where_the_user_has_memories(store: MemoryStore, model: ByLanguage):
    """Guards the time of a reply: a second model would double it for users who write in one language only."""
    service = AgentMemoryStoreService(store).sync
    for text in ENGLISH:
        service.save_memory("ada", text)
        service.save_memory("eva", text)
    for text in GERMAN:
        service.save_memory("bob", text)
        service.save_memory("eva", text)
    found = {user: service.recall_memories(user, "Rex the dog", 2) for user in ("ada", "bob", "eva", "nobody")}
    both = frozenset({PLAIN, MULTILINGUAL})
    assert model.asked == [frozenset({PLAIN}), frozenset({MULTILINGUAL}), both, frozenset()]
    assert found["ada"][0].content == ENGLISH[1]
    assert found["bob"][0].content == GERMAN[1]
    assert {memory.content for memory in found["eva"]} == {ENGLISH[1], GERMAN[1]}
    assert not found["nobody"]
