"""Texts that are too long for a memory are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.outbox.messages import split_text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("short", ["short"]),
        ("One sentence. Another one. The very end", ["One sentence.", "Another one.", "The very end"]),
        ("first paragraph.\n\nnew. ones", ["first paragraph.", "new. ones"]),
        ("a line of it\nand another one", ["a line of it", "and another one"]),
        ("words without any end at all", ["words without any", "end at all"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("你好吗。我很好。他呢", ["你好吗。", "我很好。他呢"]),
        ("", []),
    ],
)
def test_the_best_place_to_cut_is_taken(text: str, parts: list[str]):
    assert split_text(text, 20) == parts


@given(st.text(max_size=300), st.integers(4, 60))
def test_parts_fit_and_only_white_space_is_lost(text: str, limit: int):
    parts = split_text(text, limit)
    assert all(0 < len(part.encode()) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_character_is_never_cut():
    assert split_text("🦜🦜", 1) == ["🦜", "🦜"]
