"""The inspector's screens, which only read. What people change there is in `forms`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from inference_core.clock import in_zone
from inference_core.effects import arun
from inference_core.errors import MemoryNotFound
from inference_core.ingestion.analytics import statistics
from inference_core.lifecycle.erasing import NOT_OURS
from inference_core.lifecycle.forgetting import forgotten_page
from inference_core.memory.audit import Changed
from inference_core.memory.namespaces import (
    FORGOTTEN,
    ITEMS,
    PENDING,
    PLACES,
    USAGE,
    encode_label,
    holds_memories,
    holds_pending,
)
from inference_core.memory.receipt import Receipt
from inference_core.memory.record import CITES, WEAK_RELEVANCE, MemoryStoreDocument, neighbours_of, why_invalid
from inference_core.memory.text import text_field, texts_field, word_changes
from inference_core.memory.trust import Origin
from inference_core.memory.types import MEMORY_TYPES
from inference_core.memory.wire import Memory
from inference_core.outbox import outbox as queue
from inference_core.server.api.jobs import Jobs
from inference_core.server.api.routes import Call, export_memories
from inference_core.server.identity.auth import PREFIX, Permission
from inference_core.server.inspector.screens import (
    OF_USER,
    Look,
    Looking,
    asset,
    dumps,
    page,
    screen,
)
from inference_core.server.problems import Refusal
from inference_core.services.operations import list as memories
from inference_core.services.operations.audit import audit_page
from inference_core.services.operations.profile import read_profile
from inference_core.services.operations.recall import recall
from inference_core.services.operations.receipts import Why, get_receipt, list_receipts, rebuild_receipt, why
from inference_core.services.operations.review import list_pending
from inference_core.services.operations.scope import archive_keys, records_of
from inference_core.services.user_memories import list_users
from inference_core.stores.backend import Tally

_SHORT: Final = 280
"""Characters shown of a memory in a list; so a page stays below 200 KB, whatever is stored."""
_LONG: Final = 16_000
_PAGE: Final = 40
_HITS: Final = 20
_NODES: Final = 50
_NEWEST: Final = 2_000
_VERSIONS: Final = 12
_CHANGES: Final = 12
_CHANGED: Final = 8
_TIMES: Final = ("valid_from", "valid_to", "expires_at", "created_at", "updated_at")
_ELSEWHERE: Final = "conversations and messages in other databases, for which there is the command inference-core erase"
_MEDIA: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def cut(text: str, most: int = _SHORT) -> str:
    """The first ``most`` characters of ``text``, with an ellipsis if there are more."""
    return text if len(text) <= most else f"{text[:most].rstrip()}…"


def brief(look: Look, document: MemoryStoreDocument, most: int = _SHORT) -> dict[str, Any]:
    """A memory as screens show it. ``state`` is None while it holds, else why it does not."""
    memory, source = Memory.of(document), document.source
    times: dict[str, datetime | None] = {name: getattr(memory, name) for name in _TIMES}
    return {
        "id": memory.id,
        "version": memory.version,
        "content": cut(memory.content, most),
        "type": memory.memory_type,
        "category": memory.category,
        "topic": memory.topic and cut(memory.topic),
        "tags": [cut(tag, 40) for tag in memory.tags[:8]],
        "agent": memory.agent_name,
        "session": memory.session_id,
        "pinned": memory.pinned,
        "source": {"origin": source.origin.value, "thread": source.thread_id, "tool": source.tool}
        | {"approved_by": source.approved_by},
        "state": why_invalid(document.value, look.scope.clock.now()),
        **{name: moment and in_zone(moment, look.scope.zone).isoformat() for name, moment in times.items()},
    }


@page(PREFIX, Permission.READ)
@page(f"{PREFIX}/", Permission.READ)
async def home(look: Looking) -> Response:
    """The first screen: the user's timeline, or the list of users for a key without a user."""
    return RedirectResponse(look.link("timeline") if look.user is not None else f"{look.base}/users", 303)


@page("/", None)
async def root(request: Request) -> Response:
    """Leads browsers to the pages; others learn where the API is."""
    if "text/html" not in request.headers.get("accept", ""):
        refusal = Refusal(404, "no-such-path", f"The API is at /v1, and pages are at {PREFIX}")
        return refusal.response(request.scope)
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PREFIX}", 303)


@page(f"{PREFIX}/static/{{name}}", None)
async def static(name: str) -> Response:
    """A style sheet, script or icon, which browsers may cache for a year."""
    content = asset(name)
    if content is None:
        raise Refusal(404, "no-such-path")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(content, media_type=_MEDIA[name.rpartition(".")[2]], headers=headers)


