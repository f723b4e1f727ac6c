"""One AgentService in several event loops."""

from __future__ import annotations

import os
import subprocess

import chat_server
import pytest

PROGRAM = """
import asyncio
from inference_core import AgentService

service = AgentService(model="openai:gpt-5-mini")
service.create_agent_sync()

async def twice():
    return [(await service.arun("hi")).text for _ in range(2)]

print(asyncio.run(service.arun("hi")).text, asyncio.run(twice()), service.run("hi").text)
"""


def test_a_service_outlives_the_event_loop(monkeypatch: pytest.MonkeyPatch, quick_python: str) -> None:
    """A second asyncio.run met the first one's connections: "Event loop is closed".

    In a process of its own: loops that end leave sockets open, which other tests would be blamed for.
    """
    pytest.importorskip("langchain_openai")
    monkeypatch.setattr(chat_server._Handler, "protocol_version", "HTTP/1.1")  # pyright: ignore[reportPrivateUsage] - keeps connections open
    with chat_server.chat_server("one", "two", "three", "four") as (url, _):
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "LANGSMITH_TRACING": "false"}
        command = [quick_python, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "one ['two', 'three'] four\n", done.stderr
