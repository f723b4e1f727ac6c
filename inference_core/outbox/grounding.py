"""Grounding: whose words a text is made of, the user's own or those of tools, documents and the web."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Final

from inference_core.memory.text import unmasked
from inference_core.memory.trust import Origin
from inference_core.outbox.hidden_text import decoded, in_a_row, plain
from inference_core.outbox.messages import FENCE, ConversationMessage, Role, own_words
from inference_core.retrieval.analysis import UNSPACED, UNSPACED_LETTER, analyze, folded
from inference_core.retrieval.languages import language_of, stop_words

FACT_SHARE: Final = 0.5
"""The share of a fact's words that the user must have said if text from outside is in the conversation."""
MOST: Final = 0.51
"""The same for what a tool is told to save, where only the words show who said it."""
RULE_SHARE: Final = 0.7
"""The same for a rule, a preference or a procedure."""
_OUTSIDE_SHARE: Final = 0.25
"""At most this share of the words of any of them may come from outside without being the user's too."""
_ALIKE_SHARE: Final = 0.4
"""A sentence from outside says much the same as a text if it has this share of its words."""
_WINDOW: Final = 240
"""Letters of a text from outside that are looked at together, if it has no sentences."""
_KEPT: Final = 1_000
"""Letters of the longest text whose words are kept for the next question."""
_SHORT: Final = 3
"""A label of at most this many words cannot instruct anybody."""
_STEM: Final = 5
"""Letters of a word that are compared, so that inflection and a wrongly guessed language do not matter."""
_END: Final = re.compile(r"\n+|(?<=[.!?\u061f\u037e;])\s+|(?<=[\u3002\uff01\uff1f])")
_QUESTION: Final = re.compile(r"[?\uff1f\u061f\u037e][^\w?\uff1f\u061f\u037e]*\Z")
_LAST_CLAUSE: Final = re.compile(r"(?<![^,\uff0c\u3001\u060c])[^,\uff0c\u3001\u060c]*\Z")
"""Like `_QUESTION`, it reads on from few places only; from each place, a long text would be read anew."""
_HIDING: Final = re.compile("[<>\\[\\]{}\U000e0000-\U000e007f]")
"""Characters in a question that a client may not show to the user."""
_MAX_QUESTION: Final = 300
_SHOWN_SHARE: Final = 0.9
"""The share of a text's words that a question has to show for the user's yes to confirm the text."""
_ABOUT_SHARE: Final = 0.5
"""The share of that question's words that have to be the text's, so that the question is about it."""
_MAX_ANSWER: Final = 6
_YES: Final = (
    "yes yep yeah sure ok okay right correct exactly agreed ja jawohl klar genau gerne oui ouais bien si sí vale claro "
    "correcto sì certo esatto sim isso tak jasne zgoda да конечно верно так ano igen evet tamam kyllä joo "
    "はい ええ うん はいお願いします お願いします 是 是的 好 好的 对 可以 行 네 예 응 네부탁해요 نعم أجل हाँ हां जी כן"
)
_KINDLY: Final = (
    "please do it that thanks thank you bitte danke mach das merci svp gracias hazlo por favor grazie prego per favore "
    "obrigado obrigada proszę dzięki пожалуйста спасибо lütfen 请 谢谢 ありがとう 감사합니다 شكرا من فضلك"
)
_FORGET: Final = re.compile(
    r"\b(?:forget|delet|remov|eras|vergiss|vergess|lösch|entfern|oubli|suppr|effac|olvid|borra|elimin|esque|apag|remov"
    r"|dimentic|cancell|zapomni|usuń|usun|skasuj|forglem|glem|slet|radera|unut|sil\b)|забуд|удали|сотри|стер|видали"
    r"|忘れ|消して|削除|忘记|忘掉|删除|删掉|잊어|지워|삭제|انس|احذف|امسح|भूल|हटा",
    re.IGNORECASE,
)
_DENIAL: Final = re.compile(
    r"(?:\b(?:no|not|cannot|never|none|nothing|without|anymore|nicht|kein\w*|nie|niemals|ohne|ne|pas|aucune?|jamais|sans|rien|plus|"
    r"nunca|ning[uú]n\w*|nada|sin|non|mai|nessun\w*|senza|não|nenhum\w*|sem|asla|не|нет|никак\w*|никогда|ничего|без|żad\w*|bez)\b"
    r"|\bn'|n['\u2019]t\b|[不没沒别別无無未]|ない|ません|なく|لا|لم|لن|ليس|بدون|أبدا|않|없|안\s|지\s?마)",
    re.IGNORECASE,
)
"""What turns a sentence into its opposite, with words that are too frequent to be compared."""
_ADDRESS: Final = re.compile(r"@|://|\w\.[a-z]{2,}", re.IGNORECASE)
"""A word that says where something is sent: it alone can turn the user's own words into an attack."""
_CLAUSE: Final = re.compile(r"[,:;\uff0c\uff1a\uff1b\u3001\u060c]|\s[-\u2013\u2014]\s")
_BEFORE, _AFTER = 20, 12
"""Letters around a wish to forget that may deny it: "please don't forget", "vergiss nicht"."""
_DENYING: Final = (
    "en et ei emme ette eivät nu nici si ne inte ej aldrig ingen inga ikke tidak bukan jangan belum nem sem soha "
    "değil niet geen nooit nie nicht kein không δεν μην לא אין नहीं मत ไม่ নয় না"
)
"""Words that turn a sentence into its opposite in one language, and mean something else in another."""
_ALSO_DENYING: Final = frozenset(
    word
    for word in _DENYING.split()
    if not (len(word) < 3 and word.isascii()) and not _DENIAL.search(word)  # noqa: PLR2004 - short words mean much else
)
"""Those of them that hardly mean anything else, and that `_DENIAL` does not find."""
_OF_NOBODY: Final = (
    "user users wants want wanted prefers prefer likes like said says told mentioned asked remember please "
    "Nutzer Benutzer möchte usuario usuária quiere utilisateur utilisatrice veut utente vuole gebruiker użytkownik "
    "пользователь хочет ユーザー 用户 使用者 사용자 المستخدم"
)


