"""What the package adds to importing LangChain's agents, and what a new process takes for a first answer by words.

Both in the processor's time, the least of several fresh processes, as other programs only add to it.
"""

from __future__ import annotations

import subprocess
import sys

from report import Row, publish
from timing import scratch

ADDED = """
import sys, time
from langchain.agents import create_agent
start = time.process_time()
from inference_core import MemoryMiddleware, open_store
print((time.process_time() - start) * 1000)
heavy = {"numpy", "onnxruntime", "tokenizers", "torch", "openai", "fastapi", "sentence_transformers"} & set(sys.modules)
print(" ".join(sorted(heavy)))
"""
ANSWERED = """
import sys, time
from inference_core import open_store
with open_store(sys.argv[1], embeddings=None) as store:
    if not store.memory("ada").search("What tea?"):
        store.memory("ada").add("Likes green tea")
    print(time.process_time() * 1000)
"""
RUNS = 11
BAR_MS = 65
ANSWER_BAR_MS = 400


def rows() -> list[Row]:
    """The least of several fresh processes."""
    with scratch() as folder:
        url = f"sqlite:///{folder / 'memory.db'}"
        _printed(ANSWERED, url)
        added = [_printed(ADDED) for _ in range(RUNS)]
        answered = min(float(_printed(ANSWERED, url)[0]) for _ in range(RUNS))
    least, heavy = min(float(first) for first, _ in added), added[0][1]
    return [
        ("import added to langchain.agents", f"{least:.0f} ms", f"≤ {BAR_MS} ms", least <= BAR_MS),
        (
            "a new process until its first answer",
            f"{answered:.0f} ms",
            f"≤ {ANSWER_BAR_MS} ms",
            answered <= ANSWER_BAR_MS,
        ),
        ("models, servers or numpy that the import pulls in", heavy or "none", "none", not heavy),
    ]


def _printed(program: str, *arguments: str) -> list[str]:
    """The lines that ``program`` prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:2]


if __name__ == "__main__":
    sys.exit(not publish("import", rows()))
