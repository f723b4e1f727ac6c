"""Errors as RFC 9457 problems: one table from the package's exceptions to statuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from inference_core import errors
from inference_core.memory.redaction import DEFAULT_GUARD

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:inference-core:error:"
RETRY_AFTER_S: Final = 1
_NOT_MODIFIED: Final = 304
_NO_METHOD: Final = 405
_SERVER_FAILED: Final = 500
STATUSES: Final[Mapping[type[errors.InferenceCoreError], int]] = {
    errors.InferenceCoreError: 500,
    errors.InvalidInput: 422,
    errors.UntrustedWrite: 403,
    errors.ConfigurationError: 501,
    errors.ReadOnlyMemory: 403,
    errors.MemoryNotFound: 404,
    errors.IdentityError: 403,
    errors.EmbeddingError: 503,
    errors.ModelError: 503,
    errors.StoreError: 500,
    errors.VersionConflict: 409,
    errors.Held: 423,
    errors.UnsupportedSchema: 409,
    errors.ReadOnlyStore: 403,
    errors.QuotaExceeded: 403,
    errors.ScopeTooLarge: 422,
    errors.StoreUnavailable: 503,
}
"""The status of each error; a subclass that is not listed has that of its nearest base."""
_TITLES: Final = {
    400: "The request cannot be read",
    401: "A valid key is needed",
    403: "This is not allowed",
    404: "There is no such thing",
    405: "This method is not offered here",
    408: "The body did not arrive in time",
    409: "It conflicts with what is there",
    412: "The memory was changed meanwhile",
    413: "The body is too large",
    421: "This server does not answer for that host",
    422: "Some of the input is invalid",
    423: "A legal hold keeps it",
    428: "Say which version you replace",
    429: "Too many requests",
    500: "The server failed",
    501: "This server is not set up for it",
    503: "The store does not answer; try again",
}


class FieldError(BaseModel):
    """What is wrong with one field of a request."""

    location: str = Field(description="Where it stands, such as body.content.")
    message: str


class Problem(BaseModel):
    """An error, as RFC 9457 describes it."""

    type: str = Field(description=f"{TYPE_PREFIX} and the name of the error in the package, in kebab case.")
    title: str
    status: int
    detail: str | None = Field(None, description="What to do about it.")
    errors: list[FieldError] | None = Field(None, description="The fields at fault.")
    pending_id: str | None = Field(None, description="Under which id it waits for the user's confirmation.")


class Refusal(Exception):
    """A request that this server does not carry out. ``name`` becomes the problem's type."""

    def __init__(
        self, status: int, name: str, detail: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail or name)
        self.status, self.name, self.detail, self.headers = status, name, detail, dict(headers or {})

    def response(self, scope: Scope) -> Response:
        """The answer to the request of ``scope``."""
        if self.status == _NOT_MODIFIED:
            return Response(status_code=self.status, headers=self.headers)
        return answer(scope, problem_of(self.status, self.name, self.detail), self.headers)


Form = Callable[[Scope, Problem], Response | None]
"""Makes the response of a problem; None: this request's errors are problems."""


def answer(scope: Scope, told: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The response for a problem, in the form that the application's state has for requests like this one, if any."""
    form: Form | None = getattr(scope["app"].state, "form_of_errors", None)
    made = form and form(scope, told)
    if made is None:
        made = Response(json.dumps(told.model_dump(exclude_none=True)), told.status, media_type=MEDIA_TYPE)
    made.headers.update(headers or {})
    return made


def problem_of(status: int, name: str, detail: str | None = None, faults: Sequence[FieldError] = ()) -> Problem:
    """A problem. In ``detail``, secrets are redacted and lone surrogates escaped."""
    # The detail may quote the request, such as an unknown id, and that may be a secret.
    detail = detail and DEFAULT_GUARD.text(detail.encode(errors="backslashreplace").decode())
    return Problem(
        type=TYPE_PREFIX + name,
        title=_TITLES.get(status, "The request failed"),
        status=status,
        detail=detail,
        errors=list(faults) or None,
        pending_id=None,
    )


def status_of(kind: type[errors.InferenceCoreError]) -> int:
    """The status of an error of this ``kind``."""
    return next(STATUSES[one] for one in kind.__mro__ if one in STATUSES)


def name_of(kind: type[BaseException]) -> str:
    """What a problem calls this ``kind`` of error: VersionConflict is version-conflict."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def told(error: errors.InferenceCoreError) -> Problem:
    """The problem for an error of this package. With a status of 500 or above, only ConfigurationError tells its text.

    WriteUnknown tells how to repeat the write instead.
    """
    status = status_of(type(error))
    is_ours = status < _SERVER_FAILED or isinstance(error, errors.ConfigurationError)
    detail = str(error) if is_ours else None
    if isinstance(error, errors.WriteUnknown):
        detail = "The write was sent and not confirmed; repeat it with the same memory id or Idempotency-Key"
    made = problem_of(status, name_of(type(error)), detail)
    made.pending_id = error.pending_id if isinstance(error, errors.ConfirmationNeeded) else None
    return made


async def on_error(request: Request, error: Exception) -> Response:
    """The response for an error of this package; 412 for a VersionConflict of a conditional request."""
    assert isinstance(error, errors.InferenceCoreError)  # noqa: S101 - it is registered for these alone
    made = told(error)
    if isinstance(error, errors.VersionConflict) and {"if-match", "if-none-match"} & {*request.headers}:
        made.status, made.title = 412, _TITLES[412]
    headers = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, errors.StoreUnavailable) else {}
    return answer(request.scope, made, headers)


async def on_refused(request: Request, error: Exception) -> Response:
    """The problem of a request that is not carried out."""
    assert isinstance(error, Refusal)  # noqa: S101 - it is registered for these alone
    return error.response(request.scope)


async def on_invalid(request: Request, error: Exception) -> Response:
    """The problem of a request that does not fit the schema; never repeats what was sent."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it is registered for these alone
    faults: list[dict[str, Any]] = list(error.errors())
    found = [FieldError(location=".".join(map(str, fault["loc"])), message=fault["msg"]) for fault in faults]
    return answer(request.scope, problem_of(422, "invalid-request", faults=found))


async def on_http(request: Request, error: Exception) -> Response:
    """The problem of what the framework refuses: no such path or method, a body that is no JSON.

    What asks for the methods of a path is told them.
    """
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these alone
    if error.status_code == _NO_METHOD:
        found = [one for one in request.app.routes if one.matches(request.scope)[0] is not Match.NONE]
        methods = {method for one in found for method in getattr(one, "methods", None) or ()} | {"OPTIONS"}
        allow = {"Allow": ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allow)
        return answer(request.scope, problem_of(_NO_METHOD, "method-not-allowed"), allow)
    names = {400: "unreadable", 404: "no-such-path", 405: "method-not-allowed"}
    name = names.get(error.status_code, "refused")
    return answer(request.scope, problem_of(error.status_code, name), error.headers)
