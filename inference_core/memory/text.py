"""The canonical form of text, metadata and ids before a store sees them, and typed reads of stored JSON values."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import unicodedata
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from math import ceil
from typing import Any, Final, cast
from uuid import UUID

from inference_core.clock import aware
from inference_core.errors import InvalidMemory

MAX_CONTENT_BYTES: Final = 8 * 1024
"""Default limit of a memory's content, in UTF-8 bytes."""
MAX_METADATA_BYTES: Final = 16 * 1024
MAX_JSON_DEPTH: Final = 64
MAX_JSON_PARTS: Final = 1_000_000
MAX_LABEL_BYTES: Final = 512
MAX_ID_LENGTH: Final = 255
CHARACTERS_PER_TOKEN: Final = 4
"""Of English; see `text_tokens`."""
_CONTROLS = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_MODULE: Final[Any] = json.encoder  # of which type checkers do not know all
_PARTS: Final[Callable[[object, int], Iterable[str]] | None] = _MODULE.c_make_encoder and _MODULE.c_make_encoder(
    None, _JSON.default, _MODULE.encode_basestring, None, ":", ",", _JSON.sort_keys, _JSON.skipkeys, _JSON.allow_nan
)
"""What `_JSON` makes anew for each value, which takes four times as long as to encode a small one; None on PyPy."""
_STEERING: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_TAB: Final = 4
SAME: Final = "same"
REMOVED: Final = "removed"
ADDED: Final = "added"
_UNCHANGED: Final = 12
"""A longer run of unchanged words is cut to its first and last three."""
_MOST_WORDS: Final = 3_000
"""Longer texts are not compared word by word, which would take seconds."""
_MOST_PAIRS: Final = 50_000
"""Pairs of equal words, several times what prose has. With more of them, difflib ignores frequent words (autojunk)."""
_FORBIDDEN_IN_IDS = frozenset("<>&\"'`")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\Z")
_BYTES: Final = 16
_PORTION: Final = 256
_lock = threading.Lock()
_waiting: list[str] = []
_SPACED: Final = re.compile(r"(?<![^\W_])(?:[^\W_][ \t.\-_*]{1,2}){3,}[^\W_](?![^\W_])")
"""No character matches both as a letter and as a gap: else a line of underscores would backtrack exponentially."""
_GAPS: Final = re.compile(r"[ \t.\-_*]")
_WORD: Final = re.compile(r"[^\W\d_]+")
_LATIN: Final = re.compile("[A-Za-z]")
_CAPITAL: Final = re.compile(r"(?<!\\)(?<!\(\?)[A-Z]")
"""Neither an escape, such as a word boundary, nor the name of a group."""
_LOOK_ALIKES: Final = str.maketrans(
    "АВЕЅІЈКМНОРСТХУԛԜаеѕіјкмнорсухԁһԛԝցոυαβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "ABESIJKMHOPCTXYQWaesijkmhopcyxdhqwgnuabeikvoptuxABEZHIKMNOPTYX",
)


class Uncased:
    """The regular expression ``text``, without regard to case, for texts in most of which it is not found.

    `re` compares without regard to case slowly, so ASCII is first searched in lower case: what is not found there is
    not in the text. ``text`` has no part with regard to case.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def whole(self) -> re.Pattern[str]:
        """The compiled expression."""
        return re.compile(self.text, re.IGNORECASE)

    @cached_property
    def _lower(self) -> re.Pattern[str]:
        return re.compile(_CAPITAL.sub(lambda found: found[0].lower(), self.text))

    def match(self, text: str) -> re.Match[str] | None:
        """The start of ``text``, if it matches."""
        return self.whole.match(text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """All of ``text``, if it matches."""
        return self.whole.fullmatch(text)

    def is_in(self, text: str) -> bool:
        """Whether it is found in ``text``."""
        found = self._lower.search(text.lower()) if text.isascii() else self.whole.search(text)
        return found is not None

    def search(self, text: str) -> re.Match[str] | None:
        """Where it is found first."""
        return self.whole.search(text) if self.is_in(text) else None

    def sub(self, replacement: str, text: str) -> str:
        """``text`` with the ``replacement`` wherever it is found."""
        return self.whole.sub(replacement, text) if self.is_in(text) else text

    def split(self, text: str, maxsplit: int = 0) -> list[str | Any]:
        """``text`` cut wherever it is found."""
        return self.whole.split(text, maxsplit) if self.is_in(text) else [text]


def is_encodable(text: str) -> bool:
    """Whether ``text`` is valid Unicode, without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_text(value: object) -> bool:
    """Whether ``value`` is a string of valid Unicode."""
    return isinstance(value, str) and is_encodable(value)


