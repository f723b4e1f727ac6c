"""ContextBuilder: the context of a prompt from many sources, for applications that put prompts together themselves.

The middleware does not use it: a turn of an agent is gathered by `services/operations/prompt_context.py`.
"""
