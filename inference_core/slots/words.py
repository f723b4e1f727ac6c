"""The words and patterns of ``words.toml``: what the reading of plain statements knows of English and German."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

_DATA: Final[dict[str, Any]] = tomllib.loads((files(str(__package__)) / "words.toml").read_text("utf-8"))
_NAMED: Final = re.compile(r"\{([a-z_]+)\}")
_REGULAR_Y: Final = re.compile(r"(?<![aeo])y\Z")


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
    return _compiled(_DATA["patterns"][name])


@cache
def rows(name: str) -> list[tuple[re.Pattern[str], *tuple[Any, ...]]]:
    """The rows of that name, each a pattern and what it stands for; none if there is no such name."""
    return [(_compiled(text), *columns) for text, *columns in _DATA["rows"].get(name, ())]


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(_filled(text), re.IGNORECASE)


def _filled(text: str) -> str:
    """``text`` in one line, with the words or phrases that ``{name}`` stands for."""
    return _NAMED.sub(lambda found: _alternatives(found[1]), text.replace("\n", ""))


def _alternatives(name: str) -> str:
    phrases: dict[str, str] = _DATA["phrases"]
    return _filled(phrases[name]) if name in phrases else "|".join(_DATA["words"][name].split())


def _ending(verb: str, ending: str) -> str:
    """``verb`` with "s", "ed" or "ing"."""
    if ending == "s":
        return _REGULAR_Y.sub("ie", verb) + ("es" if verb.endswith(("ch", "sh", "o", "s")) else "s")
    if ending == "ing" and verb in words("doubled_verbs"):
        return f"{verb}{verb[-1]}ing"
    if verb.endswith("e") and verb != "be":
        return f"{verb[:-1]}{ending}"
    return f"{_REGULAR_Y.sub('i', verb) if ending == 'ed' else verb}{ending}"


PEOPLE: Final = words("people")
"""Those of whom somebody may have several."""
EVENTS: Final = words("events")
"""Past forms that tell what holds since."""
SPELLINGS: Final[dict[str, str]] = _DATA["spellings"]
SYNONYMS: Final = SPELLINGS | {name: one for one, names in _DATA["synonyms"].items() for name in names.split()}
_REGULAR: Final = words("regular_verbs")
_PASTS: Final[dict[str, str]] = _DATA["past_forms"]
VERBS: Final = _REGULAR | _PASTS.keys()
PAST_FORMS: Final = {_ending(verb, "ed"): verb for verb in _REGULAR} | {
    form: verb for verb, forms in _PASTS.items() for form in forms.split()
}
GERUNDS: Final = {_ending(verb, "ing"): verb for verb in VERBS}
PRESENT_FORMS: Final = {_ending(verb, "s"): verb for verb in VERBS} | _DATA["present_forms"]
