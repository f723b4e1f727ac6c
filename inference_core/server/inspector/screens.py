"""What all screens share: who looks at whose memories, pages and their JSON, forms, headers, errors, drawings.

Texts for times and coordinates for SVG are computed here, so that pages need no JavaScript.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from importlib.resources import files
from math import cos, pi, sin
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar, cast
from urllib.parse import parse_qs, quote, urlencode

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from inference_core.effects import Operation, arun
from inference_core.errors import IdentityError, InferenceCoreError, InvalidId
from inference_core.memory.namespaces import (
    MemoryNamespaceBuilder,
    Namespace,
    Owner,
    Space,
    decode_label,
    encode_label,
    holds_memories,
)
from inference_core.memory.record import WEAK_RELEVANCE
from inference_core.memory.text import harmless
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryCategory
from inference_core.server.api.routes import Route, route
from inference_core.server.identity.auth import PREFIX, Permission, Principal, path_of
from inference_core.server.identity.gate import Access, is_own
from inference_core.server.problems import Refusal, told
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.scope import MemoryScope

P = ParamSpec("P")
T = TypeVar("T")
SCREENS: Final = list[Route]()
"""The inspector's routes."""
OF_USER: Final = f"{PREFIX}/u/{{label}}"
"""The path of a user's screens. Its label is `encode_label` of the user's id, as an id may be any text."""
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",  # with no-referrer, browsers send the origin "null" with forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SAID: Final = {
    "approved": "Approved: it is a memory now.",
    "rejected": "Rejected. The same words are not offered again.",
    "restored": "Restored.",
    "taken": "Not restored: another memory now has its ID.",
    "corrected": "Corrected; the earlier text is among its versions.",
    "pinned": "Pinned: it is in every prompt, and never forgotten.",
    "unpinned": "Unpinned.",
    "deleted": "Deleted.",
    "gone": "It was already gone; nothing was changed.",
    "retried": "Back in the outbox.",
    "dropped": "Dropped.",
}
_ASSETS: Final = {
    one.name: one.read_bytes()
    for one in (files("inference_core.server.inspector") / "static").iterdir()
    if one.name.endswith((".js", ".css", ".svg"))
}


def _finalized(value: object) -> object:
    return harmless(value) if type(value) is str else value


