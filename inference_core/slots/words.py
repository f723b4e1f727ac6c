"""The words and patterns of ``words.toml``: what the reading of plain statements knows of English and German."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

_DATA: Final[dict[str, Any]] = tomllib.loads((files(str(__package__)) / "words.toml").read_text("utf-8"))
_NAMED: Final = re.compile(r"\{([a-z_]+)\}")


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def entries(name: str) -> dict[str, Any]:
    """The table of that name."""
    return _DATA[name]


@cache
def words(name: str) -> frozenset[str]:
    """The words of that name."""
    return word_set(_DATA["words"][name])


@cache
def pattern(name: str) -> re.Pattern[str]:
    """The pattern of that name, compiled when it is first asked for."""
    return compiled(_DATA["patterns"][name])


@cache
def rows(name: str) -> list[tuple[re.Pattern[str], *tuple[Any, ...]]]:
    """The rows of that name, each a pattern and what it stands for; none if there is no such name."""
    return [(compiled(text), *columns) for text, *columns in _DATA["rows"].get(name, ())]


def compiled(text: str) -> re.Pattern[str]:
    """The pattern ``text``, without regard to case, with the words and phrases that ``{name}`` stands for."""
    return re.compile(_filled(text), re.IGNORECASE)


def _filled(text: str) -> str:
    """``text`` in one line, with the words or phrases that ``{name}`` stands for."""

    def alternatives(found: re.Match[str]) -> str:
        phrase: str | None = _DATA["phrases"].get(found[1])
        return "|".join(_DATA["words"][found[1]].split()) if phrase is None else _filled(phrase)

    return _NAMED.sub(alternatives, text.replace("\n", ""))


PEOPLE: Final = words("people")
"""Words for people of whom somebody may have several, such as brothers."""
EVENTS: Final = words("events")
"""Past forms of verbs that tell what holds since, such as "moved"."""
SPELLINGS: Final[dict[str, str]] = _DATA["spellings"]
SYNONYMS: Final = SPELLINGS | {name: one for one, names in _DATA["synonyms"].items() for name in names.split()}
VERBS: Final[dict[str, list[str]]] = _DATA["verbs"]
"""For each verb its present forms and its past forms, each list separated by spaces, and its gerund."""
PRESENT_FORMS: Final = {form: verb for verb, (present, _, _) in VERBS.items() for form in present.split()}
PAST_FORMS: Final = {form: verb for verb, (_, past, _) in VERBS.items() for form in past.split()}
GERUNDS: Final = {gerund: verb for verb, (_, _, gerund) in VERBS.items()}
