"""WhatsApp's exports as phones of several countries write them."""

# ruff: noqa: RUF001 - letters and digits as phones write them

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from inference_core.clock import moment_of
from inference_core.ingestion.formats.whatsapp import (
    DELETED,
    MEDIA,
    NOTICE,
    chat_of,
    is_whatsapp,
    whatsapp_entries,
)


def read(text: str, zone: object = UTC) -> list[tuple[str, str | None, str | None]]:
    lines = text.splitlines()
    found = whatsapp_entries(enumerate(lines, 1), chat_of(lines), "chat", zone)  # pyright: ignore[reportArgumentType]
    return [
        (fields["role"], fields.get("content"), at if moment_of(at := fields["timestamp"]) else None)
        for _, fields in found
    ]


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
        ("2016-06-27, 8:04:08 PM: Ada: Hi", "2016-06-27T20:04:08+00:00"),
        ("28/9/16 11:20: Ada: Hi", "2016-09-28T11:20:00+00:00"),
        ("28-09-16 11:20:19: Ada: Hi", "2016-09-28T11:20:19+00:00"),
        ("2024/1/15 下午6:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("[2024/1/15, 上午 6:30:05] Ada: Hi", "2024-01-15T06:30:05+00:00"),
        ("[2024/1/15 晚上8:30:05] Ada: Hi", "2024-01-15T20:30:05+00:00"),
        ("2024. 1. 15. 오후 6:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("2024/01/15 午前6:30 - Ada: Hi", "2024-01-15T06:30:00+00:00"),
        ("2024. 01. 15. 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15. 1. 2024 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15.01.24 г., 18:30 ч. - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15.01.24 р., 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15.1.2024 klo 18.30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15.01.2024 kl. 18.30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/01/2024 à 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/01/2024 a las 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("2024-01-15, 18 h 30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("28/3/2025, 9:29\u00a0p.\u00a0m. - Ada: Hi", "2025-03-28T21:29:00+00:00"),
        ("15/1/24, 6:30 μ.μ. - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/01/24 ÖS 6:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15.1.24, 6:30 e pasdites - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/1/24, பிற்பகல் 6:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("2024年1月15日 下午6:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("2024년 1월 15일 오후 6:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15. 01. 2024. 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/01/24 18.30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/01/24, 6:30 PTG - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/01/2024, 18:30 – Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("١٥/١/٢٠٢٤، ٦:٣٠ م - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("۱۴۰۲/۱۰/۲۵،\u200f ۱۸:۳۰ - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("1399/12/30, 18:30 - Ada: Hi", "2021-03-20T18:30:00+00:00"),
        ("1400/12/30, 18:30 - Ada: Hi", None),
        ("15/1/2567 18:30 - Ada: Hi", "2024-01-15T18:30:00+00:00"),
        ("15/1/1924 18:30 - Ada: Hi", None),
        ("05/06/24, 6:30 PM - Ada: Hi", "2024-06-05T18:30:00+00:00"),
        ("5/6/24, 6:30 pm - Ada: Hi", "2024-06-05T18:30:00+00:00"),
        ("[05.06.23, 5:52:02\u202fPM] Ada: Hi", "2023-06-05T17:52:02+00:00"),
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
        (NOTICE, None),
        ("user", "one\n\ntwo: three"),
        (MEDIA, None),
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
        (MEDIA, None),
        ("user", "<b>\nbold"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "no message at all",
        "12/12/2012 at about five, 17:03 - I remember: it rained",
        "1/2/2024 10:30: the meeting",
        "[1/2/2024 10:30 - Ada: Hi",
        "10:30 - Ada: Hi",
        "See 1/2/2024, 10:30 - Ada: Hi",
    ],
)
def test_what_only_looks_like_a_date_is_no_message(line: str):
    assert not is_whatsapp([line])


@pytest.mark.parametrize(
    ("said", "role", "content"),
    [
        ("IMG-20240115-WA0001.jpg (file attached)", MEDIA, None),
        ("IMG-20240115-WA0001.jpg (Datei angehängt)\nMy new red bike", "user", "My new red bike"),
        ("Ada Lovelace.vcf (archivo adjunto)", MEDIA, None),
        ("image omitted", MEDIA, None),
        ("2016-06-27-PHOTO-00000045.jpg <\u200eattached>", MEDIA, None),
        ("Multimedia omitido", MEDIA, None),
        ("Bild weggelassen", MEDIA, None),
        ("\u200evidéo absente", MEDIA, None),
        ("\u200e<adjunto: 00000012-PHOTO-2024-01-15.jpg>", MEDIA, None),
        ("<Medien ausgeschlossen>", MEDIA, None),
        ("<Media omitted>\nMy new red bike", "user", "My new red bike"),
        ("<メディアは含まれていません>", MEDIA, None),
        ("null", MEDIA, None),
        ("This message was deleted", DELETED, None),
        ("You deleted this message.", DELETED, None),
        ("\u200eThis message was deleted by admin Bob.", DELETED, None),
        ("Du hast diese Nachricht gelöscht.", DELETED, None),
        ("Se eliminó este mensaje.", DELETED, None),
        ("此消息已删除", DELETED, None),
        ("このメッセージは削除されました。", DELETED, None),
        ("\u200fتم حذف هذه الرسالة", DELETED, None),
        ("This message was deleted by mistake, sorry", "user", "This message was deleted by mistake, sorry"),
        ("I sail <This message was edited>", "user", "I sail"),
        ("I sail \u200e<Questo messaggio è stato modificato>", "user", "I sail"),
        ("I sail\nand row <Diese Nachricht wurde bearbeitet.>", "user", "I sail\nand row"),
        ("I sail \u200e<anything new>", "user", "I sail"),
        ("I like <blink>", "user", "I like <blink>"),
        ("see notes.txt (it is short)\nor not", "user", "or not"),
        ("https://example.com/a.jpg (a picture)", "user", "https://example.com/a.jpg (a picture)"),
    ],
)
def test_media_deletions_and_edits_are_told_from_messages(said: str, role: str, content: str | None):
    ((found, text, _),) = read(f"15/01/24, 10:30 - Ada: {said}")
    assert (found, text) == (role, content)


@pytest.mark.parametrize(
    ("author", "role"),
    [
        ("Ada changed the subject to", NOTICE),
        ('Ada created group "Trip', NOTICE),
        ('Bob changed the subject from "Trip" to "Trip', NOTICE),
        ("You changed the group description to «Trip", NOTICE),
        ("Ada hat den Betreff geändert zu", NOTICE),
        ("Messages and calls are end-to-end encrypted. Learn more", NOTICE),
        ("Prof. Dr. Ada Lovelace", "user"),
        ("Ada Lovelace", "user"),
        ("Ada de la Cruz", "user"),
        ("Adalbert", "user"),
        ('Bob "Bobby" Smith', "user"),
    ],
)
def test_what_begins_with_a_name_may_be_a_notice(author: str, role: str):
    (*_, (found, _, _)) = read(f"15/01/24, 10:30 - Ada: Hi\n15/01/24, 10:31 - {author}: Rome")
    assert found == role


def test_names_of_people_who_are_no_contacts_have_no_tilde():
    lines = ["15/01/24, 10:30 - ~\u202fAda: Hi", "15/01/24, 10:31 - \u202a~ Bob\u202c: Ho"]
    found = whatsapp_entries(enumerate(lines, 1), chat_of(lines), "chat", UTC)
    assert [fields["name"] for _, fields in found] == ["Ada", "Bob"]
