"""Said: what the user said in a conversation, and whether anything in it is from outside.

A model that obeys an injected text may name the user as its source, and one changed word gives a sentence of the user
another meaning. So if the conversation has text from outside, only whole sentences of the user, and texts that the user
confirmed, count as the user's words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

from inference_core.lazy import lazy_pattern
from inference_core.outbox.messages import ConversationMessage, Role, any_outside, own_sentences, quotes
from inference_core.retrieval.analysis import analyze

_MAX_ANSWER: Final = 6
_YES: Final = (
    "yes yep yeah sure ok okay right exactly agreed ja jawohl klar genau gerne oui ouais bien si sí vale claro "
    "correcto sì certo esatto sim isso jasne zgoda да конечно верно так ано igen evet tamam kyllä joo "
    "はい ええ うん はいお願いします お願いします 是 是的 好 好的 对 可以 行 네 예 응 네부탁해요 نعم أجل हाँ हां जी כן"
)
_KINDLY: Final = (
    "please do it that thanks thank you bitte danke mach das merci svp gracias hazlo por favor grazie prego per favore "
    "obrigado obrigada tak proszę dzięki пожалуйста спасибо lütfen 请 谢谢 ありがとう 감사합니다 شكرا من فضلك"
)
_ASKING: Final = (
    "shall should may can could i do you want would like me to please now really from the this that memory my"
)
_REMEMBERING: Final = (
    "remember save store note keep add as a an rule instruction preference procedure following for later"
)
_FORGETTING: Final = "forget delete erase remove"
"""The words that a question may have besides the text that it shows. Others, such as "never", may turn its meaning."""
_HIDING: Final = lazy_pattern("[<>\\[\\]{}\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Characters in a question that a client may not show to the user."""
_ASKS: Final = lazy_pattern(r"[?\uff1f\u061f\u037e;][\"'\u201d\u2019\u00bb)\]*_\s]*\Z")
_WORD: Final = lazy_pattern("[\\w\u0900-\u0963]+")
"""A word of an answer, with the vowel signs of Hindi."""
_QUOTATION: Final = lazy_pattern(
    "[\"`\u201a\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a\u300c-\u300f]|(?<![^\\W_])['*_]+|['*_]+(?![^\\W_])"
)
_MARKS: Final = ".!?,;:\u2026\u3002\uff01\uff1f\u061f"
_OTHER_QUESTION: Final = lazy_pattern("\\?(?!\\w)|[\uff1f\u061f]")
_STOPS: Final = ".!?\u3002\uff01\uff1f\u061f"
_EDGE: Final = ".!\u3002\uff01\u06d4\u0964 \"'"


class Said:
    """What the user said in ``messages``, in their order, and what the user confirmed.

    ``has_outside``: whether text from outside is, or was, in the conversation; None: the messages decide. ``sources``:
    of the user's messages, only these count; None: all.
    """

    def __init__(
        self,
        messages: Sequence[ConversationMessage],
        *,
        has_outside: bool | None = None,
        sources: Collection[ConversationMessage] | None = None,
    ) -> None:
        self.has_outside = any_outside(messages) if has_outside is None else has_outside
        counted = [message for message in messages if message.is_own and (sources is None or message in sources)]
        self._sentences = [own_sentences(message.text) for message in counted]
        agreed = [(_agreed(asked, answer), answer) for asked, answer in pairwise(messages) if answer in counted]
        self._confirmed = [line for line, _ in agreed if line]
        # An earlier yes was about what was known then.
        self._dismissed = [line for line, answer in agreed if line and answer is counted[-1]]

    def is_external(self, text: str) -> bool:
        """Whether ``text`` may come from outside: the conversation has such text, and ``text`` is not `owned`."""
        return self.has_outside and self.owned(text) is None

    def owned(self, text: str) -> str | None:
        """``text`` as the user said it, if it is one or more consecutive whole sentences of one message.

        A text that the user confirmed is returned unchanged. None for any other text.
        """
        wanted = _normal(text)
        if not wanted:
            return None
        for sentences in self._sentences:
            normal = [_normal(sentence) for sentence in sentences]
            for start, first in enumerate(normal):
                if not wanted.startswith(first):
                    continue
                for end in range(start + 1, len(normal) + 1):
                    whole = " ".join(sentences[start:end])
                    if _normal(whole) == wanted:
                        return whole
        return text if self.has_confirmed(text) else None

    def is_apart(self, text: str, old: str) -> bool:
        """Whether ``text`` must not replace ``old``: a web page may abuse a sentence of the user, such as "Go on.".

        False if the conversation has no text from outside, if both texts share a content word, or if the user confirmed
        ``text``.
        """
        return self.has_outside and not self.has_confirmed(text) and not same_subject(text, old)

    def has_confirmed(self, text: str) -> bool:
        """Whether the user said yes to a question that shows ``text`` word for word, such as Remember “…”?"""
        return any(_is_about(line, text, _REMEMBERING) for line in self._confirmed)

    def has_dismissed(self, text: str) -> bool:
        """Whether the user has just said yes to a question that asks to forget ``text``: Forget “…”?"""
        return any(_is_about(line, text, _FORGETTING) for line in self._dismissed)


