"""VectorMemory: conversations word for word, found by meaning and by words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, zip_longest
from typing import Final

from langchain_core.messages import AnyMessage, BaseMessage

from inference_core.effects import Operation
from inference_core.ingestion.verbatim import Drafts
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.text import CHARACTERS_PER_TOKEN
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.services.operations.recall import recall
from inference_core.services.operations.scope import MemoryScope
from inference_core.services.operations.update import retried
from inference_core.short_term.blocks.filing import block_metadata, forget_session, passages
from inference_core.short_term.blocks.memory import Block, Conversation, text_of

_MESSAGES_AT_ONCE: Final = 32


class VectorMemory(Block):
    """What was said in the user's conversations, word for word, as episodic memories beside the others.

    Recall finds passages of all the user's sessions by meaning and by words. New ones get their vectors in the
    background; until then they are found by words.
    """

    section: str = "vector_memory"

    def recall(
        self, scope: MemoryScope, conversation: Conversation, message: BaseMessage | None
    ) -> Operation[list[MemoryStoreDocument]]:
        """The passages of all the user's conversations that fit ``message``.

        Alternates between those that fit by themselves and those that fit together with their neighbours.
        """
        asked = scope, conversation.user_id, text_of(message), self.max_results, MemoryType.INTERACTION.value
        alone = yield from recall(*asked, ignore_session=True)
        around = yield from recall(*asked)
        taken = {found.id: found for pair in zip_longest(alone, around) for found in pair if found is not None}
        chosen = list(taken.values())[: self.max_results]
        ends = accumulate(len(one.content) for one in chosen)
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        return [one for one, end in zip(chosen, ends, strict=True) if one is chosen[0] or end <= budget]

    def absorb(self, scope: MemoryScope, conversation: Conversation, messages: Sequence[AnyMessage]) -> Operation[None]:
        """Stores each message once, with a mark that outlives its deletion."""
        drafts = Drafts(scope, conversation.user_id, block_metadata(self.name, [conversation.session_id]))
        made = [draft for one in passages(messages, conversation.session_id) if (draft := drafts.of(one))]
        for at in range(0, len(made), _MESSAGES_AT_ONCE):
            yield from retried(partial(drafts.write, made[at : at + _MESSAGES_AT_ONCE]))
        scope.engine.embed_later()

    def forget(self, scope: MemoryScope, conversation: Conversation) -> Operation[None]:
        """Removes the passages of this session."""
        yield from forget_session(scope, conversation, self.name, MemoryCategory.EPISODIC)
