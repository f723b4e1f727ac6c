"""For LangGraph agents: `AgentService`, the memory middleware, the memory tools and the checkpointers."""
