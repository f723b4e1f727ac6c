"""Layouts: in which namespaces of a LangGraph store applications keep memories, and whose memories each one holds."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, Protocol

from inference_core.errors import InvalidId, InvalidInput
from inference_core.memory.namespaces import MEMORIES_STORE_NAME, decode_label, encode_label
from inference_core.memory.types import MEMORY_CATEGORIES

USER, CATEGORY, AGENT, ANY = "{user}", "{category}", "{agent}", "*"
COALA: Final = "coala"
"""The CoALA document's layout, one namespace a category."""
FLAT: Final = "flat"
"""All memories of a user in one namespace, as the same application had it before."""
LANGMEM: Final = "langmem"
FILES: Final = "files"
"""deepagents' files; only on request, since not every file is a memory."""
_LABELS: Final = {
    COALA: ((USER, CATEGORY), (USER, CATEGORY, AGENT)),
    FLAT: ((USER, MEMORIES_STORE_NAME),),
    LANGMEM: (("memories", USER),),
    FILES: ((USER, "filesystem"),),
}
_LIKE: Final = 0.8
"""A name that is so like a known one is a misspelling of it, and no label."""
USUAL: Final = (COALA, FLAT, LANGMEM)
"""The layouts that are looked for unless others are named."""
UNCLEAR_USER: Final = "its namespace has a dot, so whose it is is not clear: give the user's id by name"


class Place(NamedTuple):
    """What a namespace holds: memories of ``user_id`` in a layout. ``fault`` says why they cannot be taken over."""

    layout: str
    user_id: str
    category: str | None = None
    agent_name: str | None = None
    fault: str | None = None


class Joined(Protocol):
    """A source of namespaces, and whether their labels were joined by dots."""

    were_joined: bool


class Layouts:
    """The layouts to look for, of these users or of all; the first that fits a namespace counts.

    A layout is a name (``coala``, ``flat``, ``langmem``, ``files``) or labels joined by dots, in which ``{user}``,
    ``{category}``, ``{agent}`` and ``*`` stand for one label each: ``notes.{user}``. One without ``{user}`` holds the
    memories of the one user that is named. Raises InvalidInput, InvalidId.
    """

    def __init__(
        self,
        names: Sequence[str] | None = None,
        user_ids: Sequence[str] | None = None,
        flat_name: str = MEMORIES_STORE_NAME,
    ) -> None:
        for what, given in (("user_ids", user_ids), ("layouts", names)):
            if isinstance(given, str):
                raise InvalidInput(f"{what} must be a list of ids or names, not one text")
        if not flat_name or flat_name in MEMORY_CATEGORIES:
            raise InvalidInput(f"The flat namespace cannot be called {flat_name!r}; its usual name is 'memories'")
        for user_id in user_ids or ():
            encode_label(user_id)
        self._users = None if user_ids is None else frozenset(user_ids)
        known = _LABELS | {FLAT: ((USER, flat_name),)}
        has_one_user = len(self._users or ()) == 1
        self._labels: list[tuple[str, tuple[str, ...]]] = []
        for name in names or USUAL:
            near = get_close_matches(name, known, 1, cutoff=_LIKE)
            if name not in known and near:
                raise InvalidInput(f"Unknown layout {name!r:.100}; did you mean {near[0]}?")
            for labels in known.get(name, (tuple(name.split(".")),)):
                if not all(labels) or (USER not in labels and not has_one_user):
                    raise InvalidInput(
                        f"Unknown layout {name!r:.100}; known: {', '.join(known)}, or labels such as 'notes.{USER}'. "
                        f"One without {USER} needs exactly one user to be named"
                    )
                self._labels.append((name, labels))

    def holds(self, user_id: str) -> bool:
        """Whether the memories of this user are wanted."""
        return self._users is None or user_id in self._users

    @property
    def are_of_all_users(self) -> bool:
        """Whether no users are named."""
        return self._users is None

    def place_of(self, labels: Sequence[str], source: Joined) -> Place | None:
        """What a namespace of ``source`` holds; None if it is in no layout, or another user's.

        If they ``were_joined``, the labels come from a text in which dots join them, as LangGraph's tables have it. So
        ``a.b.memories`` may be the flat namespace of a user ``a.b`` or something else of ``a``; it is taken for
        memories of ``a.b`` only if that user is named.
        """
        for name, pattern in self._labels:
            if len(labels) == len(pattern) and (found := self._read(name, pattern, labels)):
                is_wanted = self.holds(found.user_id) or self.holds(decoded(found.user_id))
                return found if is_wanted else None
        for name, pattern in self._labels if source.were_joined else ():
            if USER not in pattern or len(labels) < len(pattern):
                continue
            at, more = pattern.index(USER), len(labels) - len(pattern) + 1
            joined = [*labels[:at], ".".join(labels[at : at + more]), *labels[at + more :]]
            if found := self._read(name, pattern, joined):
                if self._users is None:
                    return found._replace(fault=UNCLEAR_USER)
                if found.user_id in self._users:
                    return found
        return None

    def _read(self, name: str, pattern: Sequence[str], labels: Sequence[str]) -> Place | None:
        fields: dict[str, str] = {}
        for wanted, label in zip(pattern, labels, strict=True):
            if wanted == CATEGORY and label not in MEMORY_CATEGORIES:
                return None
            if wanted in (USER, CATEGORY, AGENT):
                fields[wanted] = label
            elif wanted not in (ANY, label):
                return None
        user = fields[USER] if USER in fields else next(iter(self._users or ()))
        return Place(name, user, fields.get(CATEGORY), fields.get(AGENT))


def decoded(label: str) -> str:
    """The id that ``label`` encodes, as this package writes it; any other label as it is."""
    try:
        return decode_label(label)
    except InvalidId:
        return label
