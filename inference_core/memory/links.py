"""Links between memories that their records state: shared entities, relations, tags, and supersession."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any, Final, NamedTuple, cast

from inference_core.memory.fields import mapping_field, text_field, texts_field

MAX_NAMES: Final = 64
"""Only this many names of a record are read."""
MAX_NAME_CHARACTERS: Final = 64
_TRIPLE: Final = 3


class MemoryLink(NamedTuple):
    """The entity a memory shares with ``memory_id``, or with the query if ``memory_id`` is None."""

    entity: str
    memory_id: str | None = None

    def __str__(self) -> str:
        """The link as a phrase for people."""
        target = "the query" if self.memory_id is None else f"memory {self.memory_id}"
        return f"linked through {self.entity!r} to {target}"


def entities_of(value: Mapping[str, Any]) -> list[str]:
    """The entities in a memory's stored value: those it lists, and both ends of its relations."""
    metadata = mapping_field(value, "extra_metadata")
    entities = _items(metadata, "entities")
    named = [mapping_field({"entity": entity}, "entity").get("name", entity) for entity in entities]
    names = _listed(name for name in named if isinstance(name, str))
    relations = (texts_field({"ends": relation}, "ends") for relation in _items(metadata, "relations"))
    ends = (end for relation in relations if len(relation) == _TRIPLE for end in (relation[0], relation[2]))
    return _listed(chain(names, ends))


def tags_of(value: Mapping[str, Any]) -> list[str]:
    """The tags in a memory's stored value."""
    return _listed(texts_field(value, "tags"))


def neighbours_of(value: Mapping[str, Any]) -> list[str]:
    """The ids of the memories that this one superseded, and of the one that superseded it."""
    after = text_field(value, "superseded_by")
    return list(islice([*([after] if after else []), *texts_field(value, "supersedes")], MAX_NAMES))


def _listed(names: Iterable[str]) -> list[str]:
    return [name for name in islice(names, MAX_NAMES) if 0 < len(name) <= MAX_NAME_CHARACTERS]


def _items(metadata: Mapping[str, Any], name: str) -> list[Any]:
    found = metadata.get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []
