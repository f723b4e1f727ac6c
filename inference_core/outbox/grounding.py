"""Grounding: whose words a text is made of, the user's own or those of tools, documents and the web."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from inference_core.memory.trust import Origin
from inference_core.outbox.messages import Message, Role, own_words
from inference_core.retrieval.analysis import analyze

FACT_SHARE: Final = 0.5
"""Of the words of a fact, the user has to have said so many if text from outside is in the conversation."""
RULE_SHARE: Final = 0.7
"""Of the words of a rule, a preference or a procedure."""
_OUTSIDE_SHARE: Final = 0.25
"""Of the words of either, only so many may be words from outside that the user has not said."""
_SHORT: Final = 3
"""A label of so few words cannot instruct anybody."""
_STEM: Final = 5
"""Letters of a word that are compared, so that inflection and a wrongly guessed language do not matter."""
_END: Final = re.compile(r"\n+|(?<=[.!?\u061f\u037e;])\s+|(?<=[\u3002\uff01\uff1f])")
_QUESTION: Final = re.compile(r"[?\uff1f\u061f\u037e]\W*\Z")
_LAST_CLAUSE: Final = re.compile(r"[^,\uff0c\u3001\u060c]*\Z")
_SPACED: Final = re.compile(r"(?<!\w)(?:\w[ \t.\-_*]{1,2}){3,}\w(?!\w)")
_GAPS: Final = re.compile(r"[ \t.\-_*]")
_WORD: Final = re.compile(r"[^\W\d_]+")
_LATIN: Final = re.compile("[A-Za-z]")
_LOOK_ALIKES: Final = str.maketrans(
    "АВЕЅІЈКМНОРСТХУԛԜаеѕіјкмнорсухԁһԛԝցոυαβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "ABESIJKMHOPCTXYQWaesijkmhopcyxdhqwgnuabeikvoptuxABEZHIKMNOPTYX",
)
_OF_NOBODY: Final = (
    "user users wants want wanted prefers prefer likes like said says told mentioned asked remember please "
    "Nutzer Benutzer möchte usuario usuária quiere utilisateur utilisatrice veut utente vuole gebruiker użytkownik "
    "пользователь хочет ユーザー 用户 使用者 사용자 المستخدم"
)


class Grounding:
    """The users' own words in ``messages``, and the words that only tools, pasted text or ``others`` have.

    A model that obeys an injected text may name the user as its source. So what it says is checked against the words of
    the messages themselves; a question states nothing. Where nothing from outside is among them, nothing was injected.
    """

    def __init__(self, messages: Sequence[Message], others: Iterable[str] = ()) -> None:
        users = [message.text for message in messages if message.role is Role.USER]
        own = [own_words(text) for text in users]
        pasted = [text.removeprefix(said) for text, said in zip(users, own, strict=True)]
        external = [message.text for message in messages if message.origin is Origin.TOOL]
        outside = [text for text in (*external, *pasted, *others) if text.strip()]
        self.has_outside = bool(outside)
        self._own = [_words(_stated(text)) for text in own]
        self._outside = _words_of(outside) - _words_of(own)
        self._others = [_words(message.text) for message in messages if message.origin is Origin.AGENT]

    def is_external(self, text: str) -> bool:
        """Whether ``text`` may come from outside: something does, and the user has not said most of its words."""
        return self.has_outside and not self._is_said(text, FACT_SHARE)

    def may_guide(self, text: str) -> bool:
        """Whether a rule, a preference or a procedure with this ``text`` is the user's.

        Without text from outside, one word of the conversation is enough: the user
        may have agreed to what the assistant proposed.
        """
        if self.has_outside:
            return self._is_said(text, RULE_SHARE)
        return not _words(text).isdisjoint(frozenset[str]().union(*self._own, *self._others))

    def is_stated(self, text: str) -> bool:
        """Whether the user has said most of ``text``, whatever else is in the conversation."""
        return self._is_said(text, FACT_SHARE)

    def keeps(self, label: str) -> bool:
        """Whether ``label`` may describe what the user said: it has more of his words than from outside."""
        words = _words(label)
        if len(words & self._outside) > len(words) / 2:
            return False
        return not self.has_outside or len(words) <= _SHORT or self._is_said(label, FACT_SHARE)

    def _is_said(self, text: str, share: float) -> bool:
        """Whether two messages of the user hold enough of the words.

        More would not do: a long conversation has nearly every word somewhere.
        """
        words = _words(text)
        found = [words & said for said in self._own]
        best = max(found, key=len, default=words - words)
        count = max((len(best | other) for other in found), default=0)
        return 0 < len(words) * share <= count and len(words & self._outside) <= len(words) * _OUTSIDE_SHARE


def canonical(text: str) -> str:
    """``text`` without the tricks that hide words: invisible characters, look-alike letters, letters apart."""
    visible = "".join(one for one in text if unicodedata.category(one) != "Cf")
    joined = _SPACED.sub(lambda found: _GAPS.sub("", found[0]), visible)
    if joined.isascii():
        return joined
    return _WORD.sub(lambda found: found[0].translate(_LOOK_ALIKES) if _LATIN.search(found[0]) else found[0], joined)


def _stated(text: str) -> str:
    """``text`` without its questions: of a sentence that ends in one, the last clause."""
    return "\n".join(_LAST_CLAUSE.sub("", part) if _QUESTION.search(part) else part for part in _END.split(text))


def _words_of(texts: Iterable[str]) -> frozenset[str]:
    return frozenset[str]().union(*map(_words, texts))


@lru_cache(maxsize=1_024)
def _words(text: str) -> frozenset[str]:
    return _stems(text) - _nobodys()


def _stems(text: str) -> frozenset[str]:
    return frozenset(term[:_STEM] for term in analyze(canonical(text)))


@lru_cache(maxsize=1)
def _nobodys() -> frozenset[str]:
    return frozenset[str]().union(*map(_stems, _OF_NOBODY.split()))
