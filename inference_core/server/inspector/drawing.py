"""Texts for times, and coordinates of bars and graphs for SVG: computed here, so that pages need no JavaScript."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import cos, pi, sin
from typing import Any, Final

__all__ = ["bars", "clock", "day", "dumps", "graph", "lasting", "span_of", "stamp", "validity"]

_KINDS: Final = {
    "lexical": "words",
    "coverage": "words",
    "dense": "meaning",
    "late_interaction": "close",
    "feedback": "alike",
}
WIDTH: Final = 100
"""The full width of a bar, in percent."""
_RINGS: Final = ((14, 110.0), (35, 190.0))
"""How many nodes each ring of a graph takes, and its radius."""
_ROOM: Final = 26.0


def kind_of(signal: str) -> str:
    """Which kind of evidence a share of a score is: words, meaning, close, alike (other hits), or prior."""
    return _KINDS.get(signal, "prior")


def bars(shares: Mapping[str, float], most: float) -> list[dict[str, Any]]:
    """The positive ``shares`` of a score side by side, at a scale where ``most`` takes the full width."""
    at, drawn = 0.0, list[dict[str, Any]]()
    for name, share in sorted(shares.items(), key=lambda one: list(_KINDS).index(one[0]) if one[0] in _KINDS else 99):
        if share > 0 and most > 0:
            width = WIDTH * share / most
            drawn.append({"x": round(at, 2), "width": round(width, 2), "kind": kind_of(name), "name": name})
            at += width
    return drawn


def span_of(memories: Sequence[Mapping[str, Any]], now: str) -> tuple[str, str]:
    """The first and the last moment that the validity bars of ``memories`` show; the last is ``now`` or later."""
    begins = [one["valid_from"] or one["created_at"] for one in memories]
    ends = [one["valid_to"] or one["expires_at"] or now for one in memories]
    return min(begins, default=now), max([*ends, now])


def validity(memory: Mapping[str, Any], span: tuple[str, str]) -> dict[str, float]:
    """The part of ``span`` in which a memory holds: its start and width, in percent, wide enough to be seen."""
    first, last = (_seconds(one) for one in span)
    room = max(last - first, 1.0)
    start = (_seconds(memory["valid_from"] or memory["created_at"]) - first) / room
    given = memory["valid_to"] or memory["expires_at"]
    end = ((_seconds(given) - first) / room) if given else 1.0
    x = min(max(start, 0.0), 0.98) * WIDTH
    return {"x": round(x, 2), "width": round(max(min(max(end, 0.0), 1.0) * WIDTH - x, 2.0), 2)}


def graph(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Coordinates of ``nodes``, the first in the middle and the others on two rings around it, and of ``edges``.

    Nodes for which the rings have no room are left out, with their edges.
    """
    rings = [nodes[1 : 1 + _RINGS[0][0]], nodes[1 + _RINGS[0][0] : 1 + _RINGS[0][0] + _RINGS[1][0]]]
    radii = [min(_RINGS[0][1], 50.0 + 8 * len(rings[0])), _RINGS[1][1]]
    middle = _ROOM + radii[bool(rings[1])]
    places = {nodes[0]["id"]: (middle, middle)} if nodes else {}
    for ring, radius in zip(rings, radii, strict=True):
        for at, node in enumerate(ring):
            angle = 2 * pi * at / len(ring) - pi / 3
            places[node["id"]] = (round(middle + radius * cos(angle), 1), round(middle + radius * sin(angle), 1))
    lines = [
        {"from": places[one["from"]], "to": places[one["to"]], "kind": one["kind"]}
        for one in edges
        if one["from"] in places and one["to"] in places
    ]
    drawn = [(node, *places[node["id"]]) for node in nodes if node["id"] in places]
    return {"places": drawn, "lines": lines, "size": 2 * middle}


def clock(moment: str) -> str:
    """The time of day of an ISO 8601 ``moment``."""
    return f"{datetime.fromisoformat(moment):%H:%M}"


def day(moment: str) -> str:
    """The day of an ISO 8601 ``moment`` or date, for a heading."""
    found = datetime.fromisoformat(moment)
    return f"{found:%A}, {found.day} {found:%B} {found.year}"


def stamp(moment: str) -> str:
    """The day and time of an ISO 8601 ``moment``, short."""
    found = datetime.fromisoformat(moment)
    return f"{found.day} {found:%b} {found.year}, {found:%H:%M}"


def lasting(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two, or else in seconds."""
    units = (("days", 86_400), ("hours", 3_600), ("min", 60))
    return next((f"{seconds / size:.0f} {name}" for name, size in units if seconds >= 2 * size), f"{seconds:.0f} s")


def dumps(value: object) -> str:
    """``value`` as indented JSON, for people."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def _seconds(moment: str) -> float:
    found = datetime.fromisoformat(moment)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
