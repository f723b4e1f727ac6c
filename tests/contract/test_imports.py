"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "numpy onnxruntime tokenizers torch fastapi openai"
PROGRAM = f"""
import sys
from langchain.agents import create_agent
from inference_core import AgentMemoryStoreService, MemoryMiddleware, open_store
print(*sorted(set("{HEAVY}".split()) & set(sys.modules)))

def telemetry():
    return {{name for name in sys.modules if name.startswith(("opentelemetry", "langsmith", "prometheus"))}}

known = telemetry()
memory = AgentMemoryStoreService(open_store("memory://", embeddings=None)).sync
memory.save_memory("ada", "Lives in Lisbon", "facts")
assert memory.recall_memories("ada", "Lisbon")
print(*telemetry() - known)
"""
WITHOUT = """
import sys
sys.modules |= dict.fromkeys(("opentelemetry", "prometheus_client"))  # as if they were not installed
"""


@pytest.mark.parametrize("before", ["", WITHOUT], ids=["with", "without"])
def test_regression_the_middleware_is_imported_without_numpy_and_models(before: str):
    """A process without libraries of telemetry saves and recalls; so does one with them, and loads no more of them."""
    found = subprocess.run([sys.executable, "-c", before + PROGRAM], capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("\n\n", 0), found.stderr
