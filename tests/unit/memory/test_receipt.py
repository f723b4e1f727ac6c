"""Receipt: what a notebook shows of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from inference_core.memory.receipt import Receipt, ReceiptDrop, ReceiptLine, ReceiptPlace

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


def line(name: str, place: ReceiptPlace, **figures: Any) -> ReceiptLine:
    return ReceiptLine(id=name, version=1, place=place, rank=1, **figures)


def test_the_table_shows_figures_with_bars_where_there_are_some_and_what_was_left_out():
    receipt = Receipt(
        id="r1",
        at=NOON,
        until=NOON + timedelta(days=1),
        recalled_at=NOON,
        zone="UTC",
        status="recalled",
        placement="message",
        has_profile=True,
        form="xml",
        lines=(
            line("pinned", ReceiptPlace.PROFILE),
            line("first", ReceiptPlace.NEWS, score=2.0, relevance=0.75),
            line("second", ReceiptPlace.RECALLED, score=0.5, relevance=0.0),
        ),
        dropped=(ReceiptDrop(id="other", version=3, reason="duplicate"),),
        tokens=120,
        profile_hash="",
        block_hash="",
    )
    page = receipt._repr_html_()
    rows = {name: row for row in page.split("<tr>") for name in ("pinned", "first", "second", "other") if name in row}
    assert "2026-01-15 12:00, recalled, 120 tokens" in page
    assert "<span" not in rows["pinned"]
    assert [figure in rows["first"] for figure in ("75%", "</span> 2<")] == [True, True]
    assert [figure in rows["second"] for figure in ("0%", "</span> 0.5<")] == [True, True]
    widths = [row.count("width:0px") for row in (rows["first"], rows["second"])]
    assert widths == [0, 1]
    assert ("duplicate" in rows["other"], "<span" in rows["other"]) == (True, False)
