"""Intervals, whatever the query and whenever it is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.retrieval.query import interval_of

MANY = examples(150)
TIME = "last this past previous on in since between and from to of the a 3 31 29 2024 1900 0 999 two ago day days weeks"
NAMES = "month years weekend quarter q1 q4 summer winter may march february mai enero monday sunday today tomorrow"
DATES = "2024-02-29 31.12.2099 13/13/2000 2023-99-99 5\u6708 31\u65e5 2023\u5e74"
WORDS = st.sampled_from(f"{TIME} {NAMES} {DATES}".split())
QUERIES = st.lists(WORDS, max_size=8).map(" ".join)
ZONES = st.sampled_from([UTC, ZoneInfo("Europe/Warsaw"), ZoneInfo("Pacific/Apia"), ZoneInfo("America/Sao_Paulo")])
MOMENTS = st.datetimes(timezones=ZONES)


@MANY
@given(QUERIES | st.text(max_size=40), MOMENTS)
def test_an_interval_starts_before_it_ends_in_the_zone_of_now(text: str, now: datetime):
    found = interval_of(text, now)
    if found is not None:
        start, end = found
        assert start < end
        assert start.tzinfo is end.tzinfo is now.tzinfo
        assert interval_of(text.upper(), now) == found
