"""StaticMemory: facts that the application states, the same for every user."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Final, NoReturn
from weakref import WeakSet

from langchain_core.messages import AnyMessage, BaseMessage

from inference_core.clock import in_zone
from inference_core.effects import faces
from inference_core.errors import ReadOnlyMemory
from inference_core.memory.namespaces import Namespace, global_namespace
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.redaction import DEFAULT_GUARD
from inference_core.memory.text import CHARACTERS_PER_TOKEN, canonical_id, canonical_text
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.services.operations.list import all_of
from inference_core.services.operations.recall import MAX_RESULTS
from inference_core.services.operations.scope import MemoryScope, put_of, records_of, retried
from inference_core.short_term.blocks.memory import (
    DEFAULT_MAX_TOKENS,
    Block,
    StoreSource,
    UserSession,
    text_of,
)
from inference_core.stores.backend import Remove, Write
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing.search import Search

_POSITION: Final = "position"
StaticFact = str | Mapping[str, Any] | Sequence[Any] | float | None
"""A text, a mapping with ``content`` (and ``id``) or with ``key`` and ``value``, or any other JSON data."""


class StaticMemory(Block):
    """Facts that the application states, the same for all users; read-only for conversations.

    Recall returns all of them in order or, if they exceed about ``max_tokens``, those relevant to the message.

    Args:
        facts: All facts of the block with this ``name``. They are stored at first use or by `load`, and replace the
            facts stored earlier. None: the stored facts.
        store: As for `Block`, like the other arguments.

    Raises:
        InvalidMemory: A fact cannot be stored.
    """

    section: str = "static_memory"
    is_read_only: ClassVar[bool] = True

    def __init__(
        self,
        facts: Sequence[StaticFact] | None = None,
        store: StoreSource | None = None,
        *,
        name: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        timeout: float | None = None,
    ) -> None:
        super().__init__(store, name=name, max_tokens=max_tokens, owner=lambda _: "anyone", timeout=timeout)
        self._namespace: Namespace = global_namespace(MemoryCategory.SEMANTIC, self.name)
        self._facts = None if facts is None else dict(map(_identified, facts, count()))
        self._loaded: WeakSet[StoreEngine] = WeakSet()

    async def _load(self) -> None:
        """Stores the facts, if they are not stored yet. Raises StoreError, ConfigurationError."""
        await self._store(self.scope())

    load, aload = faces(_load)

    async def recall(
        self, scope: MemoryScope, conversation: UserSession, message: BaseMessage | None
    ) -> list[MemoryStoreDocument]:
        """The facts; they are the same for all conversations."""
        del conversation
        if self._facts is not None and scope.engine not in self._loaded:
            await self._store(scope)
        records = await self._records(scope)
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        if sum(len(record.content) for record in records) <= budget:
            return list(map(MemoryStoreDocument.of, records))
        search = Search(
            groups=[[self._namespace]],
            text=text_of(message),
            limit=MAX_RESULTS,
            backfill=True,
            max_characters=budget,
            cold_seconds=scope.cold_seconds,
            now=in_zone(scope.clock.now(), scope.zone),
        )
        result = await scope.engine.search(search)
        return [
            MemoryStoreDocument.of(record, hit.score) for hit in result.groups[0] for record in records_of([hit.row])
        ]

    def absorb(self, scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]) -> NoReturn:
        """Raises ReadOnlyMemory."""
        del scope, conversation, messages
        raise ReadOnlyMemory("Static memory does not support update operation")

    def forget(self, scope: MemoryScope, conversation: UserSession) -> NoReturn:
        """Raises ReadOnlyMemory."""
        del scope, conversation
        raise ReadOnlyMemory("Static memory does not support delete operation")

    async def _records(self, scope: MemoryScope) -> list[MemoryRecord]:
        return sorted(await all_of(scope.engine, [self._namespace]), key=_position)

    async def _store(self, scope: MemoryScope) -> None:
        facts = self._facts or {}

        async def attempt() -> None:
            known = {record.id: record for record in await self._records(scope)}
            writes: list[Write] = [
                Remove(namespace=self._namespace, key=record.id, expected=record.version)
                for record in known.values()
                if record.id not in facts
            ]
            now = scope.clock.now()
            for position, (fact_id, said) in enumerate(facts.items()):
                content = scope.engine.guard.text(said)
                old = known.get(fact_id)
                if old is None or old.content != content or _position(old) != position:
                    record = MemoryRecord(
                        id=fact_id,
                        content=content,
                        memory_type=MemoryType.FACTS,
                        category=MemoryCategory.SEMANTIC,
                        namespace=self._namespace,
                        created_at=now,
                        updated_at=now,
                        extra_metadata={_POSITION: position},
                    )
                    writes.append(put_of(record, expected=old.version if old else 0))
            await scope.write(writes, "block")

        await retried(attempt)
        self._loaded.add(scope.engine)


def _identified(fact: StaticFact, position: int) -> tuple[str, str]:
    """The id and the text of ``fact``; if it has no id, that is a hash of the text, without secrets."""
    if isinstance(fact, str):
        given, text = None, fact
    elif not isinstance(fact, Mapping):
        given, text = None, _as_text(fact)
    elif "content" in fact:
        given, text = fact.get("id"), fact["content"]
    elif set(fact) == {"key", "value"}:
        given, text = fact["key"], f"{fact['key']}: {_as_text(fact['value'])}"
    else:
        given, text = None, _as_text(fact)
    content = canonical_text(text)
    if given is not None:
        return canonical_id(given), content
    clean = DEFAULT_GUARD.text(content)
    named = content if clean is content else f"{clean}{position}"
    return hashlib.sha256(named.encode()).hexdigest()[:32], content


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _position(record: MemoryRecord) -> int:
    position = record.extra_metadata.get(_POSITION)
    return position if isinstance(position, int) else 0
