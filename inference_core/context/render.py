"""The memory block of a prompt: the CoALA document's XML sections with time buckets.

This is the only place that puts stored text into a prompt; every text goes through `neutral_line`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from inference_core.clock import in_zone
from inference_core.context.formats import NOTICE, TITLES, xml
from inference_core.context.items import AssembledContext, ContextItem, section_of
from inference_core.context.lines import tag_of
from inference_core.context.neutral import neutral_line
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory

__all__ = ["NOTICE", "TITLES", "contents_in", "fenced", "render_blocks", "render_memories", "with_notice"]
_SOURCE: Final = "memories"
_MEMORY: Final = re.compile(
    r"^  - \[[^\]\n]*\] (.+) \(type: \w+\)(?: \[topic: [^\n]*\])?(?: \[source: \w+\])?$", re.MULTILINE
)


def render_memories(
    memories: Mapping[MemoryCategory, Sequence[MemoryRecord]], *, now: datetime, zone: tzinfo, preamble: bool = True
) -> str:
    """The block for ``memories`` by category; "" if there are none.

    Days and times are those of ``zone``. A memory is dated by when it happened, if that is known, else by when it was
    stored. ``preamble``: the block begins with the time and what it is.
    """
    sections = {
        section_of(category): [ContextItem.of(record, source=_SOURCE) for record in _newest_first(memories[category])]
        for category in MemoryCategory
        if memories.get(category)
    }
    return xml(AssembledContext(sections=sections), now, zone, preamble) if sections else ""


def render_blocks(sections: Mapping[str, Sequence[str]]) -> str:
    """The texts of each section in the form of the Ballerina documents; "" if there are none."""
    lines = [line for name, texts in sections.items() if texts for line in _block(name, texts)]
    return "\n".join(["<memory>", *lines, "</memory>"]) if lines else ""


def contents_in(block: str) -> frozenset[str]:
    """The contents, each as one harmless line, of the memories in a ``block`` that `render_memories` made."""
    return frozenset(_MEMORY.findall(block))


def with_notice(block: str) -> str:
    """``block`` behind the words that say what it is."""
    return f"{NOTICE}\n\n{block}"


def fenced(context: str) -> str:
    """``context`` in the element by which it is told from the caller's own instructions."""
    return f"\n<user_memory_context>\n{context}\n</user_memory_context>\n"


def _newest_first(records: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    return sorted(records, key=lambda record: in_zone(record.happened_at, UTC), reverse=True)


def _block(name: str, texts: Sequence[str]) -> list[str]:
    tag = tag_of(name)
    return [f"  <{tag}>", *(f"    - {neutral_line(text)}" for text in texts), f"  </{tag}>"]
