"""The systems, really run on small data."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support import DATA

from inference_core.errors import InvalidInput, MissingExtra
from inference_core.evaluation import systems
from inference_core.evaluation.conversations import Conversation, ConversationTurn
from inference_core.evaluation.formats import load_locomo
from inference_core.evaluation.systems import BM25, LangGraphInMemory, MemoryService, RecalledTurn, make_system
from inference_core.memory.trust import Origin

AT = datetime(2025, 5, 8, tzinfo=UTC)


def conversation(*texts: str) -> Conversation:
    turns = (ConversationTurn(f"t{at}", None, AT, "Ana", text) for at, text in enumerate(texts))
    return Conversation("talk", tuple(turns), (), 0)


@pytest.mark.parametrize("name", ["lexical", "bm25"])
async def test_a_system_finds_the_turn_of_the_conversation_that_is_asked_about(name: str):
    garden, choir = load_locomo(DATA / "evaluation" / "own_in_locomo_format.json")
    heard: list[None] = []
    with closing(make_system(name)) as system:
        from_garden = await system.ingest(garden, lambda: heard.append(None))
        from_choir = await system.ingest(choir, lambda: heard.append(None))
        assert (await from_garden("Whose watering can does the neighbour lend?", 20))[0].id == "D1:3"
        assert (await from_choir("Who sings bass in the choir?", 1))[0].id == "D1:1"
        assert len(await from_choir("Who sings bass in the choir?", 1)) == 1
    assert len(heard) == len(garden.turns) + len(choir.turns)


async def test_what_is_saved_keeps_order_session_time_origin_and_type():
    garden = load_locomo(DATA / "evaluation" / "own_in_locomo_format.json")[0]
    turns = tuple(replace(turn, text=f"{turn.text} ({at})") for at in range(5) for turn in garden.turns)
    many = Conversation("many", turns, (), 0)
    with closing(MemoryService(None)) as system:
        await system.ingest(many, lambda: None)
        kept, _ = await system._service.list_memories("many", limit=None)
    assert len({memory.created_at for memory in kept}) == len(many.turns)
    kept = sorted(kept, key=lambda memory: str(memory.created_at))
    for memory, turn in zip(kept, many.turns, strict=True):
        assert memory.content == turn.content
        assert memory.value["session_id"] == turn.session
        assert datetime.fromisoformat(memory.value["valid_from"]) == turn.at
        assert memory.value["source"]["origin"] == turn.origin.value
        assert memory.memory_type == "context"
    assert {turn.origin for turn in many.turns} == {Origin.USER, Origin.AGENT}


async def test_long_messages_are_kept_whole():
    with closing(MemoryService(None)) as system:
        recall = await system.ingest(conversation("walrus " * 20_000, "a boat"), lambda: None)
        assert [hit.id for hit in await recall("walrus", 5)] == ["t0"]


async def test_all_vectors_are_there_before_the_first_question(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inference_core.stores.indexing.embedding.EMBED_TIMEOUT_S", 0.0001)
    with closing(MemoryService("local")) as system:
        await system.ingest(conversation("a cat", "a boat"), lambda: None)
        engine = system._store.engine
        assert engine.embedder is not None
        assert engine.backend.pending(engine.embedder.fingerprint, 1) == []


async def test_bm25_scores_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    best = systems._best

    def spy(turns: Sequence[ConversationTurn], scores: Any, k: int) -> list[RecalledTurn]:
        seen.append(scores)
        return best(turns, scores, k)

    monkeypatch.setattr(systems, "_best", spy)
    # With the speaker: ana cat cat boat / ana tree / ana boat: lengths 4, 2, 2, mean 8/3.
    recall = await BM25().ingest(conversation("cat cat boat", "tree", "boat"), lambda: None)
    hits = await recall("the boats of a cat", 20)

    def weight(count: int, length: int, holders: int) -> float:
        idf = math.log(1 + (3 - holders + 0.5) / (holders + 0.5))
        return idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / (8 / 3)))

    assert seen[0] == pytest.approx([weight(1, 4, 2) + weight(2, 4, 1), 0, weight(1, 2, 2)])
    assert [hit.id for hit in hits] == ["t0", "t2"]


async def test_langgraphs_store_holds_date_speaker_and_text(monkeypatch: pytest.MonkeyPatch):
    put: list[tuple[str, str]] = []

    def spy(_: Any, namespace: tuple[str, ...], key: str, value: dict[str, str]) -> None:
        put.append((key, value["text"]))

    monkeypatch.setattr(systems.InMemoryStore, "put", spy)
    undated = ConversationTurn("t1", None, None, None, "hello")
    with closing(LangGraphInMemory()) as system:
        await system.ingest(Conversation("talk", (*conversation("I like tea").turns, undated), (), 0), lambda: None)
    assert put == [("t0", "[08 May 2025] Ana: I like tea"), ("t1", "hello")]


def test_an_unknown_system_is_refused():
    with pytest.raises(InvalidInput, match="Unknown system 'faiss'; known: ours"):
        make_system("faiss")


def test_without_a_model_the_extra_is_named_and_ours_says_that_it_recalls_by_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def nothing(_: object, known: str | None = None) -> None:
        return None

    monkeypatch.setattr(systems, "make_embedder", nothing)
    monkeypatch.setattr("inference_core.stores.factory.make_embedder", nothing)
    with pytest.raises(MissingExtra, match=r"The system 'dense' .*\[local\]"):
        make_system("dense")
    with caplog.at_level(logging.WARNING), closing(make_system("ours")):
        assert "by words only" in caplog.text
