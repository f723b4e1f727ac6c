"""Candidates for memories, extracted from messages: by a chat model, or by rules without one."""
