"""langmem, deepagents and LangGraph Server on our stores, where they are installed; with --full."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_support import FACES, ask
from example_support import EXAMPLES
from langchain.agents import create_agent
from langchain_core.tools import tool

from inference_core import MemoryStore
from inference_core.testing import ScriptedChatModel, call_tool

pytestmark = pytest.mark.full
ADA, BOB = "ada@example.com", "bob"
ADAS = "~ada~40example~2ecom"
"""The label of her namespaces."""
START_S = 60.0


@pytest.mark.parametrize("face", FACES)
async def test_langmems_tools(own_store: MemoryStore, face: str) -> None:
    """Guards a user of langmem who changes the store alone."""
    langmem = pytest.importorskip("langmem")
    namespace = ("memories", "{user_id}")
    model = ScriptedChatModel(
        turns=[
            call_tool("manage_memory", content="Ada drinks tea", action="create"),
            call_tool("search_memory", query="tea"),
            "Done.",
        ]
    )
    tools = [langmem.create_manage_memory_tool(namespace), langmem.create_search_memory_tool(namespace)]
    agent = create_agent(model, tools=tools, store=own_store)
    result = await ask(agent, face, "I drink tea", {"configurable": {"user_id": "ada"}})
    created, found = [one.text for one in result["messages"] if one.type == "tool"]
    assert created.startswith("created memory ")
    assert "Ada drinks tea" in found
    assert [item.value for item in own_store.search(("memories", "ada"))] == [{"content": "Ada drinks tea"}]


async def test_langmems_manager(own_store: MemoryStore) -> None:
    langmem = pytest.importorskip("langmem")
    model = ScriptedChatModel(turns=[call_tool("Memory", content="Ada plays chess"), "Done.", "Done."])
    manager = langmem.create_memory_store_manager(model, namespace=("memories", "{user_id}"), store=own_store)
    said = {"messages": [{"role": "user", "content": "I play chess"}]}
    await manager.ainvoke(said, {"configurable": {"user_id": "ada"}})
    (item,) = own_store.search(("memories", "ada"), query="chess")
    assert item.value == {"kind": "Memory", "content": {"content": "Ada plays chess"}}


@pytest.mark.parametrize("face", FACES)
async def test_a_deep_agent_keeps_a_large_result_in_the_store(own_store: MemoryStore, face: str) -> None:
    """Guards items of more than 1 MiB, which ended such a run."""
    deepagents = pytest.importorskip("deepagents")
    backends = pytest.importorskip("deepagents.backends")

    @tool
    def fetch() -> str:
        """Fetches a page."""
        return "first line\n" + "line of text\n" * 100_000

    model = ScriptedChatModel(turns=[call_tool("fetch"), "Done."])

    def adas(_: Any) -> tuple[str, ...]:
        return ("files", "ada")

    backend = backends.StoreBackend(namespace=adas, store=own_store)
    agent: Any = deepagents.create_deep_agent(model, tools=[fetch], backend=backend, store=own_store)
    started = time.monotonic()
    result = await ask(agent, face, "Fetch it")
    assert time.monotonic() - started < 30
    (shown,) = [one.text for one in result["messages"] if one.type == "tool"]
    assert len(shown) < 20_000
    (item,) = own_store.search(("files", "ada"), query="first line")
    assert len(str(item.value["content"])) > 1_300_000


Call = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """LangGraph Server with the example; called with a token, a method, a route and a body."""
    pytest.importorskip("langgraph_api")
    command = shutil.which("langgraph", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("langgraph-cli is not installed")
    folder = tmp_path_factory.mktemp("platform")
    shutil.copytree(EXAMPLES / "platform", folder, dirs_exist_ok=True)
    settings = {"AGENT_MEMORY_EMBEDDINGS": "none", "AGENT_MEMORY_RECALL_TIMEOUT": "60", "LANGSMITH_TRACING": "false"}
    served = json.loads((folder / "langgraph.json").read_text(encoding="utf-8"))
    served |= {"dependencies": ["."], "env": {"TOKENS": f"a={ADA},b={BOB}", **settings}}
    (folder / "langgraph.json").write_text(json.dumps(served), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(token: str, method: str, route: str, body: Any = None) -> tuple[int, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{route}", method=method)
        request.add_header("Authorization", f"Bearer {token}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, json.dumps(body).encode() if body is not None else None) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.strip() else None
        except urllib.error.HTTPError as error:
            return error.code, None

    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    arguments = [command, "dev", "--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_S
            while not answers(call):
                assert process.poll() is None, (folder / "log.txt").read_text("utf-8")[-2_000:]
                assert time.monotonic() < end, "LangGraph Server did not start"
                time.sleep(0.2)
            yield call
        finally:
            process.terminate()
            process.wait(60)


def answers(call: Call) -> bool:
    try:
        return call("a", "GET", "/ok")[0] == 200
    except OSError:
        return False


def asked(call: Call, token: str, text: str, **more: Any) -> dict[str, Any]:
    body = {"assistant_id": "assistant", "input": {"messages": [{"role": "user", "content": text}]}, **more}
    status, result = call(token, "POST", "/runs/wait", body)
    assert status == 200
    return result


def test_on_the_server_two_users_attack_each_other(server: Call) -> None:
    """Guards memories on LangGraph Server: its store routes let every authenticated client at everybody's."""
    item = {"namespace": [ADAS, "semantic"], "key": "falcons"}
    value = {"content": "Ada keeps falcons", "memory_type": "facts"}
    assert server("a", "PUT", "/store/items", {**item, "value": value})[0] == 204
    assert server("b", "PUT", "/store/items", {**item, "value": {**value, "content": "Ada hates falcons"}})[0] == 403
    assert server("b", "DELETE", "/store/items", item)[0] == 403
    assert server("b", "GET", f"/store/items?namespace={ADAS}.semantic&key=falcons")[0] == 403
    for prefix in ([ADAS], [ADAS, "semantic"], ["*"]):
        assert server("b", "POST", "/store/items/search", {"namespace_prefix": prefix})[0] == 403
        assert server("b", "POST", "/store/namespaces", {"prefix": prefix})[0] == 403
    assert server("b", "POST", "/store/items/search", {"namespace_prefix": []}) == (200, {"items": []})
    assert server("b", "POST", "/store/namespaces", {"suffix": ["semantic"]}) == (200, {"namespaces": []})
    assert server("c", "POST", "/store/items/search", {"namespace_prefix": [ADAS]})[0] == 401
    status, found = server("a", "POST", "/store/items/search", {"namespace_prefix": []})
    assert (status, [one["value"] for one in found["items"]]) == (200, [value])


