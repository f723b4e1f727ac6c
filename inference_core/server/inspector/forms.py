"""What people change in the inspector: signing in and out, and the forms of its screens. A screen follows each form."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from inference_core.effects import arun
from inference_core.errors import InferenceCoreError, VersionConflict
from inference_core.lifecycle.forgetting import restore
from inference_core.outbox import outbox as queue
from inference_core.server.api.jobs import Jobs
from inference_core.server.api.wire import Erasure
from inference_core.server.identity.auth import LASTS_S, PREFIX, Permission, cookie_name
from inference_core.server.inspector.pages import cut, memory_of, profile_of
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
    sessions_of,
)
from inference_core.server.problems import Refusal, told
from inference_core.services.operations.delete import delete
from inference_core.services.operations.profile import edit_profile
from inference_core.services.operations.review import approve_pending, reject_pending
from inference_core.services.operations.save import update

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


@action(f"{OF_USER}/memory")
async def change_memory(look: Look, form: Form) -> str | Response:
    """Corrects, pins, unpins, deletes or restores the memory, if nobody has changed it since the page was made."""
    name, content = form.get("id", ""), form.get("content", "")
    if not form.get("version", "").isdecimal():
        raise Refusal(422, "invalid-input", "This form is not complete; reload the page of the memory")
    at = int(form["version"])
    try:
        match form.get("do"):
            case "correct":
                done = await look.run(update, name, content, source=look.source, expected_version=at)
                said = "corrected"
            case "pin" | "unpin" as do:
                done, said = await look.run(update, name, pinned=do == "pin", expected_version=at), f"{do}ned"
            case "delete":
                done, said = await look.run(delete, name, expected_version=at), "deleted"
            case "restore":
                done, said = bool((await look.run(restore, [name])).restored), "restored"
            case _:
                raise Refusal(422, "invalid-input", "Say whether to correct, pin, unpin, delete or restore")
    except VersionConflict:
        problem = "Nothing was changed: somebody has changed this memory since. This is how it is now."
        return look.screen("memory", await memory_of(look, name) | {"problem": problem, "draft": content or None}, 409)
    is_there = said != "deleted" or look.scope.deleted_days
    return look.link("memory" if is_there else "timeline", id=name if is_there else None, said=said if done else "gone")


@action(f"{OF_USER}/profile")
async def change_profile(look: Look, form: Form) -> Response:
    """Makes the changes of an edited profile, and lists them; one that is refused is shown again with what is wrong."""
    text, before = form.get("text", ""), form.get("before", "")
    try:
        made = await look.run(edit_profile, text, before, source=look.source)
    except InferenceCoreError as error:
        problem, page = told(error), await profile_of(look)
        shown = {"text": text, "before": before, "now": page["text"], "problem": problem.detail or problem.title}
        return look.screen("profile", page | shown, problem.status)
    listed = [{"id": one.memory_id, "content": cut(str(one)), "is_deleted": one.after is None} for one in made]
    return look.screen("profile", await profile_of(look) | {"made": listed})


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
        done = await arun(queue.retry(engine, look.scope.clock, keys), look.timeout)
    elif form.get("do") == "drop":
        done = await arun(queue.drop(engine, keys), look.timeout)
    else:
        raise Refusal(422, "invalid-input", "Say whether to retry or to drop")
    said = {"retry": "retried", "drop": "dropped"}[form["do"]] if done else "gone"
    return f"{look.base}/outbox?said={said}"


@action(f"{OF_USER}/erase", Permission.ADMIN)
async def erase_user(look: Look, form: Form) -> str:
    """Begins to erase everything of the user, if the id was typed in full."""
    if form.get("confirm", "") != look.owner:
        raise Refusal(422, "not-confirmed", "Nothing was erased: the id that you typed is not this user's")
    jobs: Jobs = look.request.app.state.jobs
    begun = await jobs.submit(look.scope, look.owner, "erase", Erasure(dry_run=False, reason="").model_dump())
    return look.link("erase", job=begun.id)


@page(f"{PREFIX}/{{rest:path}}", Permission.READ)
async def nowhere(rest: str) -> Response:
    """A page for an address that has none; the last of the routes. Raises Refusal."""
    del rest
    raise Refusal(404, "no-such-path", "There is no such page")
