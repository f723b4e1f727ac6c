"""Whatever people make of a profile's text: what an edit means leads from one text to the other, and no more."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.errors import InvalidInput
from inference_core.services.operations.profile import Line, Section, changes, lines_in, text_of

sections = st.sampled_from(Section)
words = st.sampled_from(["Short", "answers", "first", "never", "before", "nine", "Lisbon", "- tea", "## Rules", "<!--"])
sentences = st.lists(words, min_size=1, max_size=5).map(" ".join) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1, max_size=30
)
texts = st.lists(sentences, min_size=1, max_size=3).map("\n".join) | st.just("one\n\n  two\n\tthree")
pages = st.lists(st.builds(Line, sections, texts), max_size=8)


def in_text(lines: list[Line]) -> list[Line]:
    """The lines as a text has them, without what editors change."""
    return lines_in(text_of(lines))


@given(pages)
@examples(100)
def test_a_text_reads_as_the_lines_it_was_made_of(lines: list[Line]) -> None:
    found = in_text(lines)
    assert in_text(found) == found
    assert Counter(line.section for line in found) <= Counter(line.section for line in lines)
    assert lines_in(text_of(found).replace("\n", "\r\n")) == found  # as browsers and Windows send it
    assert lines_in(text_of(found).replace("\n", "  \n")) == found
    kept = {line.text for line in found}
    assert {one for line in lines if (one := line.text.strip()) and "\n" not in one and one.isalnum()} <= kept


@given(pages, pages, st.randoms(use_true_random=False))
@examples(100)
def test_changes_lead_from_one_text_to_the_other_and_touch_nothing_else(
    before: list[Line], after: list[Line], dice: Random
) -> None:
    before, after = in_text(before), in_text(after)
    made = changes(before, after)
    gone = [one.before for one in made if one.before]
    come = [one.after for one in made if one.after]
    assert Counter(before) - Counter(gone) + Counter(come) == Counter(after)
    assert not Counter(gone) - Counter(before)
    assert not Counter(gone) & Counter(come)  # what stays is no change
    same = Counter(before) & Counter(after)
    assert Counter(gone) == Counter(before) - same
    shuffled = before[:]
    dice.shuffle(shuffled)
    assert changes(before, shuffled) == []


@given(pages, st.data())
@examples(100)
def test_a_reworded_line_keeps_its_memory_and_a_removed_one_is_no_other(lines: list[Line], data: st.DataObject) -> None:
    lines = [Line(line.section, f"{number}: {line.text}") for number, line in enumerate(in_text(lines))]
    if not lines:
        return
    at = data.draw(st.integers(0, len(lines) - 1))
    new = Line(lines[at].section, "Something that is entirely different")
    (change,) = changes(lines, [*lines[:at], new, *lines[at + 1 :]])
    assert (change.before, change.after) == (lines[at], new)
    (change,) = changes(lines, lines[:at] + lines[at + 1 :])
    assert (change.before, change.after) == (lines[at], None)
    (change,) = changes(lines[:at] + lines[at + 1 :], lines)
    assert (change.before, change.after) == (None, lines[at])


@given(pages, st.integers(0, 400))
@examples(50)
def test_a_text_that_was_cut_deletes_nothing(lines: list[Line], length: int) -> None:
    """Without its last heading it is refused; with it, at most the last section was cut."""
    text = text_of(lines)
    try:
        left = lines_in(text[:length])
    except InvalidInput:
        return
    assert all(one.before is None or one.before.section is Section.PINNED for one in changes(in_text(lines), left))
