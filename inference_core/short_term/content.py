"""MemoryContent: what a turn is answered from, the window's messages and what the blocks recall for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from itertools import chain
from typing import Any, Literal

from langchain_core.messages import AnyMessage, convert_to_openai_messages

from inference_core.blocks.conversation import Conversation
from inference_core.blocks.extractive import ExtractiveMemory
from inference_core.blocks.memory import Block
from inference_core.blocks.static import StaticMemory
from inference_core.blocks.vector import VectorMemory
from inference_core.context.render import render_blocks, render_memories
from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError, InferenceCoreError
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.scope import MemoryScope

MemoryForm = Literal["memory", "coala"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryContent:
    """The messages of a session, the oldest first, and by section what was recalled for the turn, the best first.

    ``notices`` say what failed meanwhile: a strategy, for which older messages are not shown but kept, or a block.
    """

    messages: list[AnyMessage]
    recalled: Mapping[str, Sequence[MemoryStoreDocument]] = field(default_factory=dict[str, Any])
    notices: Sequence[str] = ()
    now: datetime
    zone: tzinfo

    @property
    def static_facts(self) -> list[MemoryStoreDocument]:
        """What holds for everybody."""
        return list(self.recalled.get(StaticMemory.section, ()))

    @property
    def extracted_facts(self) -> list[MemoryStoreDocument]:
        """What is known of the user."""
        return list(self.recalled.get(ExtractiveMemory.section, ()))

    @property
    def vector_matches(self) -> list[MemoryStoreDocument]:
        """What was said in any of the user's sessions."""
        return list(self.recalled.get(VectorMemory.section, ()))

    def as_dicts(self) -> list[dict[str, Any]]:
        """The messages as mappings with ``role`` and ``content``."""
        given: Any = convert_to_openai_messages(self.messages)
        return given

    def render(self, form: MemoryForm = "memory") -> str:
        """What was recalled as a prompt block; "" if nothing was.

        ``memory`` is the form of the Ballerina documents, an element a block; ``coala`` has the sections and time
        buckets of the CoALA document.
        """
        if form == "memory":
            return render_blocks({name: [one.content for one in found] for name, found in self.recalled.items()})
        by_category: dict[MemoryCategory, list[MemoryRecord]] = {}
        for document in chain.from_iterable(self.recalled.values()):
            record = MemoryRecord.from_value(
                document.value,
                memory_id=document.id,
                namespace=(),
                stored_at=document.created_at or self.now,
                updated_at=document.updated_at or self.now,
            )
            by_category.setdefault(record.category, []).append(record)
        return render_memories(by_category, now=self.now, zone=self.zone)


def recalled_for(
    blocks: Sequence[Block], scope: MemoryScope | None, conversation: Conversation, message: AnyMessage | None
) -> Plan[tuple[dict[str, list[MemoryStoreDocument]], list[str]]]:
    """Plan: by section what ``blocks`` recall for ``message``, and what failed. Raises ConfigurationError."""
    recalled: dict[str, list[MemoryStoreDocument]] = {}
    notices: list[str] = []
    for block in blocks:
        try:
            found = yield from block.recall(block.scope(scope), conversation, message)
        except ConfigurationError:
            raise
        except InferenceCoreError as error:
            notices.append(f"{block.name}: {error}")
        else:
            recalled.setdefault(block.section, []).extend(found)
    return recalled, notices
