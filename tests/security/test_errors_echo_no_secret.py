"""Whatever argument a caller gives a secret as, no error and no answer repeats it, nor does what caused the error."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from server_support import served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.agents.tools import get_memory_tools
from inference_core.memory.secrets import quoted

SECRETS = ["ghp_" + "aB3x" * 9, "sk-ant-api03-" + "aB3xQ9" * 15 + "-aB3xQ9AA", "AKIA" + "Q3EX5Z7M2K4L6P8R"]
VERBS = ["save_memory", "update_memory", "recall_memories", "delete_memory", "list_memories", "get_memory", "why"]
CALLERS_OWN = {"session_id", "user_id"}
"""Names that the application chooses, and gets back."""


def forms(secret: str) -> list[Any]:
    """The secret as a value of each kind that JSON has."""
    return [secret, f"the key {secret}", [secret], {secret: secret}, {"a": secret}]


@pytest.fixture
def service() -> Iterator[AgentMemoryStoreService]:
    with open_store("memory://", embeddings=None) as store:
        yield AgentMemoryStoreService(store)


def said(error: BaseException | None) -> Iterator[str]:
    """What an error says, and what caused it."""
    while error is not None:
        yield repr(error)
        yield str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def answer_of(call: Any, *args: Any, **kwargs: Any) -> str:
    try:
        return repr(call(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - whichever it is
        return " ".join(said(error))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("verb", VERBS)
def test_the_service_repeats_none(service: AgentMemoryStoreService, verb: str, secret: str) -> None:
    method = getattr(service.sync, verb)
    for name in set(inspect.signature(method).parameters) - CALLERS_OWN:
        for value in forms(secret):
            known = service.sync.save_memory("ada", "Lives in Lisbon", "facts")
            usual = {"user_id": "ada", "content": "Lives in Porto", "memory_id": known, "query": "Lisbon"}
            given = {one: usual[one] for one in inspect.signature(method).parameters if one in usual} | {name: value}
            assert secret not in answer_of(method, **given), (name, value)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("is_call", [False, True])
def test_the_tools_repeat_none(service: AgentMemoryStoreService, secret: str, is_call: bool) -> None:
    for tool in get_memory_tools(service, "ada"):
        for name in tool.args:
            for value in forms(secret):
                known = service.sync.save_memory("ada", "Lives in Lisbon", "facts")
                usual = {"content": "Lives in Porto", "memory_type": "facts", "memory_id": known, "query": "Lisbon"}
                given = {one: usual[one] for one in tool.args if one in usual} | {name: value}
                asked: Any = {"type": "tool_call", "name": tool.name, "args": given, "id": "1"} if is_call else given
                assert secret not in answer_of(tool.invoke, asked), (tool.name, name, value)


@pytest.mark.parametrize("secret", SECRETS)
async def test_the_http_api_repeats_none(service: AgentMemoryStoreService, secret: str) -> None:
    fields = ["content", "memory_type", "category", "importance", "tags", "topic", "valid_from", "memory_id", "pinned"]
    async with served(service).client("ada") as client:
        for name in fields:
            for value in forms(secret):
                answer = await client.post("/v1/memories", json={"content": "Lives in Lisbon"} | {name: value})
                assert answer.status_code < 500
                assert secret not in answer.text, (name, value)
        for name in ("query", "k", "memory_type", "category", "filter", "as_of"):
            for value in forms(secret):
                answer = await client.post("/v1/memories/search", json={"query": "Lisbon"} | {name: value})
                assert answer.status_code < 500
                assert secret not in answer.text, (name, value)
        for path in (f"/v1/memories/{secret}", f"/v1/memories?after={secret}", f"/v1/memories?limit={secret}"):
            answer = await client.get(path)
            assert answer.status_code < 500
            assert secret not in answer.text, path


def test_what_is_shown_is_short_and_says_the_kind() -> None:
    assert quoted("fact") == "'fact'"
    assert quoted({"a": SECRETS[0]}) == "{'a': '[redacted: github_token]'}"
    assert quoted("x" * 79 + SECRETS[0]) == "'" + "x" * 79, "cut after it was searched"
    assert len(quoted("x" * 10**6)) == 80
