"""Where memories are kept: one protocol for databases, and LangGraph stores on top of it."""
