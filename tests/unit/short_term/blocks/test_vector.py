"""What was said, word for word."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.store.memory import InMemoryStore
from short_term_support import USER, dialogue, in_threads, lost_words, mark_count, marker, result, stored_texts
from support import HashingEmbeddings

from inference_core import (
    AgentMemory,
    AgentMemoryStoreService,
    FlushToLongTerm,
    MemoryLifecycle,
    MemoryStore,
    VectorMemory,
    open_store,
)
from inference_core.embeddings.local import FINGERPRINT
from inference_core.errors import BlockFailed, ConfigurationError, InvalidId

POLICY = [
    ("What about equipment - does the company provide anything?", "Yes: a laptop and a chair allowance up to $300."),
    ("What if my manager initially says no?", "Ask for specific feedback, or request mediation through HR."),
    (
        "Perfect! One more question - can I work from abroad occasionally?",
        "Working from abroad has additional restrictions: - Maximum 2 weeks per year... - Approved 30 days in advance",
    ),
]


@pytest.fixture
def block(store: MemoryStore) -> VectorMemory:
    return VectorMemory(store, user_id=USER)


def test_a_message_is_taken_in_once(store: MemoryStore, block: VectorMemory):
    message = HumanMessage("The zebra is striped", id="m1")
    for _ in range(2):
        block.update("s1", message)
    assert stored_texts(store) == ["The zebra is striped"]
    assert [found.content for found in block.get("s2", "zebra")] == ["The zebra is striped"]
    assert mark_count(store.engine) == 1


def test_regression_each_vector_store_gets_every_message(store: MemoryStore):
    """The mark of the first block counted for the others, whose vector stores never got the message."""
    archives = [InMemoryVectorStore(HashingEmbeddings()) for _ in range(2)]
    blocks = [VectorMemory(name=f"archive {at}", vector_store=one) for at, one in enumerate(archives)]
    memory = AgentMemory(store, overflow=FlushToLongTerm([VectorMemory(), *blocks]), max_tokens=60, user_id=USER)
    for message in dialogue(4):
        assert memory.update("s1", message) is None
    stored = stored_texts(store)
    assert len(stored) == 6
    assert [sorted(one["text"] for one in archive.store.values()) for archive in archives] == [sorted(stored)] * 2
    memory.delete("s1")
    assert (stored_texts(store), [archive.store for archive in archives]) == ([], [{}, {}])


def test_what_was_deleted_does_not_come_back(store: MemoryStore, block: VectorMemory):
    message = HumanMessage("The zebra is striped", id="m1")
    block.update("s1", message)
    AgentMemoryStoreService(store).sync.delete_user_memories(USER)
    block.update("s1", message)
    assert stored_texts(store) == []


def test_a_session_can_be_forgotten(store: MemoryStore, block: VectorMemory):
    AgentMemoryStoreService(store).sync.save_memory(USER, "an agent's own", "interaction")
    block.update("s1", HumanMessage("one", id="m1"))
    block.update("s2", HumanMessage("two", id="m2"))
    block.delete("s1")
    block.delete("nobody's")
    assert stored_texts(store) == ["an agent's own", "two"]


def test_regression_what_waits_or_was_deleted_of_a_session_goes_with_it(store: MemoryStore):
    """Only memories were removed: what waited for the user, and the archive, still held the session word for word."""
    service = AgentMemoryStoreService(store, confirm=("episodic",))
    block, user = VectorMemory(service, user_id=USER), service.sync
    for session in ("s1", "s2"):
        block.update(session, HumanMessage(f"asked in {session}", id="m1"))
        block.update(session, HumanMessage(f"stays in {session}", id="m2"))
        block.update(session, AIMessage(f"answered in {session}", id="m3"))
        block.update(session, AIMessage(f"rejected in {session}", id="m4"))
    for one in user.list_pending(USER):
        if one.document.content.startswith("rejected"):
            user.reject_pending(USER, one.id)
    for one in user.list_memories(USER)[0]:
        if one.content.startswith("asked"):
            user.delete_memory(USER, one.id)
    lifecycle = MemoryLifecycle(service).sync
    assert len(lifecycle.forgotten(USER)) == len(user.list_pending(USER)) == 2
    block.delete("s1")
    assert [one.document.content for one in user.list_pending(USER)] == ["answered in s2"]
    assert [one.document.content for one in lifecycle.forgotten(USER)] == ["asked in s2"]
    assert stored_texts(store) == ["stays in s2"]
    block.update("s3", AIMessage("rejected in s1", id="m5"))
    assert len(user.list_pending(USER)) == 1, "what the user has rejected stays rejected"


def test_regression_what_waits_beside_a_vector_store_goes_with_its_session(store: MemoryStore):
    """Of such a block, only the documents in the vector store were removed."""
    service = AgentMemoryStoreService(store, confirm=("episodic",))
    block = VectorMemory(service, user_id=USER, vector_store=InMemoryVectorStore(HashingEmbeddings()))
    for session in ("s1", "s2", "s3"):
        block.update(session, AIMessage(f"answered in {session}", id="m1"))
    service.sync.approve_pending(USER, session_id="s2")
    block.delete("s1")
    block.delete("s2")
    assert [one.document.content for one in service.sync.list_pending(USER)] == ["answered in s3"]
    assert stored_texts(store) == []


def test_a_forgotten_session_may_be_larger_than_a_page(store: MemoryStore, block: VectorMemory):
    for at in range(12):
        block.update(
            "s1", AIMessage("\n\n".join(f"{marker(50 * at + part)} {'x' * 5_000}" for part in range(50)), id=f"m{at}")
        )
    assert len(stored_texts(store)) == 600
    block.delete("s1")
    assert stored_texts(store) == []


def test_an_empty_message_leaves_nothing(store: MemoryStore, block: VectorMemory):
    block.update("s1", HumanMessage(" \n"))
    assert (stored_texts(store), mark_count(store.engine)) == ([], 0)


@pytest.mark.parametrize("name", ["x" * 5_000, "\x01", "\ud800"], ids=["long", "controls", "surrogate"])
def test_names_that_cannot_be_stored_keep_nothing_from_leaving(store: MemoryStore, block: VectorMemory, name: str):
    block.update("\x01", result("a", "The zebra").model_copy(update={"name": name, "id": name}))
    (text,) = stored_texts(store)
    assert text.endswith("The zebra")
    block.delete("\x01")
    assert stored_texts(store) == []


def test_its_results_are_bounded(store: MemoryStore):
    block = VectorMemory(store, user_id=USER, max_results=3, max_tokens=20)
    for at in range(5):
        block.update("s1", HumanMessage(f"zebra number {at} {'word ' * 6}", id=f"m{at}"))
    assert 0 < sum(len(found.content) for found in block.get("s1", "zebra")) <= 80
    assert len(VectorMemory(store, user_id=USER, max_results=3).get("s1", "zebra")) == 3
    assert len(VectorMemory(store, user_id=USER, max_results=3).get("s1")) == 3


def test_messages_of_many_threads_are_all_there_once(store: MemoryStore, block: VectorMemory):
    def update(at: int) -> None:
        for number in range(10):
            block.update("s1", HumanMessage(marker(number), id=f"m{number}"))
            block.update("s1", HumanMessage(marker(100 + 10 * at + number), id=f"t{at}m{number}"))

    assert in_threads(*(lambda at=at: update(at) for at in range(8))) == [None] * 8
    assert len(stored_texts(store)) == 10 + 80
    assert lost_words(map(marker, [*range(10), *range(100, 180)]), block) == set()


def test_alone_it_has_to_know_where_and_whose():
    assert not VectorMemory().has_store
    with pytest.raises(ConfigurationError, match="VectorMemory has no store"):
        VectorMemory(user_id=USER).update("s1", "hi")
    with open_store("memory://", embeddings=None) as store, pytest.raises(ConfigurationError, match="No user"):
        VectorMemory(store).get("s1")
    with pytest.raises(InvalidId):
        VectorMemory(user_id="")


def sarahs(block: VectorMemory) -> VectorMemory:
    """``block`` with Sarah's conversation about remote work in it."""
    for at, (question, answer) in enumerate(POLICY):
        block.update("monday", HumanMessage(question, id=f"q{at}"))
        block.update("monday", AIMessage(answer, id=f"a{at}"))
    return block


