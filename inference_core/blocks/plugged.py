"""PluggedBlock: a block of the application's own, which knows no more than the documents' interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import AnyMessage, BaseMessage

from inference_core.blocks.conversation import Conversation
from inference_core.blocks.memory import Block, Memory
from inference_core.drivers import Plan, in_thread
from inference_core.errors import BlockFailed, ConfigurationError, InferenceCoreError, in_one_line
from inference_core.ingestion.drafts import mark, marks_of, unmarked
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.text import digest_of
from inference_core.services.operations.scope import MemoryScope

T = TypeVar("T")


class PluggedBlock(Block):
    """Calls ``memory`` on a thread of its own; a message that it has taken in is marked, and not given again."""

    def __init__(self, memory: Memory) -> None:
        self.section = str(getattr(memory, "name", type(memory).__name__))
        super().__init__()
        self._memory = memory

    def recall(
        self, scope: MemoryScope, conversation: Conversation, message: BaseMessage | None
    ) -> Plan[list[MemoryStoreDocument]]:
        """Plan: what the memory gives for ``message``. Raises BlockFailed."""
        del scope
        found = yield from self._call(self._memory.get, conversation.session_id, message)
        return [_document(at, item) for at, item in enumerate(_items(found)) if item is not None]

    def absorb(self, scope: MemoryScope, conversation: Conversation, messages: Sequence[AnyMessage]) -> Plan[None]:
        """Plan: gives the memory each message that it has not taken in yet. Raises BlockFailed, StoreError."""
        marks = marks_of(conversation.user_id)
        for message in messages:
            key = digest_of([self.name, conversation.session_id, message.id, message.text])
            if (yield from unmarked(scope.engine, marks, [key])):
                yield from self._call(self._memory.update, conversation.session_id, message)
                yield from scope.engine.write([mark(marks, key, scope.clock)])

    def forget(self, scope: MemoryScope, conversation: Conversation) -> Plan[None]:
        """Plan: has the memory delete the session. Raises BlockFailed."""
        del scope
        yield from self._call(self._memory.delete, conversation.session_id)

    def _call(self, function: Callable[..., T], *args: Any) -> Plan[T]:
        try:
            result: T = yield in_thread(partial(function, *args))
        except InferenceCoreError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {in_one_line(error)}"
            raise BlockFailed(f"The block {self.name!r} failed: {reason}") from error
        return result


def as_block(memory: Memory | Block) -> Block:
    """``memory`` as a block. Raises ConfigurationError if it lacks one of the interface's methods."""
    if isinstance(memory, Block):
        return memory
    if not isinstance(memory, Memory):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise ConfigurationError(f"A memory block needs get, update and delete; {type(memory).__name__} lacks some")
    return PluggedBlock(memory)


def _items(found: Any) -> Iterable[Any]:
    return found if isinstance(found, Iterable) and not isinstance(found, str) else [found]  # pyright: ignore[reportUnknownVariableType] - of whatever


def _document(at: int, item: Any) -> MemoryStoreDocument:
    if isinstance(item, MemoryStoreDocument):
        return item
    text = item.text if isinstance(item, BaseMessage) else item
    content = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
    return MemoryStoreDocument(id=str(at), value={"content": content}, metadata={})
