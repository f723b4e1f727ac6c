"""What a policy lets go, and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_core import ForgettingPolicy, MemoryRecord, MemoryType
from inference_core.errors import ConfigurationError, InvalidCategory, InvalidInput
from inference_core.lifecycle.forgetting import Choice, half_lives, key_of, parse_budget, strength
from inference_core.memory.types import get_category_for_type
from inference_core.settings import MemorySettings
from inference_core.stores.maintenance import Usage

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)


def memory(name: str, days: float = 0, kind: str = "facts", owner: str | None = None, **options: Any) -> MemoryRecord:
    then = NOW - timedelta(days=days)
    category = get_category_for_type(kind)
    namespace = ("ada", category.value, *([owner] if owner else []))
    given: dict[str, Any] = {"content": "x" * 40, "created_at": then, "updated_at": then, **options}
    return MemoryRecord(id=name, memory_type=MemoryType(kind), category=category, namespace=namespace, **given)


def forgotten(records: list[MemoryRecord], usages: dict[str, Usage] | None = None, **policy: Any) -> dict[str, str]:
    by_id = {one.id: key_of(one) for one in records}
    figures = {by_id[name]: usage for name, usage in (usages or {}).items()}
    choice = Choice(records, figures, ForgettingPolicy(**policy), NOW)
    return {one.record.id: one.reason.value for one in choice.leaving.values()}


class TestStrength:
    @pytest.mark.parametrize(
        ("days", "importance", "usage", "expected"),
        [
            (30, 0.5, Usage(), 1.0),
            (30, 0.0, Usage(), 2.0),
            (30, 1.0, Usage(), 0.5),
            (30, 0.5, Usage(3, NOW - timedelta(days=30)), 1 / 3),
            (300, 0.5, Usage(1, NOW), 0.0),
            (30, 0.5, Usage(0, NOW - timedelta(days=15)), 0.5),
            (-5, 0.5, Usage(), 0.0),
        ],
    )
    def test_time_importance_and_recalls(self, days: float, importance: float, usage: Usage, expected: float) -> None:
        assert half_lives(memory("m", days, importance=importance), usage, NOW, 30) == pytest.approx(expected)

    def test_half_of_it_is_left_after_a_half_life(self) -> None:
        assert [strength(lived) for lived in (0, 1, 3)] == [1, 0.5, 0.125]
        assert strength(1e9) == 0


class TestReasons:
    def test_what_has_expired(self) -> None:
        records = [memory("gone", expires_at=NOW), memory("later", expires_at=NOW + timedelta(seconds=1)), memory("no")]
        assert forgotten(records) == {"gone": "expired"}
        assert forgotten(records, expired=False) == {}

    def test_what_has_faded_but_no_procedures(self) -> None:
        records = [memory("old", 100), memory("rule", 100, "instructions"), memory("used", 100), memory("new", 90)]
        usages = {"used": Usage(1, NOW - timedelta(days=90))}
        assert forgotten(records, usages, half_life_days=30) == {"old": "faded"}
        assert forgotten(records, usages, half_life_days=30, fading=("procedural",)) == {"rule": "faded"}
        assert forgotten(records, usages, half_life_days=30, below=0) == {}

    def test_sources_fade_no_faster_than_what_follows_from_them(self) -> None:
        insight = memory("insight", 10, extra_metadata={"cites": ["a", "b", "nothing"]})
        sources = [memory(name, 200) for name in "ab"]
        others = [memory("c", 200), memory("d", 10, extra_metadata={"cites": ["c"]}, superseded_by="x")]
        assert forgotten([insight, *sources, *others], half_life_days=30) == {"c": "faded"}
        assert forgotten([insight, *sources], max_memories={"all": 0}).keys() == {"insight", "a", "b"}

    def test_budgets_by_type_and_for_all(self) -> None:
        records = [memory(f"f{days}", days) for days in (5, 1, 3)] + [
            memory("c2", 2, "context"),
            memory("c9", 9, "context"),
        ]
        assert forgotten(records, max_memories={"facts": 1}) == {"f5": "budget", "f3": "budget"}
        assert list(forgotten(records, max_memories={"all": 3, "facts": 2})) == ["f5", "c9"]
        assert list(forgotten(records, max_tokens={"all": 25})) == ["c9", "f5", "f3"]
        assert list(forgotten(records, max_tokens={"context": 10}, max_memories={"facts": 3})) == ["c9"]

    def test_the_order_of_leaving(self) -> None:
        over = memory("over", superseded_by="elsewhere")
        records = [memory("b", 1), memory("a", 1), memory("dear", 1, importance=0.9), memory("first", 2), over]
        assert list(forgotten(records, max_memories={"all": 0})) == ["over", "first", "a", "b", "dear"]

    def test_pinned_ones_stay_and_count(self) -> None:
        records = [memory("pin", 999, pinned=True, expires_at=NOW), memory("pin2", pinned=True), memory("new")]
        assert forgotten(records, half_life_days=1, max_memories={"all": 1}) == {"new": "budget"}

    def test_history_goes_with_what_took_its_place(self) -> None:
        chain = [memory("s0", kind="context", superseded_by="s1"), memory("s1", superseded_by="s2", supersedes=("s0",))]
        head = memory("s2", expires_at=NOW, supersedes=("s1",))
        assert forgotten([*chain, head]) == {"s2": "expired", "s1": "history", "s0": "history"}
        assert forgotten([chain[0], memory("s1", pinned=True, superseded_by="s2"), head]) == {"s2": "expired"}
        others = memory("s0", kind="skill", owner="coder", superseded_by="s2")
        mine = memory("s2", kind="skill", owner="planner", expires_at=NOW)
        assert forgotten([others, mine]) == {"s2": "expired"}

    def test_circles_and_long_chains_end(self) -> None:
        circle = [memory("a", superseded_by="b"), memory("b", superseded_by="a", expires_at=NOW)]
        assert forgotten(circle) == {"b": "expired", "a": "history"}
        chain = [memory(str(at), superseded_by=str(at + 1)) for at in range(3_000)]
        assert len(forgotten([*chain, memory("3000", expires_at=NOW)])) == 3_001


class TestPolicy:
    @pytest.mark.parametrize(
        "given",
        [
            {"half_life_days": 0},
            {"half_life_days": float("nan")},
            {"below": 1.1},
            {"keep_days": -1},
            {"max_memories": {"all": -1}},
            {"max_memories": {"all": True}},
            {"max_tokens": {"nothing": 1}},
        ],
        ids=str,
    )
    def test_nonsense_is_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            ForgettingPolicy(**given)

    def test_unknown_categories_are_refused(self) -> None:
        with pytest.raises(InvalidCategory):
            ForgettingPolicy(fading=("moods",))

    def test_budgets_are_read(self) -> None:
        assert parse_budget("") == {}
        assert parse_budget(" 5000 , context = 200,") == {"all": 5000, "context": 200}
        for text in ("many", "facts=", "facts=-1", "=", "moods=1"):
            with pytest.raises(InvalidInput):
                parse_budget(text)

    def test_settings_make_one(self) -> None:
        settings = MemorySettings(
            forget_half_life=7, forget_below=0.2, forget_max_memories="9", forget_max_tokens="facts=1", forgotten_days=3
        )
        wanted = ForgettingPolicy(
            half_life_days=7, below=0.2, max_memories={"all": 9}, max_tokens={"facts": 1}, keep_days=3
        )
        assert ForgettingPolicy.from_settings(settings) == wanted
        assert ForgettingPolicy.from_settings(MemorySettings()) == ForgettingPolicy()
        with pytest.raises(ConfigurationError, match="moods"):
            ForgettingPolicy.from_settings(MemorySettings(forget_max_memories="moods=1"))
