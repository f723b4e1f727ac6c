"""What clients and models pass: what counts as left out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from inference_core.memory.wire import Given


class Asked(Given):
    """An example."""

    content: str
    topic: str | None = None
    worth: float = Field(0.5, ge=0)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"content": ""}, ("", None, 0.5)),
        ({"content": "x", "topic": None, "worth": None}, ("x", None, 0.5)),
        ({"content": "x", "topic": "clay", "worth": " "}, ("x", "clay", 0.5)),
        (Asked(content="x", worth=1), ("x", None, 1)),
    ],
)
def test_what_is_null_or_blank_is_left_out(given: Any, read: tuple[Any, ...]):
    found = Asked.model_validate(given)
    assert (found.content, found.topic, found.worth) == read


@pytest.mark.parametrize("given", [{"content": None}, {}, [], "x", {"content": "x", "worth": -1}])
def test_what_is_needed_or_wrong_is_refused(given: Any):
    with pytest.raises(ValidationError):
        Asked.model_validate(given)
