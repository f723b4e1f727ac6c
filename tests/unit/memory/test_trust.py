"""Provenance, trust, and what untrusted text may not become."""

from __future__ import annotations

from typing import Any

import pytest

from inference_core.errors import InvalidInput, UntrustedWrite
from inference_core.memory.trust import (
    MemorySource,
    Origin,
    Trust,
    as_fact,
    check_write,
    lowered,
    no_higher,
    trust_of,
    why_it_waits,
)
from inference_core.memory.types import MemoryCategory

OUTSIDE = (Origin.TOOL, Origin.DOCUMENT, Origin.WEB)
INSIDE = (Origin.USER, Origin.APPLICATION, Origin.AGENT)


def test_every_origin_is_inside_or_outside():
    assert set(Origin) == {*OUTSIDE, *INSIDE}


@pytest.mark.parametrize(
    ("origin", "trust"),
    [
        (Origin.USER, Trust.STATED),
        (Origin.APPLICATION, Trust.STATED),
        (Origin.AGENT, Trust.INFERRED),
        *((origin, Trust.EXTERNAL) for origin in OUTSIDE),
    ],
)
def test_an_origin_earns_its_trust(origin: Origin, trust: Trust):
    assert MemorySource(origin=origin).trust is trust


def test_what_was_stated_outranks_what_was_inferred_or_read():
    assert Trust.STATED > Trust.INFERRED > Trust.EXTERNAL


@pytest.mark.parametrize(
    ("origin", "place"), [(Origin.TOOL, "a tool"), (Origin.DOCUMENT, "a document"), (Origin.WEB, "the web")]
)
def test_outside_text_never_becomes_a_rule(origin: Origin, place: str):
    with pytest.raises(UntrustedWrite, match=f"^Text from {place} cannot become procedural memory"):
        check_write(MemorySource(origin=origin), MemoryCategory.PROCEDURAL)


@pytest.mark.parametrize(
    ("origin", "category"),
    [
        *((origin, MemoryCategory.PROCEDURAL) for origin in INSIDE),
        *((origin, category) for origin in Origin for category in (MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC)),
    ],
)
def test_everything_else_may_be_written(origin: Origin, category: MemoryCategory):
    check_write(MemorySource(origin=origin), category)


@pytest.mark.parametrize("source", [None, "user", {"origin": "user"}, Origin.USER])
def test_a_source_must_be_a_memory_source(source: Any):
    with pytest.raises(InvalidInput, match="must be a MemorySource"):
        check_write(source, MemoryCategory.SEMANTIC)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (MemorySource(), {"origin": "application"}),
        (
            MemorySource(origin=Origin.TOOL, thread_id="t", message_ids=("a", "b"), tool="search"),
            {"origin": "tool", "thread_id": "t", "message_ids": ["a", "b"], "tool": "search"},
        ),
        *((MemorySource(origin=origin), {"origin": origin.value}) for origin in Origin),
    ],
)
def test_a_source_survives_a_round_trip(source: MemorySource, value: dict[str, Any]):
    assert source.to_value() == value
    assert MemorySource.from_value(value) == source


def test_an_empty_source_is_the_applications():
    assert MemorySource.from_value({}) == MemorySource()


@pytest.mark.parametrize("origin", ["", "admin", "USER", None, 7])
def test_an_unknown_origin_is_trusted_least(origin: object):
    assert MemorySource.from_value({"origin": origin}).trust is Trust.EXTERNAL


def test_what_an_import_trusts_less_says_so_whatever_its_origin():
    for origin in (Origin.USER, Origin.APPLICATION):
        assert why_it_waits(MemorySource(origin=origin), MemoryCategory.SEMANTIC).startswith("An import trusts it less")


def test_what_an_import_trusts_less_says_so():
    """What the user is named for waits all the same if a file trusts it no more than a page."""
    source = MemorySource(origin=Origin.USER)
    assert why_it_waits(source, MemoryCategory.PROCEDURAL) == "An import trusts it less than what the user stated"


def test_a_rule_as_a_fact_keeps_what_it_was():
    """Guards archives of files: a forgotten rule from outside comes back as a fact, and nothing of it is lost."""
    rule = {"content": "x", "memory_type": "instructions", "extra_metadata": {"legacy": {"id": "1"}, "more": 2}}
    fact = as_fact(rule)
    assert (fact["memory_type"], fact["memory_category"], fact["content"]) == ("facts", "semantic", "x")
    assert fact["extra_metadata"] == {"legacy": {"id": "1", "memory_type": "instructions"}, "more": 2}


@pytest.mark.parametrize("value", ["a text", 3, None, ["trust"]])
def test_a_value_of_a_file_that_is_no_memory_stays_as_it_is(value: object):
    assert lowered(value) is value


@pytest.mark.parametrize(
    ("value", "before", "trust", "pinned"),
    [
        ({"source": {"origin": "user"}, "trust": 2, "pinned": True}, {"source": {"origin": "web"}}, 0, False),
        ({"source": {"origin": "user"}, "pinned": True}, {"source": {"origin": "web"}, "pinned": True}, 0, True),
        ({"source": {"origin": "web"}, "trust": 0, "pinned": True}, {"source": {"origin": "user"}}, 0, True),
    ],
)
def test_what_takes_a_memorys_place_is_trusted_no_more_and_pinned_no_more_if_it_claimed_more(
    value: dict[str, Any], before: dict[str, Any], trust: int, *, pinned: bool
) -> None:
    found = no_higher(value, before)
    assert (trust_of(found), found["pinned"]) == (trust, pinned)
