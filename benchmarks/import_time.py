"""How much the package adds to the time that importing LangChain's agents takes."""

from __future__ import annotations

import statistics
import subprocess
import sys

from report import Row, publish

PROGRAM = """
import sys, time
from langchain.agents import create_agent
start = time.perf_counter()
from inference_core import MemoryMiddleware, open_store
print((time.perf_counter() - start) * 1000)
heavy = {"numpy", "onnxruntime", "tokenizers", "torch", "openai", "fastapi", "sentence_transformers"} & set(sys.modules)
print(" ".join(sorted(heavy)))
"""
RUNS = 11
BAR_MS = 150


def rows() -> list[Row]:
    """The median of several fresh processes."""
    times: list[float] = []
    heavy = ""
    for _ in range(RUNS):
        output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        first, heavy = output.split("\n")[:2]
        times.append(float(first))
    median = statistics.median(times)
    return [
        ("import added to langchain.agents, median", f"{median:.0f} ms", f"≤ {BAR_MS} ms", median <= BAR_MS),
        ("models, servers or numpy that it pulls in", heavy or "none", "none", not heavy),
    ]


if __name__ == "__main__":
    sys.exit(not publish("import", rows()))
