"""WhatsApp's exports as phones of several countries write them."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from inference_core.ingestion.formats.chat_exports import is_whatsapp, order_of, whatsapp_entries


def read(text: str, zone: object = UTC) -> list[tuple[str, str | None, str | None]]:
    lines = text.splitlines()
    found = whatsapp_entries(enumerate(lines, 1), order_of(lines), "chat", zone)  # pyright: ignore[reportArgumentType]
    return [(fields["role"], fields.get("content"), fields["timestamp"]) for _, fields in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[31.01.25, 09:30:05] Ada: Hi", "2025-01-31T09:30:05+00:00"),
        ("31/01/2025, 09:30 - Ada: Hi", "2025-01-31T09:30:00+00:00"),
        ("1/31/25, 9:30\u202fPM - Ada: Hi", "2025-01-31T21:30:00+00:00"),
        ("1/2/25, 12:05 AM - Ada: Hi", "2025-01-02T00:05:00+00:00"),
        ("2025-01-31, 9:30 p. m. - Ada: Hi", "2025-01-31T21:30:00+00:00"),
        ("\u200e[03/02/2025, 09:30:05] Ada: Hi", "2025-02-03T09:30:05+00:00"),
        ("\u200f[15.1.2025, 10:30:00] \u202aAda\u202c: Hi", "2025-01-15T10:30:00+00:00"),
        ("[5\u200f/1\u200f/2025\u060c 10:30:00 \u0635] Ada: Hi", "2025-01-05T10:30:00+00:00"),
        ("5\u200f/1\u200f/2025\u060c 10:30 \u0645 - Ada: Hi", "2025-01-05T22:30:00+00:00"),
        ("99.99.25, 09:30 - Ada: Hi", None),
    ],
)
def test_dates_of_many_countries_are_read(line: str, expected: str | None):
    assert is_whatsapp([line])
    assert read(line) == [("user", "Hi", expected)]


def test_one_date_above_twelve_tells_the_order_of_all():
    found = read("02/03/25, 10:00 - Ada: a\n02/28/25, 10:00 - Ada: b")
    assert [at and at[:10] for *_, at in found] == ["2025-02-03", "2025-02-28"]


def test_times_are_those_of_the_phones_zone():
    ((_, _, at),) = read("[31.07.25, 09:30:05] Ada: Hi", ZoneInfo("Europe/Berlin"))
    assert at == "2025-07-31T09:30:05+02:00"


def test_lines_belong_together_and_what_nobody_said_is_left_out():
    text = (
        "no message\n31/01/25, 09:30 - Ada created the group\n31/01/25, 09:31 - Ada: one\n\ntwo: three\n"
        "31/01/25, 09:32 - Bob: <Media omitted>"
    )
    assert [(role, content) for role, content, _ in read(text)] == [
        ("system", None),
        ("user", "one\n\ntwo: three"),
        ("system", None),
    ]
    assert not is_whatsapp(["[project]", "name = 1"])


def test_regression_lines_with_marks_of_direction_are_messages_of_their_own():
    """They were added to the message before, so that Ada had said what Bob said."""
    text = "[15.1.2025, 10:30:00] Ada: I sail\n\u200f[15.1.2025, 10:31:00] Bob: I am allergic to nuts"
    assert [content for _, content, _ in read(text)] == ["I sail", "I am allergic to nuts"]


def test_regression_the_caption_of_a_picture_is_remembered():
    text = (
        "15/01/25, 10:30 - Ada: \u200eIMG-1.jpg (file attached)\nMy new red bike\n"
        "15/01/25, 10:31 - Ada: \u200eIMG-2.jpg (file attached)\n15/01/25, 10:32 - Ada: <b>\nbold"
    )
    assert [(role, content) for role, content, _ in read(text)] == [
        ("user", "My new red bike"),
        ("system", None),
        ("user", "<b>\nbold"),
    ]
