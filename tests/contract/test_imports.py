"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = "numpy onnxruntime tokenizers torch fastapi openai"
PROGRAM = f"""
import sys
from langchain.agents import create_agent
from inference_core import AgentMemoryStoreService, MemoryMiddleware, open_store
print(*sorted(set("{HEAVY}".split()) & set(sys.modules)))
"""


def test_regression_the_middleware_is_imported_without_numpy_and_models():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
