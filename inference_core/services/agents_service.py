"""The documented import path of `AgentService`."""

from inference_core.agents.service import AgentResponse, AgentService

__all__ = ["AgentResponse", "AgentService"]
