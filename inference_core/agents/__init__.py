"""What a LangGraph agent uses: the memory middleware and the memory tools."""
