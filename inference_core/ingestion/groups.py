"""Groups of memories that belong together: by topic, by who and what they are about, by words that few others have.

Deterministic: the same memories give the same groups. A memory is in one group at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from inference_core.ingestion.partitions import digest
from inference_core.memory.record import MemoryRecord
from inference_core.retrieval.analysis import analyze

MIN_MEMBERS: Final = 3
MAX_MEMBERS: Final = 20
"""Of a topic with more memories the newest are taken; what else so many share tells nothing."""
_FEW: Final = 6
"""Among more memories than these, what more than half of them share tells nothing."""
_TOPIC, _ENTITY, _WORD = range(3)
_Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Group:
    """``members`` that share ``name``: a topic, somebody or something, or a word; the oldest first."""

    name: str
    members: Sequence[MemoryRecord]

    @property
    def fingerprint(self) -> str:
        """The same for the same members with the same texts, and for no others."""
        return digest([[one.id, one.content] for one in self.members])


def groups_of(records: Sequence[MemoryRecord]) -> list[Group]:
    """The groups among ``records``; those by topic first, of equal ones the largest."""
    ordered = sorted(records, key=lambda one: (one.created_at, one.id))
    sharing: dict[_Key, list[MemoryRecord]] = {}
    for record in ordered:
        for key in dict.fromkeys(_keys(record)):
            sharing.setdefault(key, []).append(record)
    told = {key: members for key, members in sharing.items() if _tells(key, len(members), len(ordered))}
    groups: list[Group] = []
    taken: set[str] = set()
    for key in sorted(told, key=lambda one: (one[0], -len(told[one]), one[1])):
        free = [one for one in told[key] if one.id not in taken][-MAX_MEMBERS:]
        if len(free) >= MIN_MEMBERS:
            groups.append(Group(key[1], free))
            taken.update(one.id for one in free)
    return groups


def _tells(key: _Key, members: int, all_memories: int) -> bool:
    if members < MIN_MEMBERS:
        return False
    return key[0] == _TOPIC or (members <= MAX_MEMBERS and (all_memories <= _FEW or 2 * members <= all_memories))


def _keys(record: MemoryRecord) -> Iterator[_Key]:
    if record.topic:
        yield _TOPIC, " ".join(record.topic.casefold().split())
    for name in _names(record.extra_metadata):
        yield _ENTITY, name
    for word in Counter(analyze(record.content)):
        yield _WORD, word


def _names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The names of the entities that extraction found; metadata may also be an application's own."""
    given = metadata.get("entities")
    for entity in cast("list[Any]", given) if isinstance(given, list) else []:
        name: Any = cast("dict[str, Any]", entity).get("name") if isinstance(entity, dict) else None
        if isinstance(name, str) and name.strip():
            yield " ".join(name.casefold().split())