def test_on_the_server_a_run_has_the_memory_of_its_user(server: Call) -> None:
    value = {"content": "Ada keeps herons", "memory_type": "facts"}
    named = {"namespace": [ADAS, "semantic"], "key": "herons", "value": value}
    assert server("a", "PUT", "/store/items", named)[0] == 204
    assert asked(server, "a", "What about herons?")["memories_recalled"] > 0
    assert asked(server, "b", "What about herons?")["memories_recalled"] == 0
    claimed = asked(server, "b", "What about herons?", context={"user_id": ADA})
    assert (claimed["memory_status"], claimed["memories_recalled"]) == ("closed", 0)


def test_on_the_server_a_thread_is_its_owners(server: Call) -> None:
    status, thread = server("a", "POST", "/threads", {})
    assert status == 200
    route = f"/threads/{thread['thread_id']}"
    turn = {"assistant_id": "assistant", "input": {"messages": [{"role": "user", "content": "Hello"}]}}
    assert server("a", "POST", f"{route}/runs/wait", turn)[0] == 200
    assert server("b", "GET", route)[0] == server("b", "GET", f"{route}/state")[0] == 404
    assert server("b", "POST", f"{route}/runs/wait", turn)[0] == 404
    assert server("b", "POST", "/threads/search", {}) == (200, [])
