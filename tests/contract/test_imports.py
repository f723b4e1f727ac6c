"""What importing the package costs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from inference_core.lazy import lazy_pattern

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


LEAN = """
import sys
from inference_core import open_store
memory = open_store("memory://", embeddings=None).memory("ada")
memory.add("Lives in Lisbon")
assert memory.search("Lisbon")
unused = {"langsmith", "langchain_core.language_models.base", "langchain_core.tools.base", "pydantic_settings"}
print(*sorted(unused & set(sys.modules)))
"""


def test_a_memory_alone_is_used_without_chat_models_tools_tracers_and_settings():
    """They take as long to import as all the rest."""
    found = subprocess.run([sys.executable, "-c", LEAN], capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("\n", 0), found.stderr


def test_a_lazy_pattern_is_one_that_was_compiled():
    lazy, compiled = lazy_pattern("(?P<word>[a-z]+)", re.IGNORECASE), re.compile("(?P<word>[a-z]+)", re.IGNORECASE)
    assert vars(lazy).keys() == {"_given"}
    assert lazy.sub("x", "Two words") == compiled.sub("x", "Two words") == "x x"
    assert (lazy.pattern, lazy.flags, lazy.groupindex) == (compiled.pattern, compiled.flags, compiled.groupindex)
    assert [match["word"] for match in lazy.finditer("Two words")] == ["Two", "words"]
