"""Recall that follows links: to whom a query names, and from the best memories to what they share something with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService, MemoryStoreDocument
from inference_core.effects import run
from inference_core.memory.record import MemoryLink
from inference_core.retrieval.ranking import ABOUT
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.services.operations.scope import find, put_of
from inference_core.testing import FrozenClock

U = "ada"
NOISE = ("Likes green tea", "Owns a small boat", "Runs on Sundays", "Collects stamps")


@pytest.fixture
def service(any_store: BaseStore, clock: FrozenClock) -> SyncMemoryService:
    """Of any store, without embeddings."""
    return AgentMemoryStoreService(any_store, agent_name="planner", clock=clock).sync


def _save(service: SyncMemoryService, *contents: str, user: str = U, kind: str = "facts", **options: Any) -> list[str]:
    return [service.save_memory(user, content, kind, **options) for content in contents]


def _contents(documents: Sequence[MemoryStoreDocument]) -> list[str]:
    return [document.content for document in documents]


def test_a_second_hop_finds_what_shares_no_word_with_the_query(service: SyncMemoryService):
    sister, home, *_ = _save(service, "My sister is called Ren\u00e9", "Rene's flat lies in Hamburg", *NOISE)
    assert _contents(service.recall_memories(U, "sister")) == ["My sister is called Ren\u00e9"]
    first, second = service.recall_memories(U, "sister", links=True, explain=True)
    assert (first.id, second.id) == (sister, home)
    assert second.links == (MemoryLink("ren\u00e9", sister),)
    assert str(second.links[0]) == f"linked through 'ren\u00e9' to memory {sister}"
    assert second.explanation is not None
    assert second.explanation["links"] > 0
    assert second.score == pytest.approx(sum(second.explanation.values()), abs=1e-4)
    assert second.relevance == 0
    assert service.recall_memories(U, "sister", links=True)[1].explanation is None
    assert [one.id for one in service.recall_memories(U, "sister", 1, links=True)] == [sister]


def test_links_stay_with_the_user_the_scope_the_kind_and_the_category(service: SyncMemoryService, any_store: BaseStore):
    _save(service, "My sister is called Ida", *NOISE)
    _save(service, "Ida moved to Oslo", "My sister Ida hides a secret", user="bob")
    _save(service, "Ida moved to Rome", kind="goals")
    other = AgentMemoryStoreService(any_store, agent_name="writer", clock=service.scope.clock).sync
    _save(other, "Ida was visited by the writer", kind="context")
    _save(service, "Ida was visited by the planner", kind="context")

    def found(**options: Any) -> set[str]:
        return set(_contents(service.recall_memories(U, "sister", links=True, **options)))

    assert found() == {"My sister is called Ida", "Ida moved to Rome", "Ida was visited by the planner"}
    assert found(category="semantic") == {"My sister is called Ida", "Ida moved to Rome"}
    assert found(memory_type="facts") == {"My sister is called Ida"}


def test_what_is_about_whom_the_query_names_gains(service: SyncMemoryService):
    said = ["Jos\u00e9: I play the violin every day", "JOSE: My band is on tour", "Jose: Do you play?"]
    others = _save(service, "Rita: I play the piano", "Rita: I play in no band")
    ids = _save(service, *said)
    asked = "What does Jos\u00e9's band play?"
    plain = {one.id: one.score or 0 for one in service.recall_memories(U, asked, links=False)}
    found = {one.id: one for one in service.recall_memories(U, asked, links=True)}
    gained = {key: round((one.score or 0) - plain[key], 3) for key, one in found.items()}
    assert [MemoryLink(text.partition(":")[0]) in found[key].links for key, text in zip(ids, said, strict=True)] == [
        True,
        True,
        False,
    ]
    assert min(gained[key] for key in ids[:2]) > max(gained[key] for key in [*others, ids[2]])
    _save(service, "Jose: I like tea", user="bob")
    assert service.recall_memories("bob", "What tea does Jose like?", links=True)[0].links == (MemoryLink("Jose"),)


@pytest.mark.parametrize(
    ("query", "own", "other"),
    [
        ("Where does Ida live?", "Ida: I live in Oslo", "Bob: I live in Oslo"),
        ("Gdzie mieszka Anna?", "Anna: mieszkam we Wroc\u0142awiu", "Marek: mieszkam we Wroc\u0142awiu"),
        ("Gdzie mieszka siostra Anny?", "Anna: siostra jest we W\u0142oszech", "Ewa: siostra jest we W\u0142oszech"),
        (
            "\u0413\u0434\u0435 \u0441\u0435\u0441\u0442\u0440\u0430 \u0410\u043d\u043d\u044b?",
            "\u0410\u043d\u043d\u0430: \u0441\u0435\u0441\u0442\u0440\u0430 \u0432 \u041e\u0441\u043b\u043e",
            "\u0415\u0432\u0430: \u0441\u0435\u0441\u0442\u0440\u0430 \u0432 \u041e\u0441\u043b\u043e",
        ),
        (
            "\u7530\u4e2d\u3055\u3093\u306e\u597d\u304d\u306a\u304a\u8336\u306f\uff1f",
            "\u7530\u4e2d\uff1a\u304a\u8336\u304c\u597d\u304d\u3067\u3059",
            "\u4f50\u85e4\uff1a\u304a\u8336\u304c\u597d\u304d\u3067\u3059",
        ),
    ],
    ids=["en", "pl", "pl_genitive", "ru_genitive", "ja"],
)
def test_by_default_what_is_about_whom_the_query_names_gains_in_every_language(
    service: SyncMemoryService, query: str, own: str, other: str
):
    """Recall followed no links unless it was asked to, and knew a name only in the form in which it is written."""
    mine, theirs, *_ = _save(service, own, other, *NOISE)
    name = own.replace("\uff1a", ":").partition(":")[0]
    plain = {one.id: one.score or 0 for one in service.recall_memories(U, query, links=False)}
    found = service.recall_memories(U, query, explain=True)
    gained = {one.id: (one.score or 0) - plain[one.id] for one in found}
    assert gained[theirs] == 0 < gained[mine] <= ABOUT
    assert {one.id: one.links for one in found} == {mine: (MemoryLink(name),), theirs: ()}
    assert found[0].id == mine
    assert found[0].score == pytest.approx(sum((found[0].explanation or {}).values()), abs=1e-4)
    relevance = {one.id: one.relevance for one in service.recall_memories(U, query, links=False)}
    assert {one.id: one.relevance for one in found} == relevance
    alone = service.recall_memories(U, query, ignore_session=True)
    assert not any(one.links for one in alone)


def test_a_name_that_others_contradict_is_not_trusted(service: SyncMemoryService):
    _save(service, "Rita: I broke my left arm while skating", "Jose: I like tea", *NOISE)
    asked = "How did Jose break his left arm while skating?"
    plain = service.recall_memories(U, asked, links=False)
    for linked in (service.recall_memories(U, asked, links=True), service.recall_memories(U, asked)):
        assert [(one.id, one.score) for one in plain] == [(one.id, one.score) for one in linked]
        assert not any(one.links for one in linked)


def test_records_link_by_entities_relations_and_tags(service: SyncMemoryService):
    entities = {"entities": [{"name": "Ida"}], "relations": [["Ida", "sister_of", "Max"]]}
    by_entity, by_relation, by_tag, _ = (
        *_save(service, "The violin lesson is on Monday", extra_metadata=entities, tags=["music"]),
        *_save(service, "The violin lesson is paid for", extra_metadata={"entities": ["MAX"]}),
        *_save(service, "The violin lesson is far away", tags=["Music"]),
        *_save(service, "The violin lesson was late"),
    )
    found = {one.id: one.links for one in service.recall_memories(U, "violin lesson Monday", links=True)}
    assert found[by_relation] == (MemoryLink("Max", by_entity),)
    assert found[by_tag] == (MemoryLink("music", by_entity),)
    (best, *_) = service.recall_memories(U, "Ida's violin lesson on Monday", links=True)
    assert (best.id, best.links[0]) == (by_entity, MemoryLink("Ida"))


def test_what_no_longer_holds_is_neither_given_nor_followed(service: SyncMemoryService, clock: FrozenClock):
    options: dict[str, Any] = {"expires_at": clock.now() + timedelta(hours=1)}
    _save(service, "My sister is called Ida", **options)
    _save(service, "My sister sings in a choir", "The choir meets on Fridays", *NOISE)
    _save(service, "Ida moved to Hamburg")
    _save(service, "The choir gave up", **options)
    assert "Ida moved to Hamburg" in _contents(service.recall_memories(U, "sister", 9, links=True))
    clock.advance(timedelta(hours=2))
    found = service.recall_memories(U, "sister", 9, links=True, explain=True)
    assert "The choir meets on Fridays" in _contents(found)
    assert not {"My sister is called Ida", "The choir gave up", "Ida moved to Hamburg"} & set(_contents(found))
    assert ("The choir gave up", "expired") in [(one.content, reason) for one, reason in found.left_out]
    held = {one.id for one in service.list_memories(U, limit=99)[0]}
    assert all(link.memory_id in held for one in found for link in one.links)


def test_what_took_the_place_of_another_is_linked_with_it_if_both_held(service: SyncMemoryService, clock: FrozenClock):
    old, new = _save(service, "Lives in Lisbon", "Moved out: Porto since May")
    then = clock.now() + timedelta(hours=1)
    changes = {old: {"superseded_by": new, "valid_to": then + timedelta(hours=1)}, new: {"supersedes": (old,)}}
    for memory_id, fields in changes.items():
        record = run(find(service.scope, U, memory_id))
        assert record is not None
        run(service.scope.engine.write([put_of(replace(record, **fields))]))
    clock.advance(timedelta(days=1))
    now = service.recall_memories(U, "Porto", links=True, explain=True)
    assert ([one.id for one in now], now[0].links) == ([new], ())
    assert [(one.id, reason) for one, reason in now.left_out] == [(old, "superseded")]
    before = service.recall_memories(U, "Porto", links=True, as_of=then)
    assert [(one.id, one.links) for one in before] == [(new, ()), (old, (MemoryLink("supersedes", new),))]