def test_a_question_about_something_else_gets_no_passages():
    """Without a threshold, "capital of Peru" got the five least unlike passages about remote work."""
    with open_store("memory://", embeddings="local") as store:
        store.wait_ready(60)
        block = sarahs(VectorMemory(store, user_id=USER))
        while store.engine.backend.pending(FINGERPRINT, 1):
            time.sleep(0.02)
        assert block.get("tuesday", "What is the capital of Peru?") == block.get("tuesday", "capital of Peru") == []
        assert "Maximum 2 weeks" in " ".join(one.content for one in block.get("tuesday", "Can I work from abroad?"))
        everything = VectorMemory(store, user_id=USER, min_relevance=0)
        assert len(everything.get("tuesday", "capital of Peru")) == 5


def test_regression_long_passages_beside_the_best_are_recalled():
    """Each had to be as relevant as a short one: of long conversations, half of what a question needs was left out."""
    filler = "The museum visit looks better now, and nobody has asked about the newsletter for weeks."
    people = ["Viktor Halloran", "Ruben Calder", "Clara Novak", "Stefan Osei", "Jonas Brandt", "Odile Haddad"]
    with open_store("memory://", embeddings="local") as store:
        store.wait_ready(60)
        block = VectorMemory(store, user_id=USER)
        for at, name in enumerate(people):
            text = f"{filler} {filler} {name} can be reached at extension {700 + at} after four. {filler} {filler}"
            block.update("monday", HumanMessage(text, id=f"m{at}"))
        while store.engine.backend.pending(FINGERPRINT, 1):
            time.sleep(0.02)
        best, *others = block.get("tuesday", "Which number do I dial to talk to Ruben Calder?")
        assert "extension 701" in best.content
        assert len(others) == 4