@screen(f"{PREFIX}/users", "users")
async def users(look: Looking, user: str = "", after: str | None = None) -> dict[str, Any]:
    """All users, for administrators. With the permission act-as alone, users can be opened by id, but not listed."""
    if not (look.may("admin") or look.may("act-as")):
        raise Refusal(403, "missing-permission", "This key may look only at its own user")
    if user:
        raise Refusal(303, "see-other", headers={"Location": look.of(user)})
    if not look.may("admin"):
        return {"users": [], "next_cursor": None}
    store = look.request.app.state.service.store
    found = await asyncio.to_thread(list_users, store, limit=_PAGE, after=after)
    return {"users": list(found), "next_cursor": found.next_cursor}


@screen(f"{OF_USER}/timeline", "timeline")
async def timeline(look: Looking, type: str = "", source: str = "", after: str | None = None) -> dict[str, Any]:  # noqa: A002 - the address says type
    """The memories by day, the newest first, of a type and source if given."""
    found = await look.run(memories.browse, memory_type=type or None, origin=source or None, limit=_PAGE, after=after)
    shown = [brief(look, memory) for memory in found]
    days = [{"day": day, "memories": list(own)} for day, own in groupby(shown, lambda one: one["created_at"][:10])]
    return {
        "days": days,
        "types": await look.run(memories.count_types),
        "sources": [origin.value for origin in Origin],
        "type": type,
        "source": source,
        "next_cursor": found.next_cursor,
    }


@screen(f"{OF_USER}/search", "search")
async def search(look: Looking, q: str = "", type: str = "") -> dict[str, Any]:  # noqa: A002 - the address says type
    """What a recall finds, the most relevant first, the shares of each score, and what it left out and why.

    ``rank`` is the place in the recall, which goes by the score. No memory counts as used by it.
    """
    data: dict[str, Any] = {"q": q[:2_000], "type": type, "types": list(MEMORY_TYPES), "hits": [], "left_out": []}
    if not q.strip():
        return data | {"more": 0}
    recalled = await look.run(recall, data["q"], _HITS, type or None, explain=True)
    hits = [
        {
            "memory": brief(look, memory),
            "score": memory.score,
            "rank": rank,
            "relevance": memory.relevance,
            "is_weak": memory.relevance is not None and memory.relevance < WEAK_RELEVANCE,
            "shares": memory.explanation or {},
            "links": [{"through": link.entity, "memory": link.memory_id} for link in memory.links[:5]],
        }
        for rank, memory in sorted(enumerate(recalled, 1), key=lambda ranked: -(ranked[1].relevance or 0))
    ]
    left_out = [{"memory": brief(look, memory), "reason": reason} for memory, reason in recalled.left_out[:_HITS]]
    return data | {"hits": hits, "left_out": left_out, "more": max(len(recalled.left_out) - _HITS, 0)}


@screen(f"{OF_USER}/memory", "memory")
async def memory(look: Looking, id: str, after: str | None = None) -> dict[str, Any]:  # noqa: A002 - the address says id
    """A memory: what it says, where it comes from, its versions, its links, and the prompts that it was part of."""
    return await memory_of(look, id, after)


async def memory_of(look: Look, id: str, after: str | None = None) -> dict[str, Any]:  # noqa: A002 - as on the screen
    """What the screen of a memory shows. Raises MemoryNotFound."""
    reasons = await look.run(why, id, limit=_HITS, after=after)
    latest = reasons.memory or (reasons.removed and reasons.removed.document)
    if latest is None and not reasons.receipts:
        raise MemoryNotFound(id)
    around, edges = await _around(look, reasons.memory) if reasons.memory else ({}, [])
    return {
        "id": id,
        "memory": latest
        and brief(look, latest, _LONG)
        | {"metadata": cut(dumps(latest.metadata) if latest.metadata else "", 4_000)}
        | {"is_whole": len(latest.content) <= _LONG},
        "removed": reasons.removed
        and {
            "at": in_zone(reasons.removed.forgotten_at, look.scope.zone).isoformat(),
            "reason": reasons.removed.reason,
        },
        "versions": _versions(look, reasons, around, edges),
        "nodes": [brief(look, memory, 120) for memory in around.values()],
        "edges": edges,
        "told": [
            _line_of(look, receipt, id) | {"id": receipt.id, "thread": receipt.thread_id, "model": receipt.model}
            for receipt in reasons.receipts
        ],
        "next_cursor": reasons.receipts.next_cursor,
        "draft": None,
        "problem": None,
    }


