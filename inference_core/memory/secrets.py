"""Finds credentials, payment cards and, if asked for, personal data in texts; ``secrets.toml`` has the formats.

A text is first searched for the formats' literals. A format's expression is tried only where its literal is found, and
all expressions take time linear in the text's length.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from math import log2
from typing import Any, Final, NamedTuple

from inference_core.lazy import lazy_pattern

_SHORTEST: Final = 8
"""In a shorter text, no secret can be told from other words."""
_LONG_TOKEN: Final = 32
_MOST_NAMES: Final = 1_024
_clean_names: Final = set[str]()
"""Names, such as those of fields, without credentials in them. They come with each value."""
_MOST_SHOWN: Final = 4_000
"""Before an error shows the start of a value, this many of its characters are searched for credentials."""
_HIDDEN: Final = {ord(mark): None for mark in "\u00ad\u200b\u200c\u200d\u2060\ufeff"}
_PLAIN: Final = {**_HIDDEN, **{wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)}}
"""Invisible characters go, and full-width forms become ASCII, as a model reads them."""
_TOKEN: Final = lazy_pattern(
    r"(?<![A-Za-z0-9_/.+=-])[A-Za-z][A-Za-z0-9]{1,15}[_-](?:[A-Za-z0-9]{2,12}[_-]){0,2}(?P<random>[A-Za-z0-9]{30,200}+)"
    r"(?![A-Za-z0-9_/+=-])"
)
"""A prefix and a long random part, as newer providers form their tokens."""
_CARD: Final = lazy_pattern(
    r"(?<![0-9.+])(?:[0-9]{4}(?P<gap>[ -]?)[0-9]{4}(?P=gap)[0-9]{4}(?P=gap)[0-9]{1,7}"
    r"|3[47][0-9]{2}(?P<space>[ -]?)[0-9]{6}(?P=space)[0-9]{5})(?![0-9]|\.[0-9])"
)
_LONG_NUMBER: Final = lazy_pattern("[0-9]{4}[ -]?[0-9]{4}")
_ISSUERS: Final = lazy_pattern("4|5[1-5]|2[2-7]|3[0-8]|6")
_IN_IBAN: Final = lazy_pattern("[a-z]{2}[0-9]{2} ")
"""What stands before the digits of an IBAN."""
_CARD_DIGITS: Final = range(13, 20)
_NEAR: Final = 48
"""A word such as "card" counts within this many characters before or after a number."""
_DATE: Final = lazy_pattern("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PLAIN_MARK: Final = r"[^\s\"'`\\,;<>(){}\[\]\u2e80-\uffef]"
_VALUE: Final = lazy_pattern(
    r"(?:[_ -](?:prod|production|dev|staging|test|live|value|[0-9]{1,2}))?[\"'`\\]{0,3}\s{0,3}"
    r"(?::=|=>|==?|:|\bis\b:?|\bwas\b|\bist\b|\bes\b|\best\b|\bé\b|\bto\b|は|是|为)\s{0,3}[\"'`\\]{0,3}"
    rf"(?P<secret>(?:{_PLAIN_MARK}|[,;<>(){{}}\[\]](?=[,;<>(){{}}\[\]]{{0,3}}{_PLAIN_MARK})(?![a-z_]{{1,32}}[=:])){{6,256}}+)",
    re.IGNORECASE,
)
"""Passwords may have brackets and commas: they end a value only before a space, a quotation mark or another field."""
_SIGNS: Final = frozenset("!@#$%^&*?+~=")
_PASSWORD: Final = 6
_KEY: Final = 12
_MIXED_KEY: Final = 20
_BITS: Final = 2.8
"""The entropy of a key, in bits per character, is above this; that of words and repetitions is below."""


class Finding(NamedTuple):
    """A secret in a text, from ``start`` to ``end``. ``kind`` names its format, such as ``github_token``."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Format:
    """A format of credentials: what ``before`` matches, the literal ``trigger``, and what ``follows`` matches.

    ``before`` and ``follows`` are regular expressions. If one has a group ``secret``, only that part is the secret.
    """

    kind: str
    trigger: str
    follows: str
    before: str

    def find(self, text: str) -> Iterator[Finding]:
        """The credentials of this format in ``text``."""
        expression = _compiled(self)
        group = "secret" if "secret" in expression.groupindex else "lead" if self.before else 0
        for match in expression.finditer(text):
            yield Finding(match.start(group), match.end("secret" if group == "secret" else 0), self.kind)