def test_any_vector_store_holds_the_passages(store: MemoryStore):
    """A LangChain vector store, with whatever embeddings it has, was no place for passages."""
    vectors = InMemoryVectorStore(HashingEmbeddings())
    block = sarahs(VectorMemory(store, vector_store=vectors, user_id=USER))
    other = VectorMemory(store, vector_store=vectors, user_id="bob")
    other.update("monday", HumanMessage("Working from abroad is what bob does", id="q9"))
    assert stored_texts(store) == []
    (best, *_) = block.get("tuesday", "Working from abroad has additional restrictions")
    assert best.content == POLICY[-1][1]
    assert (best.metadata["user_id"], best.value["session_id"], best.memory_category) == (USER, "monday", "episodic")
    assert all("bob" not in one.content for one in block.get("tuesday", "what bob does abroad"))
    block.update("monday", HumanMessage(POLICY[0][0], id="q0"))  # comes again
    assert len(vectors.store) == 2 * len(POLICY) + 1
    assert block.get("tuesday") == block.get("tuesday", " ") == []
    sure = VectorMemory(store, vector_store=vectors, user_id=USER, min_relevance=0.9)
    assert [one.content for one in sure.get("tuesday", POLICY[-1][1])] == [POLICY[-1][1]]
    assert sure.get("tuesday", "capital of Peru") == []
    block.delete("monday")
    assert [one["text"] for one in vectors.store.values()] == ["Working from abroad is what bob does"]
    block.update("monday", HumanMessage(POLICY[0][0], id="q0"))  # what was deleted does not come back
    assert len(vectors.store) == 1


class Careless(InMemoryVectorStore):
    """A vector store that ignores filters, and may fail."""

    fault: Exception | None = None

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        assert kwargs["filter"] == {"owner": USER}
        return super().similarity_search_with_score(query, k)

    def add_documents(self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any) -> list[str]:
        if self.fault:
            raise self.fault
        return super().add_documents(documents, ids, **kwargs)


