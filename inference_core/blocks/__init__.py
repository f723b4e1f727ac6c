"""Long-term memory in pluggable blocks: static, extracted and verbatim knowledge, and an application's own."""
