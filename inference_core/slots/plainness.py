"""Whether a text states something plainly: no question, guess, plan, quotation, hearsay, joke or passing state.

What is not certain is not plain. English, with the most frequent German words.
"""

from __future__ import annotations

import re
from typing import Final

_CONTRACTIONS: Final = [
    (re.compile(pattern, re.IGNORECASE), expansion)
    for pattern, expansion in [
        (r"[\u2018\u2019\u02bc]", "'"),
        (r"\bcan't\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"\b(i)'m\b", r"\1 am"),
        (r"'re\b", " are"),
        (r"'ve\b", " have"),
        (r"'ll\b", " will"),
        (r"\b(i|we|you|he|she|they|it)'d (?=better|rather|like|love|prefer|be\b)", r"\1 would "),
        (r"\b(i|we|you|he|she|they)'d\b", r"\1 had"),
        (r"\b(it|he|she|that|here|there|what|who)'s\b", r"\1 is"),
        (r"\bcannot\b", "can not"),
        (r"\bno more\b", "not any more"),
        (r"\bcan not (?:stand|bear)\b", "hate"),
    ]
]
_QUESTION: Final = re.compile(
    r"\?|\A\W*(?:do|does|did|is|are|am|was|were|can|could|should|would|what|who|where|when|why|how|which|whose)\b",
    re.IGNORECASE,
)
_GUESS: Final = (
    r"if|whether|maybe|perhaps|possibly|probably|likely|might|could|would|should|suppose|supposing|imagine"
    r"|pretend|assume"
    r"|assuming|wish|wished|hope|hoping|hopefully|unless|wonder|wondering|dreamed|dreamt|dream|as though|another life"
    r"|not sure|unsure|guess|considering|thinking of|thinking about|almost|nearly|let us|let's"
    r"|(?:i|we|you|he|she|it|they) may|may (?:be|have|become|get|not|move|go|change|switch|well|still|also)"
    r"|vielleicht|wenn|falls|ob|w\u00fcrde|k\u00f6nnte|m\u00f6glicherweise|angenommen|hoffe|w\u00fcnschte"
)
_PLAN: Final = (
    r"will|shall|going to|gonna|plan to|plans to|planning|intend|intends|want to|wants to|wanted to|like to|love to"
    r"|about to|try to|trying to|aim to|decided to|need to|needs to|have to|has to|looking for|looking to"
    r"|next (?:week|month|year|spring|summer|autumn|fall|winter|monday|tuesday|wednesday|thursday|friday|saturday"
    r"|sunday)"
    r"|tomorrow|soon|upcoming|future|some ?day|eventually|one day|an interview|applied|apply|want"
    r"|(?:am|is|are) (?:starting|moving|joining|getting|leaving|switching|changing|buying|quitting|becoming|relocating)"
    r"|werde|wird|werden|m\u00f6chte|will|plane|n\u00e4chste[nsr]?|bald|morgen"
)
_HEARSAY: Final = (
    r"said|says|saying|say|told|tells|telling|wrote|writes|claim|claims|claimed|thinks|think|thought|believes|believe"
    r"|believed|asked|asks|according to|heard|apparently|supposedly|allegedly|rumou?r|the song|in the play|lyrics"
    r"|sagt|sagte|meint|meinte|angeblich|laut"
)
_JOKE: Final = r"lol|ha(?:ha)+|jk|kidding|joking|yeah right|oh sure|obviously|totally|as if|yeah, right"
_PASSING: Final = (
    r"tonight|this (?:week|weekend|month|morning|evening|afternoon|time|once)|just this once|for (?:now|today|tonight)"
    r"|for the (?:weekend|time being|moment|day|week)|for (?:a|an|one|two|three|four|five|six|ten|\d+|a few|a "
    r"couple of)"
    r" (?:few |couple )?(?:nights?|days?|weeks?|months?)|temporarily|at the moment|right now|while|meanwhile|visiting"
    r"|on holiday|on vacation|until (?:tomorrow|further|mon|tues|wednes|thurs|fri|satur|sun)\w*|last night"
    r"|diese woche|gerade|vor\u00fcbergehend|dieses mal|diesmal"
)
_NOT_PLAIN: Final = re.compile(
    rf"\b(?:{_GUESS}|{_PLAN}|{_HEARSAY}|{_JOKE}|{_PASSING})\b"
    r"|\A\s*>|```|(?:^|\s)/s\b|;-?\)|\bsure,|[\U0001F600-\U0001F61D\U0001F609\U0001F643\U0001F644\U0001F92A\U0001F923]"
    r"|[\"\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d]|(?:^|[\s(:])'[^']+'",
    re.IGNORECASE,
)
_TODAY: Final = re.compile(r"\b(?:today|heute)\b", re.IGNORECASE)
_EVENT: Final = re.compile(
    r"\b(?:moved|quit|left|joined|got|turned|became|become|started|stopped|switched|sold|retired|graduated|finished)\b",
    re.IGNORECASE,
)


def expanded(text: str) -> str:
    """``text`` with its contractions as whole words, and straight apostrophes."""
    for pattern, expansion in _CONTRACTIONS:
        text = pattern.sub(expansion, text)
    return text


def is_plain(text: str) -> bool:
    """Whether the expanded ``text`` says that something holds or has come to hold."""
    if _QUESTION.search(text) or _NOT_PLAIN.search(text):
        return False
    return not _TODAY.search(text) or _EVENT.search(text) is not None