class Scoreless(InMemoryVectorStore):
    """A vector store that tells no scores."""

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        raise NotImplementedError

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return [document for document, _ in super().similarity_search_with_score(query, k, **kwargs)]


@pytest.mark.parametrize("least", [None, 0.0, 0.1])
def test_matches_of_a_vector_store_have_scores(store: MemoryStore, least: float | None):
    block = VectorMemory(
        store, vector_store=InMemoryVectorStore(HashingEmbeddings()), user_id=USER, min_relevance=least
    )
    block.update("s1", HumanMessage("a kiln", id="m1"))
    (match,) = block.get("s1", "a kiln")
    assert match.score == match.relevance == pytest.approx(1.0)
    scoreless = VectorMemory(
        store, vector_store=Scoreless(HashingEmbeddings()), user_id=USER, name="x", min_relevance=least
    )
    scoreless.update("s1", HumanMessage("a kiln", id="m2"))
    if least:
        with pytest.raises(BlockFailed):
            scoreless.get("s1", "a kiln")
    else:
        assert [(one.content, one.score) for one in scoreless.get("s1", "a kiln")] == [("a kiln", None)]


def test_a_vector_store_that_mixes_users_up_or_fails(store: MemoryStore):
    vectors = Careless(HashingEmbeddings())
    vectors.add_documents([Document("not by this package", metadata={"user_id": USER})])
    block = VectorMemory(store, vector_store=vectors, search_filter=lambda user: {"owner": user}, user_id=USER)
    VectorMemory(store, vector_store=vectors, user_id="bob").update("s1", HumanMessage("bob's own", id="m1"))
    assert [one.content for one in block.get("s1", "bob's own")] == ["not by this package"]
    vectors.fault = RuntimeError("no such index")
    with pytest.raises(BlockFailed, match="The block 'vector_memory' failed: RuntimeError: no such index"):
        block.update("s1", HumanMessage("a", id="m2"))
    vectors.fault = None
    block.update("s1", HumanMessage("a", id="m2"))  # it was not marked as taken in
    assert {one["text"] for one in vectors.store.values()} == {"not by this package", "bob's own", "a"}


class Scored(InMemoryVectorStore):
    """Tells relevance, as most vector stores do."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(max(score, 0.0), 1.0)


def test_a_vector_store_tells_how_relevant_its_documents_are(store: MemoryStore):
    vectors = Scored(HashingEmbeddings())
    block = VectorMemory(store, vector_store=vectors, search_filter=_own, min_relevance=0.5, user_id=USER)
    block.update("s1", HumanMessage("The zebra is striped", id="m1"))
    assert [one.content for one in block.get("s1", "The zebra is striped")] == ["The zebra is striped"]
    assert block.get("s1", "capital of Peru") == []


def _own(user: str) -> Callable[[Document], bool]:
    return lambda document: document.metadata["user_id"] == user


def test_passages_may_have_embeddings_of_their_own(store: MemoryStore):
    """A block had to take the embeddings of the agent's store."""
    given: dict[str, Any] = {}
    embeddings = HashingEmbeddings()
    block = VectorMemory(given, embeddings=embeddings, user_id=USER)
    block.update("s1", HumanMessage("The zebra is striped", id="m1"))
    with open_store(given) as own:
        assert own.engine.embedder is not None
        assert own.engine.embedder.model is embeddings
        with pytest.raises(ConfigurationError, match="This dict is open already, with other embeddings"):
            open_store(given, embeddings=None)
    foreign = VectorMemory(InMemoryStore(), embeddings=embeddings, user_id=USER)
    foreign.update("s1", HumanMessage("The zebra is striped", id="m1"))
    assert [one.content for one in foreign.get("s2", "zebra striped")] == ["The zebra is striped"]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"store": store, "embeddings": embeddings}, "needs a store that has none"),
        ({"vector_store": InMemoryVectorStore(embeddings), "embeddings": embeddings}, "embeddings of its own"),
        ({"store": InMemoryVectorStore(embeddings)}, "as vector_store="),
        ({"min_relevance": 2}, "from 0 to 1"),
    ]
    for options, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            VectorMemory(**options)