_TEMPLATES: Final = Environment(
    loader=PackageLoader("inference_core.server.inspector"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_finalized,
)


class _AllAgents(MemoryNamespaceBuilder):
    """Reads what all agents of one user have written, as the inspector shows all that is remembered of a user."""

    def __init__(self, names: list[Namespace]) -> None:
        super().__init__()
        self._names = names

    def read_scopes(self, user_id: Owner, category: MemoryCategory | str | None = None) -> list[Namespace]:
        usual = super().read_scopes(user_id, category)
        wanted = {name[1] for name in usual}
        further = [] if isinstance(user_id, Space) else [name for name in self._names if name[1] in wanted]
        return list(dict.fromkeys([*usual, *further]))


@dataclass(frozen=True, slots=True)
class Look:
    """A request for a screen: who looks, and at whose memories. Recalls with ``scope`` do not count as use."""

    request: Request
    scope: MemoryScope
    timeout: float | None
    user: str | None

    @property
    def principal(self) -> Principal:
        """Who looks."""
        return self.request.state.principal

    def may(self, permission: str) -> bool:
        """Whether the principal has ``permission``."""
        return Permission(permission) in self.principal.permissions

    @property
    def base(self) -> str:
        """The address of the inspector, below whatever prefix the application is served under."""
        return f"{self.request.scope.get('root_path', '')}{PREFIX}"

    @property
    def home(self) -> str:
        """The address below which the user's screens are."""
        return self.base if self.user is None else f"{self.base}/u/{encode_label(self.user)}"

    def of(self, user: str) -> str:
        """The address of another user's first screen."""
        return f"{self.base}/u/{encode_label(user)}/timeline"

    @property
    def has_session(self) -> bool:
        """Whether the request has a session, not only a key or an anonymous user."""
        return sessions_of(self.request).key(self.request.scope) is not None

    @property
    def said(self) -> str | None:
        """The outcome of the form that led to this screen; None without one."""
        return _SAID.get(self.request.query_params.get("said", ""))

    @property
    def zone(self) -> str:
        """The name of the time zone in which times are shown."""
        return str(self.scope.zone)

    @property
    def form_token(self) -> str:
        """The CSRF token that `checked_form` expects in every form of this session."""
        who = f"{self.principal.key_id}\0{self.principal.subject}"
        return sessions_of(self.request).form_token(self.request.scope, who)

    @property
    def owner(self) -> str:
        """The user's id, on screens below `OF_USER`."""
        assert self.user is not None  # noqa: S101 - they are below OF_USER
        return self.user

    @property
    def source(self) -> MemorySource:
        """Whose words a form holds: the user's own, or those of somebody who acts for the user."""
        is_own = self.principal.subject == self.user
        return MemorySource(origin=Origin.USER if is_own else Origin.APPLICATION)

    def link(self, name: str, **query: object) -> str:
        """The address of one of the user's screens."""
        given = {key: value for key, value in query.items() if value not in (None, "")}
        return f"{self.home}/{name}" + (f"?{urlencode(given)}" if given else "")

    async def run(
        self,
        operation: Callable[Concatenate[MemoryScope, str, P], Operation[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Runs an operation on the user's memories."""
        return await arun(operation(self.scope, self.owner, *args, **kwargs), self.timeout)

    def screen(self, template: str, data: dict[str, Any], status: int = 200) -> Response:
        """The page made of ``data``, or ``data`` itself where the address ends with .json."""
        if self.request.url.path.endswith(".json"):
            return JSONResponse(data, status)
        page = {"look": self, "page": template, "static": static, **data}
        return HTMLResponse(_TEMPLATES.get_template(f"{template}.html").render(page), status)


async def look_of(request: Request, label: str | None = None) -> Look:
    """The `Look` of a request at the user with ``label``, or the principal's own. Raises Refusal, StoreUnavailable."""
    service: AgentMemoryStoreService = request.app.state.service
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None:
        raise Refusal(401, "unauthenticated")
    user = principal.subject
    if label is not None:
        try:
            user = decode_label(label)
        except InvalidId:
            raise _elsewhere(request, label) from None
    if user != principal.subject and Permission.ACT_AS not in principal.permissions:
        raise Refusal(403, "identity-error", "You may look only at your own memories")
    scope = replace(service.scope, actor=principal.actor, counts_access=False)
    if user is not None:
        names = await arun(scope.engine.namespaces((encode_label(user),)), service.timeout)
        scope = replace(scope, namespaces=_AllAgents(list(filter(holds_memories, names))))
    return Look(request, scope, service.timeout, user)


def _elsewhere(request: Request, user: str) -> Refusal:
    """The redirection of an address that names a user by the plain id; a 404 if that is no id."""
    start = f"{PREFIX}/u/{user}"
    path = path_of(request.scope)
    is_label = user.startswith("~")  # a broken one: another id may begin with it, but only encoded
    if is_label or request.method not in ("GET", "HEAD") or not path.startswith(f"{start}/"):
        return Refusal(404, "no-such-user", "There is no such user")
    try:
        place = f"{request.scope.get('root_path', '')}{PREFIX}/u/{encode_label(user)}{quote(path.removeprefix(start))}"
    except InvalidId:
        return Refusal(404, "no-such-user", "There is no such user")
    query = f"?{request.url.query}" if request.url.query else ""
    return Refusal(303, "see-other", headers={"Location": place + query})


Looking = Annotated[Look, Depends(look_of)]
Form = dict[str, str]
Change = Callable[[Look, Form], Awaitable[str | Response]]


class _Screen(Route):
    """A route that answers errors with pages, too, except for addresses that end with .json."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except (Refusal, InferenceCoreError, RequestValidationError) as error:
                if request.url.path.endswith(".json"):
                    raise
                response = _error(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


def screen(
    path: str, template: str, permission: Permission | None = Permission.READ
) -> Callable[[Callable[P, Awaitable[dict[str, Any]]]], Callable[P, Awaitable[dict[str, Any]]]]:
    """Serves what a function returns as a page at ``path``, and as JSON at ``path`` with .json.

    The function has a parameter ``look`` of the type `Looking`.
    """

    def add(read: Callable[P, Awaitable[dict[str, Any]]]) -> Callable[P, Awaitable[dict[str, Any]]]:
        @wraps(read)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> Response:
            look = kwargs["look"]
            assert isinstance(look, Look)  # noqa: S101 - FastAPI gives it
            return look.screen(template, await read(*args, **kwargs))

        for one in (path, f"{path}.json"):
            page(one, permission)(answer)
        return read

    return add


def action(path: str, permission: Permission = Permission.WRITE) -> Callable[[Change], Change]:
    """Calls a function with each form sent to ``path``; redirects to the address that it returns, or shows the page."""

    def add(change: Change) -> Change:
        async def answer(look: Looking) -> Response:
            done = await change(look, await checked_form(look))
            return RedirectResponse(done, 303) if isinstance(done, str) else done

        answer.__name__ = change.__name__
        page(path, permission, method="POST")(answer)
        return change

    return add


def page(path: str, permission: Permission | None, method: str = "GET") -> Callable[[Callable[..., Any]], Any]:
    """Adds a route to `SCREENS`, for principals with ``permission``; None: for everybody."""
    return route(
        method,
        path,
        permission,
        table=SCREENS,
        include_in_schema=False,
        response_model=None,
        kind=_Screen,
    )


def check_origin(request: Request) -> None:
    """Raises Refusal for a form that a page of another site has sent, even a site that may use the API."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    is_foreign = origin is not None and not is_own(origin, request.headers)
    if is_foreign or site not in ("same-origin", "none"):
        raise Refusal(403, "wrong-origin", "Forms are accepted only from the inspector's own pages")


async def checked_form(look: Look) -> Form:
    """The fields of a form. Raises Refusal unless a page of this session has sent it."""
    form = await form_of(look.request)
    check_origin(look.request)
    if not hmac.compare_digest(form.get("token", "").encode(), look.form_token.encode()):
        raise Refusal(403, "stale-form", "This form is no longer from your session; go back and reload it")
    return form


async def form_of(request: Request) -> Form:
    """The fields of a form, the first value of each. Raises Refusal for a body that is not a form."""
    try:
        fields = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise Refusal(400, "unreadable") from error
    return {name: values[0] for name, values in fields.items()}


def access_of(request: Request) -> Access:
    """Whom the server lets in."""
    return request.app.state.access


def sessions_of(request: Request) -> Any:
    """The sessions of the server."""
    return access_of(request).sessions


def plain_page(request: Request, template: str, data: dict[str, Any], status: int = 200) -> Response:
    """A page without a user: one of the login, or an error."""
    base = f"{request.scope.get('root_path', '')}{PREFIX}"
    given = {"look": None, "page": template, "static": static, "base": base, **data}
    return HTMLResponse(_TEMPLATES.get_template(f"{template}.html").render(given), status)


def _error(request: Request, error: Exception) -> Response:
    match error:
        case Refusal():
            status, detail = error.status, error.detail
            if status < 400:  # noqa: PLR2004 - no error, but a redirect
                return error.response(request.scope)
        case InferenceCoreError():
            problem = told(error)
            status, detail = problem.status, problem.detail
        case _:
            status, detail = 422, "Something in this address is not valid"
    is_mine = isinstance(error, IdentityError)
    return plain_page(request, "error", {"status": status, "detail": "" if is_mine else detail or ""}, status)


def asset(name: str) -> bytes | None:
    """The content of a static file; None if there is none with this name."""
    return _ASSETS.get(name)


def static(name: str) -> str:
    """The address of a static file, relative to the inspector's. It changes with the content, so it can be cached."""
    return f"static/{name}?v={hashlib.sha256(_ASSETS[name]).hexdigest()[:12]}"


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


def bars(shares: Mapping[str, float], most: float) -> list[dict[str, Any]]:
    """The evidence of a score side by side, at a scale where ``most`` takes the full width.

    What counts for every memory, such as its role, has no bar: it is on each, and longer than what tells them apart.
    """
    at, drawn = 0.0, list[dict[str, Any]]()
    for name, kind in _KINDS.items():
        if (share := shares.get(name, 0.0)) > 0:
            width = WIDTH * share / most
            drawn.append({"x": round(at, 2), "width": round(width, 2), "kind": kind, "name": name})
            at += width
    return drawn


def most_of(scores: Iterable[Mapping[str, float]]) -> float:
    """The largest sum of evidence among the shares of ``scores``."""
    return max((sum(max(shares.get(name, 0.0), 0.0) for name in _KINDS) for shares in scores), default=0.0)


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
        {"from": places[edge["from"]], "to": places[edge["to"]], "kind": edge["kind"]}
        for edge in edges
        if edge["from"] in places and edge["to"] in places
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


cast("dict[str, Any]", _TEMPLATES.globals).update(
    {one.__name__: one for one in (bars, clock, day, dumps, graph, lasting, most_of, stamp)} | {"WEAK": WEAK_RELEVANCE}
)
_TEMPLATES.filters |= {"counted": "{:,}".format, "percent": "{:.0%}".format, "query": urlencode, "shell": shlex.quote}
