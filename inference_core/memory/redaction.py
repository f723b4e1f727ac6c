"""Guard: whether a store redacts secrets in texts, rejects the texts, or stores them as they are.

Every write, and every text whose hash becomes an id, passes a guard before a model or the embedder sees it. What is
found is reported by kind alone, never by value. `stores/rules/redacting.py` applies the guard a last time, to what
is about to be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from inference_core.errors import ConfigurationError, SecretFound, in_one_line
from inference_core.memory.record import MemoryRecord
from inference_core.memory.secrets import Finding, credentials_in, is_assigned, merged, personal_in, quoted, without
from inference_core.memory.text import encode_json

T = TypeVar("T")
Policy = Literal["redact", "reject", "off"]
POLICIES: Final = ("redact", "reject", "off")
_IDENTIFIERS: Final = frozenset({"session_id", "session"})
"""Top-level fields of a stored value that applications set and search by; not redacted, so put no secrets there."""


class Redactor(Protocol):
    """Finds what this package does not, for example with Presidio or LangChain's detectors.

    It is called from several threads at once, for every text that is stored, and should take milliseconds.
    """

    def find(self, text: str) -> Iterable[tuple[int, int, str]]:
        """The parts of ``text`` to redact, each as its start, its end (exclusive) and the name of its kind."""
        ...


@dataclass(frozen=True, slots=True)
class Guard:
    """The policies for credentials (``secrets``) and personal data (``pii``), and a ``redactor`` of your own.

    What ``redactor`` finds is always redacted, whatever the policies. Raises ConfigurationError for an unknown policy.
    """

    secrets: Policy = "redact"
    pii: Policy = "off"
    redactor: Redactor | None = None

    @classmethod
    def of(cls, given: Policy | Guard | None) -> Guard:
        """The guard that an argument ``secrets`` means: itself, one with this policy for credentials, or the default.

        Raises ConfigurationError.
        """
        return given if isinstance(given, Guard) else cls() if given is None else cls(given)

    def __post_init__(self) -> None:
        for name, policy in (("secrets", self.secrets), ("pii", self.pii)):
            if policy not in POLICIES:
                raise ConfigurationError(f"{name} must be one of {', '.join(POLICIES)}, not {quoted(policy)}")

    @property
    def is_off(self) -> bool:
        """Whether everything is stored as it comes."""
        return self.secrets == "off" and self.pii == "off" and self.redactor is None

    def find(self, text: str) -> list[Finding]:
        """The secrets in ``text``, in their order."""
        findings = credentials_in(text) if self.secrets != "off" else []
        if self.pii != "off":
            findings = merged([*findings, *personal_in(text)])
        if self.redactor:
            more = [Finding(start, end, kind) for start, end, kind in self.redactor.find(text) if start < end]
            findings = merged([*findings, *more])
        return findings

    def text(self, text: str) -> str:
        """``text`` with ``[redacted: kind]`` in the place of each secret."""
        findings = self.find(text)
        return without(text, findings) if findings else text

    def value(self, value: T) -> T:
        """JSON data with all its texts redacted, names of fields included; ``value`` itself if nothing is found."""
        return _walked(value, self.text, self._is_assigned)

    def stored(self, encoded: str) -> str:
        """The JSON text of a row's value, redacted except for its top-level identifiers."""
        value: Any = json.loads(encoded)
        if not isinstance(value, dict):
            return encoded
        fields = cast("dict[str, Any]", value)
        rest = self.told(fields)
        clean = self.value(rest)
        if clean is rest:
            return encoded
        return encode_json({name: part for name, part in fields.items() if name in _IDENTIFIERS} | clean, what="value")

    @staticmethod
    def told(value: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a row's ``value`` that is searched: all but its top-level identifiers."""
        return {name: part for name, part in value.items() if name not in _IDENTIFIERS}

    def record(self, record: MemoryRecord) -> MemoryRecord:
        """``record`` without secrets in content, topic, tags, metadata and source; itself if nothing is found."""
        source = record.source
        given = {"content": record.content, "topic": record.topic}
        more = [record.tags, record.extra_metadata, [source.tool, source.thread_id, source.message_ids]]
        has_more = record.tags or record.extra_metadata or source.tool or source.thread_id or source.message_ids
        is_text_alone = not has_more and record.topic is None  # as of most: its text is searched once, and nothing else
        if is_text_alone and not self.find(record.content) and not self._is_assigned("content", record.content):
            return record
        told = self.value([given, *more])
        if told[0] is given and all(map(is_, told[1:], more)):
            return record
        clean, tags, metadata, (tool, thread_id, message_ids) = cast("list[Any]", told)
        return replace(
            record,
            content=clean["content"],
            topic=clean["topic"],
            tags=tuple(dict.fromkeys(tags)),
            extra_metadata=metadata,
            source=replace(source, tool=tool, thread_id=thread_id, message_ids=tuple(message_ids)),
        )

    def kinds(self, *values: Any) -> tuple[str, ...]:
        """The kinds of secrets in JSON data, each once."""
        found: dict[str, None] = {}

        def noted(text: str) -> str:
            found.update(dict.fromkeys(finding.kind for finding in self.find(text)))
            return text

        def is_assigned_to(name: str, text: str) -> bool:
            if self._is_assigned(name, text):
                found["secret_key"] = None
            return False

        _walked(values, noted, is_assigned_to)
        return tuple(found)

    def refuse(self, *values: Any) -> None:
        """Raises SecretFound, which names kinds and no values, if JSON data holds what a policy rejects."""
        if "reject" not in (self.secrets, self.pii):
            return
        strict = replace(
            self,
            secrets="reject" if self.secrets == "reject" else "off",
            pii="reject" if self.pii == "reject" else "off",
            redactor=None,
        )
        if kinds := strict.kinds(*values):
            raise SecretFound(kinds)

    def _is_assigned(self, name: str, text: str) -> bool:
        return self.secrets != "off" and is_assigned(name, text)


DEFAULT_GUARD: Final = Guard()
"""The guard of a store that is given none."""


def told_error(error: BaseException) -> str:
    """The message of a model provider's ``error`` on one line, without credentials: providers may quote the API key."""
    return in_one_line(Exception(DEFAULT_GUARD.text(str(error))))


def _walked(value: Any, change: Callable[[str], str], is_assigned_to: Callable[[str, str], bool]) -> Any:
    """JSON data with its texts changed; parts in which nothing changes are the same objects as before."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        new = [_walked(item, change, is_assigned_to) for item in items]
        return items if all(map(is_, items, new)) else new
    if not isinstance(value, Mapping):
        return value
    fields = cast("Mapping[str, Any]", value)
    changed: dict[str, Any] = {}
    topic = fields.get("topic")
    for name, part in fields.items():
        said = topic if name == "content" and isinstance(topic, str) else name  # a topic names its content
        new, others = change(name), 1
        while new in changed:  # another name with a secret is redacted to the same text: both values stay
            others += 1
            new = f"{change(name)} {others}"
        if isinstance(part, str) and is_assigned_to(said, part):
            changed[new] = "[redacted: secret_key]"
        else:
            changed[new] = _walked(part, change, is_assigned_to)
    is_same = all(map(is_, fields.keys(), changed.keys())) and all(map(is_, fields.values(), changed.values()))
    return fields if is_same else changed