class Formats(NamedTuple):
    """The data of ``secrets.toml``, compiled.

    ``by_mark`` groups the formats by a mark, such as "_", in their triggers: a text without the mark is not searched
    for them. ``unmarked`` are the formats without such a mark; ``any_unmarked`` matches any of their triggers.
    ``words`` are names to which passwords and keys are assigned, such as "api_key". ``stems`` maps a part of such words
    to the words that contain it, longest first, each with the part's offset in the word.
    """

    by_mark: tuple[tuple[str, tuple[Format, ...]], ...]
    unmarked: tuple[Format, ...]
    any_unmarked: re.Pattern[str]
    words: tuple[str, ...]
    passwords: frozenset[str]
    stems: Mapping[str, tuple[tuple[str, int], ...]]
    placeholders: tuple[str, ...]
    card_words: tuple[str, ...]
    personal: tuple[tuple[str, str, re.Pattern[str]], ...]


def credentials_in(text: str) -> list[Finding]:
    """The credentials and payment cards in ``text``, in their order, without overlaps."""
    if len(text) < _SHORTEST or text in _clean_names:
        return []
    found = _placed(text, _credentials)
    if not found and len(text) <= _LONG_TOKEN and text.isidentifier() and len(_clean_names) < _MOST_NAMES:
        _clean_names.add(text)
    return found


def without(text: str, findings: Iterable[Finding]) -> str:
    """``text`` with ``[redacted: kind]`` in place of each of ``findings``, which are in order and do not overlap."""
    parts: list[str] = []
    at = 0
    for finding in findings:
        parts += [text[at : finding.start], f"[redacted: {finding.kind}]"]
        at = finding.end
    return "".join([*parts, text[at:]])


def quoted(value: object) -> str:
    """The representation of ``value`` for an error message: credentials redacted, then cut to 80 characters."""
    text = repr(value)[:_MOST_SHOWN]
    return without(text, credentials_in(text))[:80]


def personal_in(text: str) -> list[Finding]:
    """The e-mail addresses, phone numbers, IBANs, IP addresses and social security numbers in ``text``.

    In their order, without overlaps.
    """
    return _placed(text, _personal)


def is_assigned(name: str, value: str) -> bool:
    """Whether ``value`` under the ``name`` of a field, such as "api_key", is a password or key."""
    if len(value) < _PASSWORD or value.split(maxsplit=1) != [value]:
        return False
    names = _words_in(name) if len(name) <= _LONG_TOKEN else _words_in.__wrapped__(name)  # which fills no cache
    if not names:
        return False
    return _is_strong(value, formats(), is_password=not formats().passwords.isdisjoint(names))


@lru_cache(maxsize=1_024)
def _words_in(name: str) -> list[str]:
    """The names in ``name`` to which passwords and keys are assigned."""
    word = _lower(name)
    return [one for one in formats().words if one in word]


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """``findings`` in the order of the text; findings that overlap become one, with the kind of the first."""
    joined: list[Finding] = []
    for one in sorted(findings, key=lambda finding: (finding.start, -finding.end)):
        if joined and one.start < joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, one.end))
        else:
            joined.append(one)
    return joined


@cache
def formats() -> Formats:
    """The formats, read when the first text is searched."""
    data: dict[str, Any] = tomllib.loads((files(str(__package__)) / "secrets.toml").read_text("utf-8"))
    all_of_them = [
        Format(credential["kind"], trigger, credential["follows"], credential.get("before", ""))
        for credential in data["credentials"]
        for trigger in credential["triggers"]
    ]
    by_mark: dict[str, list[Format]] = {"_": [], "-": [], "://": [], ".": [], "": []}
    for form in all_of_them:
        by_mark[next(mark for mark in by_mark if mark in form.trigger)].append(form)
    unmarked = by_mark.pop("")
    given = data["assignments"]
    words = sorted({*given["passwords"], *given["keys"]}, key=len, reverse=True)
    stems: dict[str, list[tuple[str, int]]] = {}
    for word in words:
        stem = next((stem for stem in given["stems"] if stem in word), word)
        stems.setdefault(stem, []).append((word, word.index(stem)))
    return Formats(
        tuple((mark, tuple(some)) for mark, some in by_mark.items()),
        tuple(unmarked),
        re.compile("|".join(re.escape(form.trigger) for form in unmarked)),
        tuple(words),
        frozenset(given["passwords"]),
        {stem: tuple(some) for stem, some in stems.items()},
        tuple(given["placeholders"]),
        tuple(data["cards"]["words"]),
        tuple((one["kind"], one["hint"], re.compile(one["expression"])) for one in data["personal"]),
    )


@cache
def _compiled(form: Format) -> re.Pattern[str]:
    """The expression of ``one``. It starts with the literal, because ``re`` searches for a literal prefix quickly."""
    trigger = re.escape(form.trigger)
    place = f"(?<=(?P<lead>{form.before}){trigger})" if form.before else f"(?<![A-Za-z0-9]{trigger})"
    return re.compile(f"{trigger}{place}(?:{form.follows})(?![A-Za-z0-9])")


