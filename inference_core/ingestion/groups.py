"""Groups of memories that belong together: by topic, by who and what they are about, by words that few others have.

Deterministic: the same memories give the same groups. A memory is in one group at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import digest_of
from inference_core.retrieval.analysis import analyze

MIN_MEMBERS: Final = 3
MAX_MEMBERS: Final = 20
"""Of a topic with more memories the newest are taken; an entity or a word that more share tells nothing."""
_FEW: Final = 6
"""Among more memories than these, an entity or a word that more than half of them share tells nothing."""
_TOPIC, _ENTITY, _WORD = range(3)
_Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Group:
    """``members`` that share ``name``: a topic, an entity or a word; the oldest first."""

    name: str
    members: Sequence[MemoryRecord]

    @property
    def fingerprint(self) -> str:
        """The same for the same members with the same texts, and for no others."""
        return digest_of([[one.id, one.content] for one in self.members])


def groups_of(records: Sequence[MemoryRecord]) -> list[Group]:
    """The groups among ``records``; those by topic first, then by entity, then by word, each the largest first."""
    ordered = sorted(records, key=lambda one: (one.created_at, one.id))
    sharing: dict[_Key, list[MemoryRecord]] = {}
    for record in ordered:
        for key in dict.fromkeys(_keys(record)):
            sharing.setdefault(key, []).append(record)
    most = MAX_MEMBERS if len(ordered) <= _FEW else min(MAX_MEMBERS, len(ordered) // 2)
    groups: list[Group] = []
    taken: set[str] = set()
    for key in sorted(sharing, key=lambda one: (one[0], -len(sharing[one]), one[1])):
        if key[0] != _TOPIC and len(sharing[key]) > most:
            continue
        free = [one for one in sharing[key] if one.id not in taken][-MAX_MEMBERS:]
        if len(free) >= MIN_MEMBERS:
            groups.append(Group(key[1], free))
            taken.update(one.id for one in free)
    return groups


def _keys(record: MemoryRecord) -> Iterator[_Key]:
    """What ``record`` may share with others. Its metadata may also be an application's own, of any form."""
    if record.topic:
        yield _TOPIC, " ".join(record.topic.casefold().split())
    entities = record.extra_metadata.get("entities")
    for entity in cast("list[Any]", entities) if isinstance(entities, list) else []:
        name: Any = cast("dict[str, Any]", entity).get("name") if isinstance(entity, dict) else None
        if isinstance(name, str) and name.strip():
            yield _ENTITY, " ".join(name.casefold().split())
    for word in analyze(record.content):
        yield _WORD, word