class Grounding:
    """The users' own words in ``messages``, and the words that only tools, pasted text or ``others`` have.

    A model that obeys an injected text may name the user as its source. So what it says is checked against the words of
    the messages themselves; a question states nothing, but the user's "yes" to the assistant's question states what it
    asks. If nothing among them is from outside, nothing was injected. ``messages`` are in their order.
    ``sources``: the users' messages whose own words count; None: all. What was pasted into the others still counts as
    from outside, since a model that obeys it would not name them.
    """

    def __init__(
        self,
        messages: Sequence[ConversationMessage],
        others: Iterable[str] = (),
        *,
        sources: Collection[ConversationMessage] | None = None,
    ) -> None:
        users = [(message, own_words(message.text)) for message in messages if message.role is Role.USER]
        own = [said for message, said in users if sources is None or message in sources]
        pasted = [(message.text.removeprefix(said), message.text) for message, said in users]
        external = [message.text for message in messages if message.origin is Origin.TOOL]
        outside = [text for text in (*external, *(text for text, _ in pasted), *others) if text.strip()]
        self.has_outside = bool(outside)
        self._stated = [_stated(text) for text in own]
        self._own = [_words(text) for text in self._stated]
        self._outside = _words_of(outside) - _words_of(said for _, said in users)
        # Beside code, what follows a "here is my code:" is mostly the user's again.
        letters = [text for text, whole in pasted if not FENCE.search(whole)]
        self._outside_texts = [*external, *letters, *others]
        self._sentences = [part for text in self._stated for part in _END.split(text)]
        self._confirmed = [
            asked
            for one, after in pairwise(messages)
            if (sources is None or after in sources) and (asked := _confirmed(one, after))
        ]
        self._others = [_words(message.text) for message in messages if message.origin is Origin.AGENT]
        self._altered: dict[str, bool] = {}

    def is_external(self, text: str, share: float = FACT_SHARE) -> bool:
        """Whether ``text`` may come from outside: something does, and the user has not said most of its words."""
        return self.has_outside and not self._is_said(text, share)

    def may_guide(self, text: str) -> bool:
        """Whether a rule, a preference or a procedure with this ``text`` is the user's.

        With text from outside, each of its sentences has to be one of the user's, or a part of it. Without, one word of
        the conversation is enough: the user may have agreed to what the assistant proposed.
        """
        if self.has_outside:
            parts = [part for part in _END.split(text) if _words(part)]
            return self.has_confirmed(text) or (self._is_said(text, RULE_SHARE) and all(map(self._is_dictated, parts)))
        return not _words(text).isdisjoint(frozenset[str]().union(*self._own, *self._others))

    def is_stated(self, text: str) -> bool:
        """Whether the user has said most of ``text``, whatever else is in the conversation."""
        return self._is_said(text, FACT_SHARE)

    def asks_to_forget(self, text: str) -> bool:
        """Whether the user has asked to forget ``text``, in one sentence or by a yes to a question."""
        words = _words(text)
        asked = [part for part in self._sentences if len(words & _words(part)) >= max(len(words) * FACT_SHARE, 1)]
        asked += [one for one in self._confirmed if _shows(one, words)]
        return any(
            not _DENIAL.search(_CLAUSE.split(part[max(0, found.start() - _BEFORE) : found.start()])[-1])
            and not _DENIAL.search(_CLAUSE.split(part[found.end() : found.end() + _AFTER])[0])
            for part in asked
            for found in _FORGET.finditer(part)
        )

    def has_confirmed(self, text: str) -> bool:
        """Whether the user has said yes to a question of the assistant that showed ``text``."""
        return any(_shows(one, _words(text)) for one in self._confirmed)

    def keeps(self, label: str) -> bool:
        """Whether ``label`` may describe what the user said: its words are mostly the user's, not from outside."""
        words = _words(label)
        if len(words & self._outside) > len(words) / 2:
            return False
        return not self.has_outside or len(words) <= _SHORT or self._is_said(label, FACT_SHARE)

    def _is_said(self, text: str, share: float) -> bool:
        """Whether the user has confirmed ``text``, or said enough of its words in at most two messages.

        More messages would prove nothing: a long conversation has nearly every word somewhere.
        """
        if self.has_confirmed(text):
            return True
        words = _words(text)
        found = [words & said for said in self._own]
        best = max(found, key=len, default=words - words)
        count = max((len(best | other) for other in found), default=0)
        is_enough = 0 < len(words) * share <= count and len(words & self._outside) <= len(words) * _OUTSIDE_SHARE
        return is_enough and not self._is_altered(text, words)

    def _is_altered(self, text: str, words: frozenset[str]) -> bool:
        """Whether ``text``, though of the user's words, says something else; found out once for each text."""
        if text not in self._altered:
            self._altered[text] = (
                self._is_turned(text, words) or self._is_bent(text, words) or self._is_copied(text, words)
            )
        return self._altered[text]

    def _is_bent(self, text: str, words: frozenset[str]) -> bool:
        """Whether a sentence from outside says much the same as the user, and ``text`` takes a word from it.

        One word is enough to deny what the user said, or to put another place, number or person into it. If the word is
        an address, the sentence may say anything.
        """
        own = {token[:_STEM] for said in self._stated for token in _tokens(said)}
        stems = frozenset[str]().union(*self._own)
        new = {one for one in _tokens(text) if one[:_STEM] not in own and not (_words(one) and _words(one) <= stems)}
        # A model changes function words, and says "the user", when it repeats the user; denials it may not change.
        changeable = stop_words(language_of(text)) | {"user", "users", "user's"}
        new -= {word for word in changeable if not _DENIAL.search(word)}.difference(_DENYING.split())
        if not any(token in said for said in self._distinct_outside for token in new):
            return False  # faster than to take megabytes of tool results apart
        addresses = {token for token in new if _ADDRESS.search(token)}
        return any(
            (len(words & _words(part)) >= len(words) * _ALIKE_SHARE and not new.isdisjoint(_tokens(part)))
            or not addresses.isdisjoint(_tokens(part))
            for part in self._outside_parts
            if any(token in part for token in new)  # faster than to split all parts into words
        )

    def _is_copied(self, text: str, words: frozenset[str]) -> bool:
        """Whether text from outside has these words in a row, or more of them in one sentence than the user ever has.

        Words of several sentences of the user, put together by somebody else, say what the user never said.
        """
        copy = in_a_row(plain(text))
        copied = copy.split()
        if any(copy in in_a_row(plain(said)) for said in self._stated):
            return False
        may_have = any(all(word in said for word in copied) for said in self._distinct_outside)
        if may_have and any(copy in said for said in self._outside_in_a_row):
            return True
        most = max((len(words & _words(part)) for part in self._sentences), default=0)
        if most == len(words):
            return False
        starts = {word[:_SHORT] for word in copied}

        def has_most(said: str) -> bool:  # faster than to split all into words
            return 2 * sum(start in said for start in starts) > len(starts)

        return any(
            len(words & _words(sentence)) > max(most, len(words) * RULE_SHARE)
            for said in self._distinct_outside
            if has_most(said)
            for sentence in _END.split(said)
            if has_most(sentence)
        )

    @cached_property
    def _plain_outside(self) -> list[str]:
        """All text from outside, also decoded, which most often changes nothing."""
        texts = list(chain.from_iterable((text, *decoded(text)) for text in self._outside_texts))
        made = {text: plain(text) for text in set(texts)}
        return [made[text] for text in texts]

    @cached_property
    def _distinct_outside(self) -> list[str]:
        return list(dict.fromkeys(self._plain_outside))

    @cached_property
    def _outside_in_a_row(self) -> list[str]:
        return list(map(in_a_row, self._distinct_outside))

    @cached_property
    def _outside_parts(self) -> list[str]:
        """The sentences from outside, short ones with those before them, and long ones as windows that overlap."""
        parts = [""]
        for sentence in chain.from_iterable(map(_END.split, self._plain_outside)):
            is_short = len(parts[-1]) + len(sentence) <= _WINDOW // 2
            part = f"{parts[-1]} {sentence}" if is_short else sentence
            if len(part) <= _WINDOW:
                parts.append(part)
            else:
                parts += (part[at : at + _WINDOW] for at in range(0, len(part) - _WINDOW // 2, _WINDOW // 2))
        return list(dict.fromkeys(parts))

    def _is_turned(self, text: str, words: frozenset[str]) -> bool:
        """Whether ``text`` denies what the user said without denying it, or the other way round."""
        denies = bool(_DENIAL.search(text))
        # What is denied may stand in a clause of its own: "I like tea, not coffee".
        parts = self._sentences if denies else list(chain.from_iterable(map(_CLAUSE.split, self._sentences)))
        shared = [(len(words & _words(part)), part) for part in parts]
        most = max((count for count, _ in shared), default=0)
        return not any(bool(_DENIAL.search(part)) is denies for count, part in shared if count == most)

    def _is_dictated(self, part: str) -> bool:
        """Whether a single sentence of the user says ``part``, and denies as much.

        Its other words may be the model's, but not from outside, nor from other sentences of the user: words put
        together from several sentences say what the user never said. After a denial, the order tells what is denied.
        """
        terms = _terms(part)
        words, elsewhere = frozenset(terms), self._outside.union(*self._own)
        for sentence in self._sentences:
            said = _terms(sentence)
            missing = words.difference(said)
            if len(missing) > len(words) * (1 - RULE_SHARE) or not missing.isdisjoint(elsewhere):
                continue
            if (denials := _denials(sentence)) == _denials(part) and (not denials or _is_in_order(terms, said)):
                return True
        return False


def _stated(text: str) -> str:
    """``text`` without its questions: a sentence that ends in a question mark loses its last clause."""
    return "\n".join(_LAST_CLAUSE.sub("", part) if _QUESTION.search(part) else part for part in _END.split(text))


def _confirmed(asked: ConversationMessage, answer: ConversationMessage) -> str:
    """The question at the end of ``asked`` if the user says nothing but yes to it; else ""."""
    said = re.findall(r"\w+", answer.text.casefold())
    if (asked.role, answer.role) != (Role.ASSISTANT, Role.USER) or not 0 < len(said) <= _MAX_ANSWER:
        return ""
    if set(_YES.split()).isdisjoint(said) or not set(said) <= {*_YES.split(), *_KINDLY.split()}:
        return ""
    question = _END.split(asked.text.strip())[-1]
    is_plain = len(question) <= _MAX_QUESTION and not _HIDING.search(question)
    return question if is_plain and _QUESTION.search(question) else ""


def _shows(question: str, words: frozenset[str]) -> bool:
    shown = _words(question)
    found = len(words & shown)
    return 0 < len(words) * _SHOWN_SHARE <= found >= len(shown) * _ABOUT_SHARE


def same_subject(one: str, other: str) -> bool:
    """Whether two texts share a content word."""
    return not _words(one).isdisjoint(_words(other))


def _words_of(texts: Iterable[str]) -> frozenset[str]:
    return frozenset[str]().union(*map(_words, texts))


def _words(text: str) -> frozenset[str]:
    # Whole documents would keep the process hundreds of megabytes larger, and hold texts of users long gone.
    return _few_words(text) if len(text) <= _KEPT else frozenset(_terms(text))


@lru_cache(maxsize=1_024)
def _few_words(text: str) -> frozenset[str]:
    return frozenset(_terms(text))


def _terms(text: str) -> list[str]:
    """The content words of ``text`` in their order."""
    return [stem for stem in _stems(text) if stem not in _nobodys()]


def _stems(text: str) -> list[str]:
    return [term[:_STEM] for term in analyze(unmasked(text))]


def _denials(text: str) -> int:
    """How many words of ``text`` deny something."""
    return len(_DENIAL.findall(text)) + len(_tokens(text) & _ALSO_DENYING)


def _is_in_order(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether those of ``words`` that are in ``said`` follow one another there as here."""
    rest = iter(said)
    return all(word in rest for word in words if word in said)


@lru_cache(maxsize=1_024)
def _tokens(text: str) -> frozenset[str]:
    """The words of ``text`` as they stand, function words included; pairs of letters in scripts without spaces."""
    found = re.findall(rf"[{UNSPACED}]+|[^\s{UNSPACED}]+", folded(unmasked(text)))
    runs = (
        [one[at : at + 2] for at in range(max(len(one) - 1, 1))]
        if UNSPACED_LETTER.match(one)
        else [one.strip("_'-.:@/+#")]
        for one in found
    )
    return frozenset(chain.from_iterable(runs)) - {""}


@lru_cache(maxsize=1)
def _nobodys() -> frozenset[str]:
    return frozenset[str]().union(*map(_stems, _OF_NOBODY.split()))