async def _around(
    look: Look, document: MemoryStoreDocument
) -> tuple[dict[str, MemoryStoreDocument], list[dict[str, str]]]:
    """The memories that one is linked with, itself first, at most `_NODES`, and the links between them."""
    known, edges = {document.id: document}, dict[tuple[str, str, str], dict[str, str]]()
    frontier = [document]
    while frontier and len(known) < _NODES:
        for memory in frontier:
            after = text_field(memory.value, "superseded_by")
            pairs = [(after, memory.id, "replaces")] if after else []
            pairs += [(memory.id, old, "replaces") for old in neighbours_of(memory.value) if old != after]
            pairs += [(memory.id, cited, "cites") for cited in texts_field(memory.metadata, CITES)[:_NODES]]
            edges |= {pair: {"from": pair[0], "to": pair[1], "kind": pair[2], "label": ""} for pair in pairs}
        ids = [name for pair in edges for name in pair[:2] if name not in known]
        fresh = await look.run(memories.get_many, ids[: _NODES - len(known)])
        known |= fresh
        frontier = list(fresh.values())
    alike = await look.run(recall, document.content[:500], _HITS, links=True, ignore_session=True)
    for memory in alike:
        for link in memory.links:
            if link.memory_id in known and memory.id != link.memory_id and (memory.id in known or len(known) < _NODES):
                known.setdefault(memory.id, memory)
                pair = (memory.id, link.memory_id, "shares")
                edges[pair] = {"from": pair[0], "to": pair[1], "kind": "shares", "label": cut(link.entity, 40)}
    return known, [edge for edge in edges.values() if edge["from"] in known and edge["to"] in known][: 4 * _NODES]


def _versions(
    look: Look, reasons: Why, around: dict[str, MemoryStoreDocument], edges: Sequence[dict[str, str]]
) -> list[dict[str, Any]]:
    """What the memory said before, what it replaced and what replaced it, the newest first, with the words changed."""
    chain = {reasons.memory.id} if reasons.memory else set[str]()
    for _ in edges:  # each pass adds the next memories of the chain
        linked = {name for edge in edges if edge["kind"] == "replaces" for name in (edge["from"], edge["to"])
                  if {edge["from"], edge["to"]} & chain}  # fmt: skip
        if linked <= chain:
            break
        chain |= linked
    latest = [] if reasons.memory or not reasons.removed else [reasons.removed.document]
    texts = [*reasons.earlier, *latest, *(around[name] for name in chain if name in around)]
    shown = [brief(look, memory) for memory in texts]
    order = sorted(
        range(len(texts)), key=lambda at: (shown[at]["valid_from"] or shown[at]["created_at"], texts[at].version)
    )
    versions, before = list[dict[str, Any]](), ""
    for at in order:
        when = "created_at" if shown[at]["state"] == "superseded" else "updated_at"
        told = word_changes(before, texts[at].content) if before else [("same", texts[at].content)]
        changes = [(kind, cut(words, 600)) for kind, words in told[:_CHANGES]]
        changes += [("same", "…")] if told[_CHANGES:] else []
        versions.append({"id": texts[at].id, "version": texts[at].version, "at": shown[at][when], "changes": changes})
        before = texts[at].content
    return versions[: -_VERSIONS - 1 : -1]


@screen(f"{OF_USER}/profile", "profile")
async def profile(look: Looking) -> dict[str, Any]:
    """The rules, preferences and pinned memories as one text to edit."""
    return await profile_of(look)


async def profile_of(look: Look) -> dict[str, Any]:
    """What the screen of the profile shows: ``text`` to edit, and ``before``, which an edit is compared with."""
    found = await look.run(read_profile, _LONG)
    shown = {"text": found.text, "before": found.text, "more": found.more}
    return {**shown, "problem": None, "now": None, "made": None}


@screen(f"{OF_USER}/receipts", "receipts")
async def receipts(look: Looking, thread: str = "", after: str | None = None) -> dict[str, Any]:
    """What model calls were given, the newest first."""
    found = await look.run(list_receipts, thread_id=thread or None, limit=_PAGE, after=after)
    shown = [
        {
            "id": receipt.id,
            "at": in_zone(receipt.at, look.scope.zone).isoformat(),
            "thread": receipt.thread_id,
            "model": receipt.model,
            "agent": receipt.agent_name,
            "status": receipt.status,
            "tokens": receipt.tokens,
            "told": len(receipt.lines),
            "dropped": len(receipt.dropped),
        }
        for receipt in found
    ]
    return {"receipts": shown, "thread": thread, "next_cursor": found.next_cursor}


