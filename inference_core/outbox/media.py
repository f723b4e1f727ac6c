"""Pictures, recordings and films in messages: found in any provider's form, and named without their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from langchain_core.messages import BaseMessage

from inference_core.memory.text import digest_of

MAX_MEDIA: Final = 10 * 1024 * 1024
"""Characters of JSON of the media of one message that may wait for a model; with more, none of them does."""
Block = dict[str, Any]
_KINDS: Final = ("image", "audio", "video")
_FORMS: Final = ("input_image", "image_file", "video_url", "media")
"""Forms of media that LangChain does not translate; only the provider's own models read them."""
_PLACES: Final = ("url", "file_id", "image_url", "video_url", "file_uri")
_TYPES: Final = ("mime_type", "media_type")
_MAX_REFERENCE: Final = 300


def media_in(message: BaseMessage) -> tuple[Block, ...]:
    """The pictures, recordings and films in ``message``, in LangChain's form as far as it knows theirs; no files."""
    return () if isinstance(message.content, str) else tuple(_blocks(message))


def may_wait(media: Sequence[Block]) -> bool:
    """Whether ``media`` of a message are JSON of at most `MAX_MEDIA` characters."""
    try:
        return len(json.dumps(media)) <= MAX_MEDIA
    except (TypeError, ValueError):
        return False


def _blocks(message: BaseMessage) -> Iterator[Block]:
    for given in cast("Sequence[Block]", message.content_blocks):
        block: Any = given.get("value") if given["type"] == "non_standard" else given
        if isinstance(block, Mapping):
            fields = cast("Mapping[str, Any]", block)
            kind = str(fields.get("type"))
            is_own_form = kind in _FORMS and _type_of(fields).partition("/")[0] in ("", *_KINDS)
            if kind in _KINDS or is_own_form:
                yield {name: value for name, value in fields.items() if name != "id"}  # LangChain's ids are random


def reference_to(block: Block) -> str:
    """The kind of ``block`` and where it is, else its media type and a digest of it: ``[image https://…]``."""
    inner: Any = block.get(block["type"])
    fields = {**block, **cast("Block", inner if isinstance(inner, dict) else {})}
    places = (fields.get(name) for name in _PLACES)
    place = next((one for one in places if isinstance(one, str) and not one.startswith("data:")), None)
    told = place or f"{_type_of(fields)} {digest_of([block])[:12]}".strip()
    return f"[{block['type']} {''.join(told.split())[:_MAX_REFERENCE] if place else told}]"


def _type_of(fields: Mapping[str, Any]) -> str:
    return str(next((fields[name] for name in _TYPES if fields.get(name)), ""))
