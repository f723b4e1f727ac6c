"""Tells a user's own words from what they pasted: code, quotations, letters, documents to work on."""

from __future__ import annotations

import re
from typing import Final

FENCE: Final = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
SIGNS: Final = (
    r"^[ \t]{0,8}(?:[>|#$]|(?:from|to|subject|date|sent|cc):\s|-{3,}|={3,}|_{3,}|(?:dear|hi|hello) "
    r"[^\n]{1,40},\s*$|\[?\d\d:\d\d)"
)
"""The start of a line from which a message is pasted text (MULTILINE, IGNORECASE)."""
_PASTED: Final = re.compile(SIGNS, re.IGNORECASE | re.MULTILINE)
_TO_WORK_ON: Final = re.compile(
    r"\b(?:summari[sz]e|translate|proofread|review|rephrase|rewrite|shorten|analy[sz]e|explain|what does|look at|read"
    r"|check|here(?:'s| is| are)|(?:this|these|following|attached|forwarded) (?:e-?mail|mail|message|document|doc"
    r"|article|page|letter|text|note|notes|log|logs|output|readme|ticket|transcript|file|review|post))\b"
    r"[^\n:]{0,80}:(?=[\s\"'\u201c\u201e\u00ab])",
    re.IGNORECASE,
)


def own_words(text: str) -> str:
    """``text`` without code, up to the first sign of pasted text; a greeting in the first line is none."""
    text = FENCE.sub("\n", text)
    start = 0 if text.lstrip().startswith(">") else max(text.find("\n"), 0)
    signs = [sign.start() for sign in (_PASTED.search(text, start),) if sign]
    signs += [sign.end() for sign in (_TO_WORK_ON.search(text),) if sign]
    return text[: min(signs, default=len(text))]