def holds(text: str, part: str) -> bool:
    """Whether ``text`` has the words of ``part`` in a row."""
    return _place(_bare(part), _bare(text)) is not None


def same_subject(one: str, other: str) -> bool:
    """Whether two texts share a content word."""
    return not set(analyze(one)).isdisjoint(analyze(other))


def _agreed(asked: ConversationMessage, answer: ConversationMessage) -> str:
    """The last line of ``asked`` if it is a question to which the user says nothing but yes; else ""."""
    said = _WORD.findall(answer.text.casefold())
    is_answer = answer.position in (0, asked.position + 1)  # else something that is not here was said in between
    if asked.role is not Role.ASSISTANT or not asked.is_proven or not is_answer or quotes(answer.text):
        return ""
    if not 0 < len(said) <= _MAX_ANSWER or _ASKS.search(answer.text):
        return ""
    if set(_YES.split()).isdisjoint(said) or not set(said) <= {*_YES.split(), *_KINDLY.split()}:
        return ""
    before, _, line = asked.text.strip().rpartition("\n")
    is_clear = _ASKS.search(line) and not _HIDING.search(line) and not _OTHER_QUESTION.search(before)
    return line.strip() if is_clear else ""


def _is_about(line: str, text: str, verbs: str) -> bool:
    """Whether the question that ends ``line`` has the whole ``text``, and otherwise only words of asking and ``verbs``.

    A question about forgetting has to contain one of the verbs; for remembering, "Do you want me to …?" is clear, too.
    Punctuation inside the text counts: "Do not ask before you pay" is not "Do not. Ask before you pay". False if the
    line has another question, or if ``text`` consists of words of asking, such as "now", which any question may have.
    """
    allowed = {"", *_ASKING.split(), *verbs.split()}
    wanted, raw = _words(text), _words(line)
    shown = [word.rstrip(_MARKS) for word in raw]
    size = len(wanted)
    at = next((at for at in range(len(raw)) if [*raw[at : at + size - 1], *shown[at + size - 1 :][:1]] == wanted), None)
    if at is None or allowed.issuperset(wanted):
        return False
    start = next((before for before in range(at, 0, -1) if raw[before - 1].endswith(tuple(_STOPS))), 0)
    words = {*shown[start:at], *shown[at + size :]}
    is_clear = verbs is _REMEMBERING or not words.isdisjoint(verbs.split())
    return is_clear and words <= allowed and not any(map(_OTHER_QUESTION.search, raw[:start]))


def _normal(text: str) -> str:
    """``text`` as it is compared: without differences of case, white space, apostrophes and the marks at its end."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").replace("\u2018", "'")
    return " ".join(plain.split()).strip(_EDGE)


def _words(text: str) -> list[str]:
    """The words of a `_normal` text without quotation marks, and without the marks that end the last one."""
    *most, last = [*_QUOTATION.sub(" ", _normal(text)).split()] or [""]
    return [*most, last.rstrip(_MARKS)]


def _place(wanted: list[str], words: list[str]) -> int | None:
    """Where ``wanted`` begins in ``words``; None if it is not there, or empty."""
    size = len(wanted)
    return next((at for at in range(len(words)) if words[at : at + size] == wanted), None) if size else None


def _bare(text: str) -> list[str]:
    """The words of a `_normal` text without quotation marks and the marks at their ends, as a question shows them."""
    return [word.rstrip(_MARKS) for word in _QUOTATION.sub(" ", _normal(text)).split()]