def canonical_text(text: object, *, what: str = "content", max_bytes: int = MAX_CONTENT_BYTES) -> str:
    r"""``text`` as it is stored: NFC, ``\n`` line ends, no control characters, no outer white space.

    Idempotent. Letters, joiners and emoji are kept. Raises InvalidMemory if it is not a string, is blank, holds NUL or
    lone surrogates, or is longer than ``max_bytes`` of UTF-8.
    """
    if not isinstance(text, str):
        raise InvalidMemory(f"{what} must be text, not {type(text).__name__}")
    if len(text) > max_bytes:
        raise InvalidMemory(f"{what} has {len(text)} characters; the limit is {max_bytes} bytes. Split or shorten it")
    if "\x00" in text:
        raise InvalidMemory(f"{what} holds a NUL character; remove it")
    if not is_encodable(text):
        raise InvalidMemory(f"{what} holds a lone surrogate, so it is not valid Unicode; decode it again or remove it")
    clean = unicodedata.normalize("NFC", _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))).strip()
    if not clean:
        raise InvalidMemory(f"{what} is empty")
    if (size := len(clean.encode())) > max_bytes:
        raise InvalidMemory(f"{what} has {size} bytes; the limit is {max_bytes}. Split or shorten it")
    return clean


def plain_words(text: str) -> str:
    """``text`` as it is compared with others: in lower case, words separated by one space, without final "." and "!".

    Ids of memories are derived from it: see `services.operations.admission` before you change it.
    """
    return " ".join(text.casefold().rstrip(".!").split())


def same_text(one: str, other: str) -> bool:
    """Whether two texts have the same `plain_words`. Nothing else decides whether two memories have the same words."""
    return one == other or plain_words(one) == plain_words(other)


def id_text(given: object) -> Any:
    """A UUID or an integer, as applications have for ids, as text; anything else unchanged."""
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return str(given) if is_number or isinstance(given, UUID) else given


def optional_text(text: object, *, what: str) -> str | None:
    """Canonical short text, such as a topic; None if it is None or blank. Raises InvalidMemory like canonical_text.

    A ``session_id`` may also be a UUID or an integer.
    """
    if what == "session_id":
        text = id_text(text)
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    return canonical_text(text, what=what, max_bytes=MAX_LABEL_BYTES)


def canonical_json(value: object, *, what: str, max_bytes: int | None = None) -> str:
    """``value`` as compact JSON.

    Raises InvalidMemory for NaN, lone surrogates, NUL, cycles, objects, and for what is too deep or too large.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    max_parts = max_bytes or MAX_JSON_PARTS
    parts_seen = 0
    while waiting:
        item, depth = waiting.pop()
        parts_seen += 1
        if parts_seen > max_parts:
            raise InvalidMemory(f"{what} has more than {max_parts} parts; the limit keeps it storable")
        if depth > MAX_JSON_DEPTH:
            raise InvalidMemory(f"{what} is nested more than {MAX_JSON_DEPTH} levels deep, or holds itself")
        if isinstance(item, str) and "\x00" in item:
            raise InvalidMemory(f"{what} holds a NUL character; remove it")
        if isinstance(item, dict):
            item = [part for entry in cast("dict[Any, Any]", item).items() for part in entry]
        if isinstance(item, list | tuple):
            waiting += [(part, depth + 1) for part in cast("Sequence[Any]", item)]
    text = encode_json(value, what=what)
    if max_bytes is not None and (size := len(text.encode())) > max_bytes:
        raise InvalidMemory(f"{what} has {size} bytes as JSON; the limit is {max_bytes}")
    return text


def encode_json(value: object, *, what: str) -> str:
    """Compact JSON of data whose size and depth are already bounded. Raises InvalidMemory."""
    try:
        text = "".join(_PARTS(value, 0)) if _PARTS else _JSON.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMemory(f"{what} cannot be stored as JSON: {str(error)[:200]}") from error
    return text


def canonical_metadata(metadata: object) -> dict[str, Any]:
    """A deep copy of ``metadata`` as JSON data. Raises InvalidMemory if it is not a mapping of JSON values."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidMemory(f"extra_metadata must be a mapping, not {type(metadata).__name__}")
    given = dict(cast("Mapping[str, Any]", metadata))
    return json.loads(canonical_json(given, what="extra_metadata", max_bytes=MAX_METADATA_BYTES))


def canonical_id(memory_id: object) -> str:
    """A memory's id: 1 to 255 printable characters without white space, quotes and angle brackets, or a UUID.

    Raises InvalidMemory for anything else.
    """
    if isinstance(memory_id, UUID):
        memory_id = str(memory_id)
    if not isinstance(memory_id, str) or not 1 <= len(memory_id) <= MAX_ID_LENGTH:
        raise InvalidMemory(f"memory_id must be text of 1 to {MAX_ID_LENGTH} characters")
    if not is_id(memory_id):
        raise InvalidMemory("memory_id holds white space, control characters, quotes or angle brackets")
    return memory_id


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of a memory's id."""
    if not 1 <= len(text) <= MAX_ID_LENGTH:
        return False
    return not any(not mark.isprintable() or mark.isspace() or mark in _FORBIDDEN_IN_IDS for mark in text)


def id_as_segment(memory_id: object) -> str:
    """A memory's id as one segment of a URL path: itself if it is safe there, else ``~`` and its UTF-8 in base64url.

    Raises InvalidMemory if ``memory_id`` is not a valid id.
    """
    name = canonical_id(memory_id)
    return name if _SEGMENT.match(name) else f"~{urlsafe_b64encode(name.encode()).decode().rstrip('=')}"