@screen(f"{OF_USER}/receipt", "receipt")
async def receipt(look: Looking, id: str) -> dict[str, Any]:  # noqa: A002 - the address says id
    """One model call: the prompt that memory made for it, each memory in it with its rank, and what was left out."""
    found = await look.run(get_receipt, id)
    if found is None:
        raise Refusal(404, "no-such-receipt", "There is no such receipt; receipts are kept for some days")
    rebuilt = await look.run(rebuild_receipt, found)
    lines, dropped = found.lines[:_PAGE], found.dropped[:_PAGE]
    there = await look.run(memories.get_many, [*(line.id for line in lines), *(drop.id for drop in dropped)])

    def said(memory_id: str) -> str | None:
        return cut(there[memory_id].content, 160) if memory_id in there else None

    return {
        "id": found.id,
        "at": in_zone(found.at, look.scope.zone).isoformat(),
        **{name: getattr(found, name) for name in ("model", "thread_id", "run_id", "agent_name", "status", "tokens")},
        "is_same": rebuilt.is_same,
        "problem": rebuilt.problem,
        "gone": list(rebuilt.gone)[:_PAGE],
        "profile": cut(rebuilt.profile, _LONG),
        "block": cut(rebuilt.block, _LONG),
        "lines": [
            _line_of(look, found, line.id)
            | {"id": line.id, "content": said(line.id), "shares": dict(line.signals), "doubts": list(line.doubts)}
            for line in lines
        ],
        "dropped": [
            {"id": drop.id, "content": said(drop.id), "reason": drop.reason, "by": drop.by} for drop in dropped
        ],
    }


def _line_of(look: Look, receipt: Receipt, memory_id: str) -> dict[str, Any]:
    """The time of a prompt, and the place, rank and score that a memory had in it; None each if it was not there."""
    line = receipt.line_of(memory_id)
    return {
        "at": in_zone(receipt.at, look.scope.zone).isoformat(),
        "place": line and line.place.value,
        "rank": line and line.rank,
        "score": line and line.score,
        "relevance": line and line.relevance,
    }


@screen(f"{OF_USER}/review", "review")
async def review(look: Looking) -> dict[str, Any]:
    """What waits for the user's confirmation. Each text is whole, as whoever approves it approves all of it."""
    proposals = await look.run(list_pending)
    shown, room = list[dict[str, Any]](), _LONG
    for pending in proposals[:_HITS]:
        ends = [brief(look, each) for each in pending.ends]
        room -= len(pending.document.content) + sum(len(each["content"]) for each in ends)
        if shown and room < 0:
            break
        shown.append(
            {
                "memory": brief(look, pending.document) | {"content": pending.document.content},
                "why": pending.why,
                "proposed_at": in_zone(pending.proposed_at, look.scope.zone).isoformat(),
                "expires_at": in_zone(pending.expires_at, look.scope.zone).isoformat(),
                "ends": ends,
            }
        )
    return {"pending": shown, "more": len(proposals) - len(shown)}


@screen(f"{OF_USER}/forgotten", "forgotten")
async def forgotten(look: Looking, after: str | None = None) -> dict[str, Any]:
    """A page of the forgotten and deleted memories that can be restored."""
    found = await look.run(forgotten_page, limit=_PAGE, after=after)
    shown = [
        {
            "memory": brief(look, memory.document),
            "reason": memory.reason,
            "forgotten_at": in_zone(memory.forgotten_at, look.scope.zone).isoformat(),
            "until": memory.until and in_zone(memory.until, look.scope.zone).isoformat(),
        }
        for memory in found
    ]
    return {"forgotten": shown, "next_cursor": found.next_cursor}


@screen(f"{OF_USER}/usage", "usage")
async def usage(look: Looking) -> dict[str, Any]:
    """How many memories there are, how they grew, which are used, and what making them took.

    The weeks, what no longer holds and what jobs did are of the newest ``of`` memories and jobs; all else is of all.
    """
    found: dict[str, Any] = {"of": _NEWEST, **asdict(await look.run(statistics, _NEWEST))}
    for one in [*found["most_used"], *found["oldest_unused"]]:
        one["content"] = cut(one["content"], 160)
        one["last"] = one["last"] and in_zone(one["last"], look.scope.zone).isoformat()
    return found


