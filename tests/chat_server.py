"""A chat model behind the OpenAI protocol on loopback, so that what names a provider runs word for word.

It checks what it is sent as the real one does, answers at once or as a stream, and follows a script.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from langchain_core.messages import AIMessage, ToolCall

Request = dict[str, Any]


@dataclass(frozen=True)
class Refusal:
    """An answer with this status and body; with ``said`` a stream that breaks off after that text."""

    status: int
    body: bytes = b'{"error": {"message": "refused\\nby the server"}}'
    said: str = ""


Turn = str | AIMessage | Refusal | Callable[[Request], "str | AIMessage | Refusal"]
"""A text, a message with tool calls (`inference_core.testing.call_tool`), a refusal, or a function of the request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, turns: Sequence[Turn]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self._turns = turns
        self._lock = threading.Lock()

    def turn(self, request: Request) -> str | AIMessage | Refusal:
        """The next turn; after the last one that one again."""
        with self._lock:
            turn = self._turns[min(len(self.requests), len(self._turns) - 1)]
            self.requests.append(request)
        return turn(request) if callable(turn) else turn


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fault := self._fault(request):
            self._send(400, json.dumps({"error": {"message": fault}}).encode())
            return
        turn = cast("_Server", self.server).turn(request)
        if isinstance(turn, Refusal) and not turn.said:
            self._send(turn.status, turn.body)
            return
        if request.get("stream"):
            self._send(200, b"".join(_events(request, turn)), "text/event-stream")
            return
        self._send(200, json.dumps(_completion(request, turn)).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        pass

    def _fault(self, request: Request) -> str | None:
        if self.path != "/v1/chat/completions":
            return f"no such path {self.path}"
        if not self.headers.get("Authorization", "").startswith("Bearer "):
            return "no key"
        return _fault_of(request)

    def _send(self, status: int, payload: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(payload)


def _fault_of(request: Request) -> str | None:
    """What the real server would refuse: unknown roles, tools without a schema, tool messages that answer no call."""
    open_calls: set[str] = set()
    for message in request["messages"]:
        role, content = message["role"], message.get("content")
        if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str | list | None):
            return f"bad message {message}"
        if role == "tool":
            if message["tool_call_id"] not in open_calls:
                return "a tool message must answer a tool call"
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return "a tool call has no answer"
        open_calls |= {call["id"] for call in message.get("tool_calls") or ()}
    for tool in request.get("tools") or ():
        if tool["type"] != "function" or tool["function"]["parameters"]["type"] != "object":
            return f"bad tool {tool}"
    return "a tool call has no answer" if open_calls else None


def _call(call: ToolCall, index: int) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": json.dumps(call["args"])}
    return {"index": index, "id": call["id"], "type": "function", "function": function}


def _content(turn: str | AIMessage | Refusal) -> str:
    return turn if isinstance(turn, str) else turn.said if isinstance(turn, Refusal) else turn.text


def _calls(turn: str | AIMessage | Refusal) -> list[dict[str, Any]]:
    calls = turn.tool_calls if isinstance(turn, AIMessage) else []
    return [_call(call, index) for index, call in enumerate(calls)]


def _head(request: Request, kind: str) -> dict[str, Any]:
    return {"id": "1", "object": kind, "created": 1, "model": request["model"]}


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _completion(request: Request, turn: str | AIMessage | Refusal) -> dict[str, Any]:
    calls = _calls(turn)
    message = {"role": "assistant", "content": _content(turn)} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return _head(request, "chat.completion") | {"choices": [choice], "usage": _USAGE}


def _events(request: Request, turn: str | AIMessage | Refusal) -> Iterator[bytes]:
    """The answer as server-sent events, a word at a time."""

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(_head(request, "chat.completion.chunk") | {"choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    for word in _content(turn).split(" ") if _content(turn) else ():
        yield event({"content": word + " "})
    if isinstance(turn, Refusal):
        yield _event({"error": {"message": "overloaded"}})
        return
    calls = _calls(turn)
    for call in calls:
        yield event({"tool_calls": [call]})
    yield event({}, "tool_calls" if calls else "stop")
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _event(_head(request, "chat.completion.chunk") | {"choices": [], "usage": _USAGE})
    yield b"data: [DONE]\n\n"


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


@contextmanager
def chat_server(*turns: Turn) -> Generator[tuple[str, list[Request]]]:
    """The base URL of a server that follows the script (without one it says hello), and the requests that it gets."""
    server = _Server(turns or ("Hello!",))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", server.requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