def id_of_segment(segment: str) -> str:
    """The id that a segment of a path stands for. Raises InvalidMemory if what follows a ``~`` cannot be decoded."""
    if not segment.startswith("~"):
        return segment
    encoded = segment[1:]
    with suppress(ValueError):
        if encoded:
            return b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True).decode()
    raise InvalidMemory("~ stands before the UTF-8 of an id in base64url, and here before something else")


def digest_of(what: Sequence[Any]) -> str:
    """A hash of JSON data, as 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def text_tokens(text: str) -> int:
    """A conservative estimate of tokens: one for four bytes of English, or for one Chinese character."""
    if text.isascii():
        return ceil(len(text) / 4)
    size = len(text.encode("utf-8", "surrogatepass"))
    return ceil(size / 4 + (size - len(text)) / 8)


def new_id() -> str:
    """A new memory id: 128 random bits in hex, unique across processes and forks."""
    # Drawn in batches, because each call of the system's generator is slow.
    with _lock:
        if not _waiting:
            drawn = os.urandom(_BYTES * _PORTION)
            _waiting.extend(drawn[at : at + _BYTES].hex() for at in range(0, len(drawn), _BYTES))
        return _waiting.pop()


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a lock that was held at the fork stays held in the child
    _lock = threading.Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def text_field(value: Mapping[str, Any], name: str) -> str | None:
    """The field if it is a string, else None. In this and the next functions, a value of another type is missing."""
    found = value.get(name)
    return found if isinstance(found, str) else None


def texts_field(value: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The strings in a list field."""
    found = value.get(name)
    items = cast("Sequence[Any]", found) if isinstance(found, list | tuple) else ()
    return tuple(item for item in items if isinstance(item, str))


def mapping_field(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A copy of a mapping field, else an empty dict."""
    found = value.get(name)
    return dict(cast("Mapping[str, Any]", found)) if isinstance(found, Mapping) else {}


def copied(value: Any) -> Any:
    """A deep copy of a JSON value: rows are cached and handed to several callers."""
    if isinstance(value, dict):
        # Strings, which most parts are, skip the recursive call: calls take most of the time.
        parts = cast("dict[str, Any]", value).items()
        return {name: part if type(part) is str else copied(part) for name, part in parts}
    return list(map(copied, cast("list[Any]", value))) if isinstance(value, list) else value


def share_field(value: Mapping[str, Any], name: str, default: float) -> float:
    """The field if it is a number from 0 to 1, else ``default``."""
    found = value.get(name)
    is_share = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= 1
    return float(found) if is_share and found is not None else default


def moment_field(value: Mapping[str, Any], name: str) -> datetime | None:
    """An ISO 8601 instant, converted to UTC; a naive one is taken as UTC."""
    found = value.get(name)
    try:
        return aware(datetime.fromisoformat(found)) if isinstance(found, str) else None
    except (ValueError, OverflowError):
        return None


def harmless(text: str) -> str:
    """``text`` with control and invisible characters other than line ends as visible escapes."""
    return _STEERING.sub(lambda match: json.dumps(match[0])[1:-1], text.replace("\r\n", "\n").expandtabs(_TAB))


def word_changes(old: str, new: str) -> list[tuple[str, str]]:
    """What changed from ``old`` to ``new``, in order: words that are SAME (long parts are cut), REMOVED or ADDED."""
    before, after = old.split(), new.split()
    if max(len(before), len(after)) > _MOST_WORDS:
        return [(SAME, f"{len(before)} words replaced by {len(after)}")]
    found: list[tuple[str, str]] = []
    counts = Counter(before)
    pairs = sum(counts[word] for word in after)
    for operation, start, end, first, last in SequenceMatcher(
        None, before, after, autojunk=pairs > _MOST_PAIRS
    ).get_opcodes():
        if operation == "equal":
            is_short = end - start <= _UNCHANGED
            same = before[start:end] if is_short else [*before[start : start + 3], "…", *before[end - 3 : end]]
            found.append((SAME, " ".join(same)))
            continue
        found += [(REMOVED, " ".join(before[start:end]))] if end > start else []
        found += [(ADDED, " ".join(after[first:last]))] if last > first else []
    return found


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of an error message about an unknown ``name``: the closest of ``known``; "" if none is close."""
    close = get_close_matches(name, known, n=1) or get_close_matches(name.lower(), known, n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def unmasked(text: str) -> str:
    """``text`` without the tricks that hide words: invisible characters, look-alike letters, spaced-out letters.

    Look-alikes are replaced only in words that also have Latin letters, so that Cyrillic and Greek words stay.
    """
    # Looks at each distinct character once: megabytes of a conversation have a few hundred.
    hidden = {ord(one): None for one in set(text) if unicodedata.category(one) == "Cf"}
    visible = text.translate(hidden) if hidden else text
    joined = _SPACED.sub(lambda match: _GAPS.sub("", match[0]), visible)
    if joined.isascii():
        return joined
    return _WORD.sub(lambda found: found[0].translate(_LOOK_ALIKES) if _LATIN.search(found[0]) else found[0], joined)
