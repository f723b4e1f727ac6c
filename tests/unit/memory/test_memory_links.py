"""What a stored value says about links, whatever it holds."""

from __future__ import annotations

from typing import Any

import pytest

from inference_core.memory.record import MAX_NAMES, entities_of, neighbours_of, tags_of


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"entities": ["Ida", {"name": "Max", "kind": "person"}]}, ["Ida", "Max"]),
        ({"relations": [["Ida", "sister_of", "Max"]]}, ["Ida", "Max"]),
        ({"entities": ["", "x" * 65, 7, None, {"name": 7}, {}, ["Ida"]]}, []),
        ({"entities": "Ida", "relations": {"Ida": "Max"}}, []),
        ({"relations": [["Ida", "Max"], "Ida", ["a", 7, "b", "c"]]}, ["a", "c"]),
        ({"entities": [f"n{number}" for number in range(99)]}, [f"n{number}" for number in range(MAX_NAMES)]),
        ("nonsense", []),
    ],
    ids=["entities", "relations", "no_names", "other_kinds", "other_lengths", "many", "no_metadata"],
)
def test_entities_are_read_with_patience(metadata: Any, names: list[str]):
    assert entities_of({"extra_metadata": metadata}) == names


def test_tags_and_neighbours():
    assert tags_of({"tags": ["work", 7, ""]}) == ["work"]
    assert neighbours_of({"supersedes": ["a", 7], "superseded_by": "b"}) == ["b", "a"]
    assert neighbours_of({"superseded_by": ""}) == []
