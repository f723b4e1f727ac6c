"""Filters: against an independent reading of docs/filters.md, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.errors import InvalidFilter
from inference_core.stores.store import MAX_CONDITIONS, MAX_DEPTH, predicate

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, -3, 10, 9, "", "a", "ab", "b", "10", "é"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=5,
)
records = st.dictionaries(st.sampled_from(["n", "t", "list"]), values, max_size=3)
keys = st.sampled_from(["n", "t", "list", "missing"])
comparable = st.sampled_from([0, 1.0, 2.5, 10, "a", "b", "10"])
operators = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne", "$contains"]), values),
    st.tuples(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), comparable),
    st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(values, max_size=3)),
    st.tuples(st.just("$exists"), st.booleans()),
)
fields = st.dictionaries(keys, st.lists(operators, min_size=1, max_size=2).map(dict) | values, max_size=2)
filters = st.recursive(
    fields,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "$and": st.lists(inner, min_size=1, max_size=2),
            "$or": st.lists(inner, min_size=1, max_size=2),
            "$not": inner,
            "n": scalars,
        },
    ),
    max_leaves=4,
)


def json_text(value: Any) -> str:
    """Two JSON values are equal if their texts are; whole numbers are written alike."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return re.sub(r'("(?:[^"\\]|\\.)*")|(\d)\.0\b', lambda found: found[1] or found[2], text)


def kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    return "number" if type(value) in (int, float) else "other"


def holds(record: dict[str, Any], key: str, name: str, wanted: Any) -> bool:
    found = [record[key]] if key in record else []
    texts = [json_text(one) for one in found]
    if name in ("$ne", "$nin"):
        return not holds(record, key, {"$ne": "$eq", "$nin": "$in"}[name], wanted)
    if name == "$exists":
        return (key in record) == wanted
    if name == "$in":
        return bool({json_text(one) for one in wanted} & set(texts))
    if name == "$eq":
        return texts == [json_text(wanted)]
    if name == "$contains" and found and type(found[0]) is list:
        return json_text(wanted) in map(json_text, found[0])
    if not found or kind(found[0]) != kind(wanted) or kind(wanted) == "other":
        return False
    if name == "$contains":
        return kind(wanted) == "text" and found[0].find(wanted) >= 0
    order = (found[0] > wanted) - (found[0] < wanted)
    return order in {"$gt": (1,), "$gte": (0, 1), "$lt": (-1,), "$lte": (-1, 0)}[name]


def oracle(record: dict[str, Any], conditions: dict[str, Any]) -> bool:
    for key, condition in conditions.items():
        if key == "$not":
            met = not oracle(record, condition)
        elif key in ("$and", "$or"):
            count = sum(oracle(record, part) for part in condition)
            met = count == len(condition) if key == "$and" else count > 0
        elif isinstance(condition, dict) and any(name.startswith("$") for name in condition):
            met = not [name for name, wanted in condition.items() if not holds(record, key, name, wanted)]
        else:
            met = holds(record, key, "$eq", condition)
        if not met:
            return False
    return True


@given(records, filters)
def test_a_filter_means_what_is_documented(record: dict[str, Any], conditions: dict[str, Any]) -> None:
    assert predicate(conditions)(record) is oracle(record, conditions)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["$and", "$or", "$not", "$in", "$gt", "n"]), x),
    )
)
def test_whatever_is_asked_the_answer_is_a_predicate_or_an_error(conditions: Any) -> None:
    try:
        accept = predicate(conditions)
    except InvalidFilter:
        return
    assert accept({"n": 1}) in (True, False)


def nested(depth: int) -> dict[str, Any]:
    conditions: dict[str, Any] = {"n": 1}
    for level in range(depth):
        conditions = [{"$not": conditions}, {"$and": [conditions]}, {"$or": (conditions,)}][level % 3]
    return conditions


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"$or": []}, "at least one"),
        ({"$and": {"n": 1}}, "list"),
        ({"$not": [{"n": 1}]}, "mapping"),
        ({"$or": [{"n": 1}, 2]}, "mapping"),
        ({"n": {"$in": "abc"}}, "list"),
        ({"n": {"$nin": {"a": 1}}}, "list"),
        ({"n": {"$exists": 1}}, "true or false"),
        ({"n": {"$and": [{"n": 1}]}}, "Unknown filter operator"),
        ({"$where": "1"}, "Unknown filter key"),
        (nested(MAX_DEPTH + 1), "deep"),
        ({"n": {"$in": list(range(MAX_CONDITIONS + 1))}}, "conditions"),
        ({"$or": [{"n": number} for number in range(MAX_CONDITIONS)]}, "conditions"),
    ],
    ids=[
        "or-empty",
        "and-map",
        "not-list",
        "or-member",
        "in-text",
        "nin-map",
        "exists",
        "inner",
        "where",
        "deep",
        "long",
        "wide",
    ],
)
def test_what_cannot_be_understood_is_refused(conditions: Any, message: str) -> None:
    with pytest.raises(InvalidFilter, match=message):
        predicate(conditions)


def test_the_largest_filters() -> None:
    assert predicate(nested(MAX_DEPTH))({"n": 1}) in (True, False)
    assert predicate({"n": {"$in": list(range(MAX_CONDITIONS - 1))}})({"n": 998})
