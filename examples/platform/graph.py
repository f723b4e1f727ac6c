"""An agent with memory for LangGraph Server.

There is no ``store=``: the server gives the graph its own store, and the memories go there. The user is the one that
the server authenticated (`auth.py`); for a run that claims another user, memory is off. The settings come from
``.env``, which ``langgraph.json`` names. Without AGENT_MODEL (for example ``openai:gpt-5-mini``) a script replies.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent

from inference_core import AgentSettings, MemoryContext, MemoryMiddleware, MemorySettings
from inference_core.testing import ScriptedChatModel

model: Any = AgentSettings().model or ScriptedChatModel(
    turns=["No model is configured: set AGENT_MODEL. Your memories are recalled all the same."]
)
graph = create_agent(
    model,
    system_prompt="You are a helpful assistant.",
    middleware=[MemoryMiddleware.from_settings(MemorySettings(), agent_name="assistant")],
    context_schema=MemoryContext,
)
