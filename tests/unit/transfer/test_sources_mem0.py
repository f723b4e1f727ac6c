"""mem0's JSON in the wrong shape, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from inference_core.errors import InvalidInput
from inference_core.transfer.sources import is_mem0, mem0_items


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (5, "value 1 is not a memory of mem0"),
        ({"results": [{"id": "1"}]}, "value 1, memory 1 is not a memory of mem0"),
        ({"results": [{"id": ["1"], "memory": "x"}]}, "memory 1 is not"),
        ({"points": [{"id": 1, "payload": 5}]}, "memory 1 is not"),
        ({"id": 1, "payload": {"text": "x"}}, "value 1 is not"),
    ],
)
def test_what_is_no_memory_is_told_with_its_place(value: Any, error: str):
    with pytest.raises(InvalidInput, match=error):
        list(mem0_items([("value 1", value)]))


def test_a_day_of_expiry_is_kept():
    (item,) = mem0_items([("", {"id": 7, "memory": "x", "user_id": "ada", "expiration_date": "2031-01-02"})])
    assert item.expires_at is not None
    assert (item.key, item.expires_at.year, item.fault) == ("7", 2031, None)


def test_mem0_is_known_by_its_first_memory():
    assert is_mem0({"results": [{"memory": "x"}]})
    assert is_mem0({"id": 1, "payload": {}})
    assert not any(map(is_mem0, [{"results": []}, {"role": "user"}, [], None]))
