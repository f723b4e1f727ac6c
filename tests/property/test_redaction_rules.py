"""Rules of redaction that hold for any text made of what secrets are made of."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from secret_texts import known

from inference_core import Guard
from inference_core.memory.secrets import credentials_in, formats, personal_in

GUARD = Guard(pii="redact")
TRIGGERS = [one.trigger for _, some in formats().by_mark for one in some]
PIECES = st.one_of(
    st.sampled_from(
        [*TRIGGERS, *formats().words, *(one.text for one in known()), " ", ": ", "=", "-", "\n", "'", "\u200b"]
    ),
    st.text("aZ09_-.:/@+= \u200bé密", max_size=40),
    st.text(max_size=8),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(TEXTS)
def test_findings_lie_in_the_text_in_order_and_do_not_overlap(text: str) -> None:
    for find in (credentials_in, personal_in):
        found = find(text)
        assert all(0 <= one.start < one.end <= len(text) for one in found)
        assert all(one.end <= other.start for one, other in pairwise(found))


@given(TEXTS)
def test_what_is_redacted_stays_as_it_is(text: str) -> None:
    """Texts are redacted again whenever a memory is changed, moved or imported."""
    once = GUARD.text(text)
    assert GUARD.text(once) == once


@given(st.sampled_from(known()), st.text("abc \n", max_size=20), st.text("abc \n", max_size=20))
def test_a_secret_is_found_wherever_it_stands(sample: tuple[str, str, str], before: str, after: str) -> None:
    assert sample[2] not in Guard().text(f"{before} {sample[0]} {after}")