@screen(f"{OF_USER}/audit", "audit")
async def audit(look: Looking, memory: str = "", after: str | None = None) -> dict[str, Any]:
    """Who changed what, the newest first, with the first words of the memories that can still be read."""
    found = await look.run(audit_page, memory_id=memory or None, limit=_PAGE, after=after)
    changes = [_by_memory(one.changes[:_CHANGED]) for one in found]
    texts = await _first_words(look, [change for own in changes for each in own.values() for change in each])
    shown = [
        {
            "id": one.id,
            "at": in_zone(one.at, look.scope.zone).isoformat(),
            "operation": one.operation,
            "actor": one.actor.to_value(),
            "reason": one.reason,
            "job": one.job,
            "changes": [
                {"id": memory_id, "what": _what_became(each), "content": texts.get(memory_id)}
                for memory_id, each in own.items()
            ],
            "more": max(len(one.changes) - _CHANGED, 0),
        }
        for one, own in zip(found, changes, strict=True)
    ]
    return {"events": shown, "memory": memory, "next_cursor": found.next_cursor}


def _by_memory(changes: Sequence[Changed]) -> dict[str, list[Changed]]:
    found = dict[str, list[Changed]]()
    for change in changes:
        found.setdefault(change.key, []).append(change)
    return found


def _what_became(changes: Sequence[Changed]) -> str:
    """What an event's ``changes`` of one memory mean: those of the memory, and of what is kept beside it."""
    own = [change for change in changes if change.place[:1] not in ((FORGOTTEN,), (USAGE,), (PENDING,))]
    archived = [change for change in changes if change.place[:1] == (FORGOTTEN,)]
    there = [change for change in own or changes if change.after != 0]
    if not there:
        return "can be restored" if any(change.after != 0 for change in archived) else "removed"
    before, after = there[0].before, there[0].after
    if before and after:
        return f"version {before} → {after}"
    return "restored" if archived else "moved" if len(own) > 1 else "new"


async def _first_words(look: Look, changes: Iterable[Changed]) -> dict[str, str]:
    """The first words of the memories that ``changes`` are about, by id, of those that are there or in the archive."""
    keys = dict.fromkeys(((encode_label(look.owner), *change.place), change.key) for change in changes)
    homes = [(place, name) for place, name in keys if holds_memories(place)]
    waiting = [(place, name) for place, name in keys if holds_pending(place)]
    archives = [key for home, name in homes for key in archive_keys([home], name)]
    rows = await arun(look.scope.engine.get([*archives, *waiting, *homes]), look.timeout)
    return {record.id: cut(record.content, 60) for record in records_of(rows)}


@page(f"{OF_USER}/export", Permission.READ)
async def export(look: Looking) -> Response:
    """All memories of the user, as a file of JSON Lines."""
    answer = await export_memories(Call(look.scope, look.owner, look.timeout))
    answer.headers["content-disposition"] = 'attachment; filename="memories.jsonl"'
    return answer


@screen(f"{PREFIX}/outbox", "outbox", Permission.ADMIN)
async def outbox(look: Looking) -> dict[str, Any]:
    """How many messages of all users wait to become memories, and those that failed."""
    engine, clock = look.scope.engine, look.scope.clock
    state = await arun(queue.status(engine, clock), look.timeout)
    dead = await arun(queue.dead_letters(engine, _PAGE), look.timeout)
    letters = [
        {"key": message.key, "user": message.partition.user_id, "text": cut(message.text, 400), "tries": message.tries}
        | {"reason": cut(message.reason, 400)}
        for message in dead
    ]
    return {**asdict(state), "letters": letters}


@screen(f"{OF_USER}/erase", "erase", Permission.ADMIN)
async def show_erasure(look: Looking, job: str = "") -> dict[str, Any]:
    """What an erasure of the user would remove, as the store counts it, and how far the erasure ``job`` is."""
    jobs: Jobs = look.request.app.state.jobs
    if jobs.ledger is None:
        raise Refusal(501, "no-ledger", "This server has no ledger of erasures; run inference-core erase")
    user = look.owner
    begun = await jobs.get(user, job) if job else None
    places = Counter[str]()
    for tally in await arun(_counted(look), look.timeout):
        places[PLACES.get(tally.namespace[1], ITEMS) if len(tally.namespace) > 1 else ITEMS] += tally.rows
    return {
        "user": user,
        "found": places.total(),
        "places": places,
        "not_ours": (*NOT_OURS, _ELSEWHERE),
        "job": begun
        and {"id": begun.id, "state": begun.state, "left": (begun.result or {}).get("left")}
        | {"receipt": begun.result, "text": begun.result and dumps(begun.result)},
    }


async def _counted(look: Look) -> list[Tally]:
    """How many rows of the user each namespace has. Raises Held if the user has legal holds, StoreError."""
    engine, label = look.scope.engine, encode_label(look.owner)
    await engine.check_holds(label)
    return await engine.tally(await engine.namespaces((label,)))
