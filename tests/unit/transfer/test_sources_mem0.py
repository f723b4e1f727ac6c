"""mem0's JSON in the wrong shape, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from inference_core.errors import InvalidInput
from inference_core.transfer.sources import NO_MEMORY, NO_USER, is_mem0, mem0_items


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (5, "value 1"),
        (None, "value 1"),
        ({"results": [{"id": "1"}]}, "value 1, memory 1"),
        ({"results": [{"id": ["1"], "memory": "x"}]}, "value 1, memory 1"),
        ({"results": [{"id": True, "memory": "x"}]}, "value 1, memory 1"),
        ({"results": [{"id": 1, "memory": 5}]}, "value 1, memory 1"),
        ({"points": [{"id": 1, "payload": 5}]}, "value 1, memory 1"),
        ({"id": 1, "payload": {"text": "x"}}, "value 1"),
    ],
)
def test_what_is_no_memory_is_left_out_with_its_place(value: Any, place: str):
    good = {"results": [{"id": 1, "memory": "x", "user_id": "ada"}]}
    odd, item = mem0_items([("value 1", value), ("value 2", good)], ["ada"])
    assert (odd.key, odd.fault, item.key, item.fault) == (place, NO_MEMORY, "1", None)
    with pytest.raises(InvalidInput, match=f"{place} is not a memory of mem0"):
        list(mem0_items([("value 1", value)], strict=True))


@pytest.mark.parametrize(
    ("user", "id_"), [(42, "42"), ("42", "42"), (0, "0"), (None, None), ("", None), (True, None), (["ada"], None)]
)
def test_a_user_may_be_a_number(user: Any, id_: str | None):
    rows = {"results": [{"id": 1, "memory": "x", "user_id": user}]}
    (item,) = mem0_items([("", rows)])
    assert (item.user_id, item.fault) == (id_ or "", None if id_ else NO_USER)
    assert len(list(mem0_items([("", rows)], ["42"]))) == (id_ == "42")


def test_a_day_of_expiry_is_kept():
    (item,) = mem0_items([("", {"id": 7, "memory": "x", "user_id": "ada", "expiration_date": "2031-01-02"})])
    assert item.expires_at is not None
    assert (item.key, item.expires_at.year, item.fault) == ("7", 2031, None)


def test_mem0_is_known_by_its_first_memory():
    assert is_mem0({"results": [{"memory": "x"}]})
    assert is_mem0({"id": 1, "payload": {}})
    assert is_mem0({"results": [None, 5, {"memory": "x"}]})
    assert not any(map(is_mem0, [{"results": []}, {"role": "user"}, [], None]))
