"""Media of messages: found in the forms of all providers, and named without their bytes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from inference_core.outbox.media import MAX_MEDIA, may_wait, media_in, reference_to

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
URL = "https://x.example/a.png"
FOUND: list[tuple[dict[str, Any], str]] = [
    ({"type": "image_url", "image_url": {"url": URL}}, f"[image {URL}]"),
    ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}, "[image image/png "),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}, "[image image/png "),
    ({"type": "image", "source": {"type": "url", "url": URL}}, f"[image {URL}]"),
    ({"type": "image", "base64": PIXEL, "mime_type": "image/png"}, "[image image/png "),
    ({"type": "image", "file_id": "file-1"}, "[image file-1]"),
    ({"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}}, "[audio audio/wav "),
    ({"type": "audio", "base64": PIXEL, "mime_type": "audio/mpeg"}, "[audio audio/mpeg "),
    ({"type": "video", "url": "https://x.example/a b\n.mp4"}, "[video https://x.example/ab.mp4]"),
    ({"type": "media", "mime_type": "audio/mp3", "data": PIXEL}, "[media audio/mp3 "),
    ({"type": "input_image", "image_url": URL}, f"[input_image {URL}]"),
    ({"type": "video_url", "video_url": {"url": URL}}, f"[video_url {URL}]"),
]


@pytest.mark.parametrize(("block", "reference"), FOUND)
def test_media_are_found_and_named_without_their_bytes(block: dict[str, Any], reference: str):
    for message in (HumanMessage([{"type": "text", "text": "Look"}, block]), AIMessage([block])):
        (found,) = media_in(message)
        assert (found,) == media_in(message.model_copy(deep=True)), "nothing in it is random"
        named = reference_to(found)
        assert named.startswith(reference)
        assert named.endswith("]")
        assert PIXEL not in named


@pytest.mark.parametrize(
    "content",
    [
        "Look",
        ["Look"],
        [{"type": "text", "text": "Look"}],
        [{"type": "file", "base64": PIXEL, "mime_type": "application/pdf"}],
        [{"type": "media", "mime_type": "application/pdf", "data": PIXEL}],
        [{"type": "tool_result", "content": "Look"}, {"odd": 1}],
    ],
)
def test_other_content_is_no_media(content: Any):
    assert media_in(HumanMessage(content)) == ()


def test_what_is_too_large_or_no_json_may_not_wait():
    assert may_wait([{"type": "image", "url": URL}])
    assert not may_wait([{"type": "image", "base64": "A" * MAX_MEDIA}])
    assert not may_wait([{"type": "image", "data": b"A"}])
    assert len(reference_to({"type": "image", "url": f"https://{'x' * 999}"})) < 320