def _placed(text: str, find: Callable[[str], Iterator[Finding]]) -> list[Finding]:
    """What ``find`` finds in ``text`` as a model reads it (see `_PLAIN`), at the positions in ``text`` itself."""
    if text.isascii():
        return merged(find(text))
    plain = text.translate(_PLAIN)
    findings = merged(find(plain))
    if not findings or len(plain) == len(text):
        return findings
    places = [at for at, mark in enumerate(text) if ord(mark) not in _HIDDEN]
    return [Finding(places[finding.start], places[finding.end - 1] + 1, finding.kind) for finding in findings]


def _credentials(text: str) -> Iterator[Finding]:
    known = formats()
    possible = [form for mark, some in known.by_mark if mark in text for form in some if form.trigger in text]
    if known.any_unmarked.search(text):
        possible += [form for form in known.unmarked if form.trigger in text]
    for one in possible:
        yield from one.find(text)
    lower = _lower(text)
    for stem in known.stems:
        if stem in lower:
            yield from _assigned(text, lower, stem, known)
    if _LONG_NUMBER.search(text):
        cards = (found for found in _CARD.finditer(text) if _is_card(found, lower, known.card_words))
        yield from (Finding(found.start(), found.end(), "payment_card") for found in cards)
    if len(text) > _LONG_TOKEN and ("_" in text or "-" in text) and max(map(len, text.split())) > _LONG_TOKEN:
        for match in _TOKEN.finditer(text):
            if _is_mixed(match["random"]) and _bits(match["random"]) > _BITS:
                yield Finding(match.start(), match.end(), "token")


def _lower(text: str) -> str:
    """``text`` in lower case, with every character at its position: only İ would become two characters."""
    return text.replace("İ", "i").lower()


def _assigned(text: str, lower: str, stem: str, known: Formats) -> Iterator[Finding]:
    """What ``text`` says or assigns passwords and keys to be, as in "password: …" and "my password is …"."""
    at = lower.find(stem)
    while at >= 0:
        after = at + len(stem)
        for word, offset in known.stems[stem]:
            if not lower.startswith(word, at - offset) or at < offset:
                continue
            after = at - offset + len(word)
            match = _VALUE.match(text, after)
            value = match["secret"].rstrip(".:") if match else ""
            is_password = word in known.passwords
            if match and _is_strong(value, known, is_password=is_password):
                after = match.start("secret") + len(value)
                yield Finding(after - len(value), after, "password" if is_password else "secret_key")
            break
        at = lower.find(stem, after)


def _personal(text: str) -> Iterator[Finding]:
    for kind, hint, expression in formats().personal:
        if hint in text:
            for match in expression.finditer(text):
                plain = match[0].replace(" ", "")
                # Of an IBAN the check digits must be right (ISO 13616).
                if kind != "iban" or int("".join(str(int(mark, 36)) for mark in plain[4:] + plain[:4])) % 97 == 1:
                    yield Finding(match.start(), match.end(), kind)


def _is_strong(value: str, known: Formats, *, is_password: bool) -> bool:
    """Whether ``value`` may be a password or key: it is no word, date, URL or placeholder, and a key looks random.

    For a password, a digit, or a letter and a sign, is enough: people choose weak ones.
    """
    lower = value.lower()
    if (
        "://" in value
        or value.startswith("<")
        or _DATE.match(value)
        or any(placeholder in lower for placeholder in known.placeholders)
    ):
        return False
    has_letter, has_digit = any(map(str.isalpha, value)), any(map(str.isdecimal, value))
    if is_password:
        return len(value) >= _PASSWORD and (has_digit or (has_letter and not _SIGNS.isdisjoint(value)))
    is_mixed = _is_mixed(value) if has_digit else len(value) >= _MIXED_KEY and lower != value != value.upper()
    return len(value) >= _KEY and has_letter and (is_mixed or has_digit) and _bits(value) > _BITS


def _is_mixed(text: str) -> bool:
    """Whether ``text`` has upper-case letters, lower-case letters and digits."""
    return text.lower() != text != text.upper() and any(map(str.isdecimal, text))


def _bits(text: str) -> float:
    """The entropy of ``text``, in bits a character."""
    size = len(text)
    return -sum(count / size * log2(count / size) for count in Counter(text).values())


def _is_card(match: re.Match[str], lower: str, words: Iterable[str]) -> bool:
    """Whether a number is a payment card's: by issuer and check digit, and grouped as on a card or near a card word."""
    digits = re.sub("[ -]", "", match[0])
    if (
        len(digits) not in _CARD_DIGITS
        or not _ISSUERS.match(digits)
        or _IN_IBAN.match(lower[max(0, match.start() - 5) : match.start()])
    ):
        return False
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    if (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10:
        return False
    around = lower[max(0, match.start() - _NEAR) : match.end() + _NEAR]
    return digits != match[0] or any(word in around for word in words)
