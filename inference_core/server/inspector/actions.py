"""What people change in the inspector: signing in and out, and the forms. After each form, a screen follows."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from inference_core.effects import Operation, arun
from inference_core.lifecycle.archive import restore
from inference_core.lifecycle.erasing import NO_CHECKPOINTS, NO_OUTBOX, NOT_OURS
from inference_core.memory.namespaces import ITEMS, PLACES, encode_label
from inference_core.outbox import partitions
from inference_core.server.api.jobs import Jobs
from inference_core.server.api.user_wire import Erasure
from inference_core.server.identity.auth import Permission
from inference_core.server.identity.sessions import LASTS_S, PREFIX, cookie_name
from inference_core.server.inspector import pages as pages  # noqa: PLC0414 - adds the screens to the table
from inference_core.server.inspector.screens import (
    OF_USER,
    SCREENS,
    Form,
    Look,
    Looking,
    access_of,
    action,
    check_origin,
    checked_form,
    form_of,
    page,
    plain_page,
    screen,
    sessions_of,
)
from inference_core.server.problems import Refusal
from inference_core.services.operations.review import approve_pending, reject_pending
from inference_core.stores.backend import Tally

__all__ = ["SCREENS"]
LOGIN: Final = f"{PREFIX}/login"


@page(LOGIN, None)
async def sign_in(request: Request, once: str = "") -> Response:
    """Shows the form for a key, or begins the session of the one-time link with the token ``once``."""
    if not once:
        return plain_page(request, "login", {"problem": ""})
    key = sessions_of(request).follow(once)
    if key is None:
        return plain_page(request, "login", {"problem": "This link has already been used. Create a new one."}, 403)
    return _begun(request, key)


@page(LOGIN, None, method="POST")
async def sign_in_with_key(request: Request) -> Response:
    """Begins a session for a valid key; 403 for a wrong one, 429 after too many of them from one address."""
    check_origin(request)
    key = (await form_of(request)).get("key", "").strip()
    if await access_of(request).principal_of(key) is None:
        address = request.client.host if request.client else ""
        status = 429 if sessions_of(request).failures.take(address) else 403
        said = "Too many wrong keys; wait a minute." if status == 429 else "This key is not valid."  # noqa: PLR2004 - Too Many Requests
        return plain_page(request, "login", {"problem": said}, status)
    return _begun(request, key)


def _begun(request: Request, key: str) -> Response:
    cookie = sessions_of(request).begin(key)
    if cookie is None:
        return plain_page(request, "login", {"problem": "This token is too long for a cookie; use an API key."}, 422)
    # A page that refreshes itself: browsers send no SameSite=Strict cookie on a redirect after a foreign link.
    response = plain_page(request, "begun", {})
    response.set_cookie(
        cookie_name(request.scope),
        cookie,
        max_age=LASTS_S,
        path=f"{request.scope.get('root_path', '')}{PREFIX}",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@page(f"{PREFIX}/logout", Permission.READ, method="POST")
async def sign_out(look: Looking) -> Response:
    """Deletes the browser's session cookie."""
    await checked_form(look)
    response = RedirectResponse(f"{look.base}/login", 303)
    response.delete_cookie(cookie_name(look.request.scope), path=look.base)
    return response


@action(f"{OF_USER}/review", Permission.REVIEW)
async def decide(look: Look, form: Form) -> str:
    """Approves or rejects a pending memory. It is approved with the form's text, which is what the person has seen."""
    name, by = form.get("id", ""), look.scope.actor.id
    if form.get("do") == "approve":
        done, said = await look.run(approve_pending, name, form.get("content"), by=by), "approved"
    elif form.get("do") == "reject":
        done, said = await look.run(reject_pending, name, form.get("why", "").strip() or None, by=by), "rejected"
    else:
        raise Refusal(422, "invalid-input", "Say whether to approve or to reject")
    return look.link("review", said=said if done else "gone")


@action(f"{OF_USER}/forgotten")
async def bring_back(look: Look, form: Form) -> str:
    """Restores a memory."""
    report = await look.run(restore, [form.get("id", "")])
    return look.link("forgotten", said="restored" if report.restored else "taken" if report.taken else "gone")


@action(f"{PREFIX}/outbox", Permission.ADMIN)
async def settle(look: Look, form: Form) -> str:
    """Tries failed messages again, or drops them."""
    keys = [form["key"]] if form.get("key") else None
    engine = look.scope.engine
    if form.get("do") == "retry":
        done = await arun(partitions.retry(engine, look.scope.clock, keys), look.timeout)
    elif form.get("do") == "drop":
        done = await arun(partitions.drop(engine, keys), look.timeout)
    else:
        raise Refusal(422, "invalid-input", "Say whether to retry or to drop")
    said = {"retry": "retried", "drop": "dropped"}[form["do"]] if done else "gone"
    return f"{look.base}/outbox?said={said}"


@screen(f"{OF_USER}/erase", "erase", Permission.ADMIN)
async def show_erasure(look: Looking, job: str = "") -> dict[str, Any]:
    """What an erasure of the user would remove, as the store counts it, and how far the erasure ``job`` is."""
    jobs: Jobs = look.request.app.state.jobs
    if jobs.ledger is None:
        raise Refusal(501, "no-ledger", "This server has no ledger of erasures; run inference-core erase")
    user = look.owner
    begun = await jobs.get(user, job) if job else None
    places = Counter[str]()
    for one in await arun(_counted(look), look.timeout):
        places[PLACES.get(one.namespace[1], ITEMS) if len(one.namespace) > 1 else ITEMS] += one.rows
    return {
        "user": user,
        "found": places.total(),
        "places": places,
        "not_ours": (*NOT_OURS, NO_CHECKPOINTS, NO_OUTBOX),
        "job": begun and {"id": begun.id, "state": begun.state, "left": (begun.result or {}).get("left")},
    }


def _counted(look: Look) -> Operation[list[Tally]]:
    """How many rows of the user each namespace has. Raises Held if the user has legal holds, StoreError."""
    engine, label = look.scope.engine, encode_label(look.owner)
    yield from engine.check_holds(label)
    return (yield from engine.tally((yield from engine.namespaces((label,)))))


@action(f"{OF_USER}/erase", Permission.ADMIN)
async def erase_user(look: Look, form: Form) -> str:
    """Begins to erase everything of the user, if the id was typed in full."""
    if form.get("confirm", "") != look.owner:
        raise Refusal(422, "not-confirmed", "Nothing was erased: the id that you typed is not this user's")
    jobs: Jobs = look.request.app.state.jobs
    begun = await jobs.submit(look.scope, look.owner, "erase", Erasure(dry_run=False, reason="").model_dump())
    return look.link("erase", job=begun.id)
