"""Long-term memory in pluggable blocks: static, extracted, verbatim, or your own."""
