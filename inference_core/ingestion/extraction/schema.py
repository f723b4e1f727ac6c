"""The schema of extracted memories, and validators that accept what models write in place of its names and values."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any, Final, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from inference_core.errors import InvalidMemory
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.text import canonical_text
from inference_core.memory.types import IDEA, MemoryType
from inference_core.outbox.messages import (
    STATES,
    Action,
    Entity,
    Relation,
    mended,
)
from inference_core.retrieval.query import interval_of

MAX_MEMORIES: Final = 50
"""Memories taken from one answer."""
MAX_CONTENT: Final = 2_000
"""Characters of a memory; a longer one is refused. The model is asked for a quarter."""
MAX_LABEL: Final = 100
"""Characters of a topic, a tag, a name."""
MAX_TAGS: Final = 8
MAX_ENTITIES: Final = 12
"""Entities of a memory, and likewise relations."""
MAX_SOURCES: Final = 20
EXTRACTED_TYPES: Final = tuple(kind for kind in MemoryType if kind is not MemoryType.SESSION_SUMMARY)
"""The types that messages may suggest. Session summaries are made of a whole session, when it is over."""
_WORDS: Final[dict[str, Any]] = tomllib.loads((files(str(__package__)) / "model_words.toml").read_text("utf-8"))
"""Folded names that models use for fields and values, by the schema's own names."""


def _meanings(name: str) -> dict[str, str]:
    return {word: meaning for meaning, words in _WORDS[name].items() for word in words.split()}


_FIELDS: Final[dict[str, dict[str, list[str]]]] = {
    form: {field: names.split() for field, names in fields.items()} for form, fields in _WORDS["fields"].items()
}
LISTS: Final = frozenset(_WORDS["lists"].split())
"""Names that models give to a list of memories."""
CONTENT: Final[Sequence[str]] = _FIELDS["ExtractedMemory"]["content"]
"""Names that models give to the text of a memory, the one in the schema first."""
TYPES: Final[Mapping[str, MemoryType]] = {name: MemoryType(kind) for name, kind in _meanings("types").items()}
"""Types by the folded names that models use; a session summary becomes context."""
_IDEAS: Final = frozenset({"idea", "ideas", "shorttermidea", "shorttermideas"})
"""Folded types that become goals with the tag IDEA."""
_ACTIONS: Final = _meanings("actions")
"""Deletions and the like are "", which is refused: a model cannot delete memories."""
_STATES: Final = _meanings("states")
_KINDS: Final = _meanings("kinds")
_LEVELS: Final = {word: float(level) for word, level in _meanings("levels").items()}
_NOTHING: Final = frozenset({"none", "null", "n/a", "nothing", "no memories", "no facts", "..."})
_NO_TIME: Final = ("", "null", "none", "unknown")
_MAX_NAME: Final = 60
_MAX_INTEGER: Final = 1 << 63
_NOT_WORD: Final = re.compile(r"[\W_]+")
Entry = dict[str, Any]
"""One memory as a model gave it, by folded field names."""


def plain_text(value: Any) -> str:
    """``value`` if it is a string, a number as a string, and "" for anything else."""
    is_plain = isinstance(value, str | float) or (isinstance(value, int) and abs(value) < _MAX_INTEGER)
    return str(value) if is_plain else ""


def folded(name: Any) -> str:
    """``name`` in lower case without spaces, dashes and underscores; "" if it is neither string nor number."""
    return _NOT_WORD.sub("", plain_text(name)[:_MAX_NAME].casefold())


def folded_keys(value: Any) -> Entry:
    """``value`` with folded keys if it is an object, else an empty one."""
    parts = cast("dict[Any, Any]", value) if isinstance(value, dict) else {}
    return {folded(name): part for name, part in parts.items()}


def first_of(entry: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first value other than None under one of ``names``; None if there is none."""
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def texts_of(value: Any) -> Iterator[str]:
    """The strings in a list, in a string with commas, or the names in a list of objects."""
    given: Any = value.split(",") if isinstance(value, str) else value
    for part in cast("list[Any]", given) if isinstance(given, list) else [given]:
        text: Any = first_of(folded_keys(part), ("name", "id", "text", "value")) if isinstance(part, dict) else part
        if plain := plain_text(text).strip():
            yield plain


def quoted(value: object) -> str:
    """``value`` cut and quoted for a problem."""
    return repr(mended(plain_text(value)[:_MAX_NAME]))


def share_of(value: Any) -> float | None:
    """``value`` as a number from 0 to 1: 0.8, "0.8", "80 %", 8 (of 10), 80 (of 100) and "high" are all 0.8."""
    if isinstance(value, str):
        if (level := _LEVELS.get(folded(value))) is not None:
            return level
        try:
            value = float(value[:_MAX_NAME].rstrip("% ").replace(",", "."))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return None
    most = 1 if value <= 1 else 10 if value <= 10 else 100  # noqa: PLR2004 - the usual scales
    return float(min(most, max(0, value))) / most


def start_of(value: Any, said_at: datetime, zone: tzinfo) -> datetime | None:
    """The start, in UTC, of the time that ``value`` names, in ``zone`` unless it has an offset; None if it names none.

    Words such as "yesterday" are relative to ``said_at``.
    """
    return (_span_of(value, said_at, zone) or (None,))[0]


def end_of(value: Any, said_at: datetime, zone: tzinfo) -> datetime | None:
    """Like `start_of`, the end of that time: a day, a month or a year ends where the next one begins."""
    return (_span_of(value, said_at, zone) or (None,))[-1]


def _span_of(value: Any, said_at: datetime, zone: tzinfo) -> tuple[datetime, datetime] | None:
    text = plain_text(value).strip()
    moment = None
    with suppress(ValueError):
        moment = datetime.fromisoformat(text) if ":" in text else None
    try:
        if moment:
            start = end = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        elif span := interval_of(f"in {text}" if re.fullmatch("[0-9]{4}", text) else text, said_at.astimezone(zone)):
            start, end = span
        else:
            return None
        return start.astimezone(UTC), end.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _or_noted(read: Callable[[Any], Any], default: Any) -> BeforeValidator:
    """Converts a value with ``read``; if that gives None, adds a problem to the context and uses ``default``."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        found = read(value)
        if found is None and info.context is not None:
            info.context.append(f"has no readable {info.field_name}: {quoted(value)}")
        return default if found is None else found

    return BeforeValidator(validate)


def _label(value: Any) -> str | None:
    """``value`` as a label; None if it is not a string, blank or too long."""
    if not isinstance(value, str) or len(value) > MAX_LABEL:
        return None
    try:
        return canonical_text(" ".join(mended(value).split()), max_bytes=MAX_LABEL * 4)
    except InvalidMemory:
        return None


class _Form(BaseModel):
    """Accepts other names of its fields and ignores unknown ones; the schema that models are given is strict."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def rename_fields(cls, value: Any) -> Any:
        if isinstance(value, list):  # a row of the values
            return dict(zip(cls.model_fields, cast("list[Any]", value), strict=False))
        given = {"name": value} if isinstance(value, str) else folded_keys(value)
        found = {name: first_of(given, names) for name, names in _FIELDS[cls.__name__].items()}
        if folded(found.get("type")) in _IDEAS:
            found["tags"] = [IDEA, *texts_of(found.get("tags") or [])]
        return {name: part for name, part in found.items() if part is not None}


_Label = Annotated[str, BeforeValidator(_label), Field(max_length=MAX_LABEL)]
_Time = Annotated[str | None, BeforeValidator(plain_text)]
_DATE: Final = "ISO 8601, a day or an instant; an absolute date, never a word such as yesterday"


def _one_of(*values: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [*values]})


def _one_or_none_of(*values: str) -> WithJsonSchema:
    # Not null among the values: Gemini takes texts alone there.
    return WithJsonSchema({"anyOf": [{"type": "string", "enum": [*values]}, {"type": "null"}]})


class ExtractedEntity(_Form):
    """Somebody or something that the memory is about."""

    name: _Label
    kind: Annotated[
        str, BeforeValidator(lambda value: _KINDS.get(folded(value), "thing")), _one_of(*_WORDS["kinds"])
    ] = "thing"


class ExtractedRelation(_Form):
    """How two of the entities stand to each other, such as Ada, sister_of, Ida."""

    source: _Label
    name: _Label
    target: _Label


class ExtractedMemory(_Form):
    """One memory."""

    # The schema requires these of models, but validation accepts a content alone.
    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": False, "required": ["content", "type", "sources"]}
    )
    content: str = Field(
        description="One sentence that makes sense on its own, in the user's language",
        json_schema_extra={"maxLength": MAX_CONTENT // 4},
    )
    type: Annotated[
        MemoryType,
        _or_noted(lambda value: TYPES.get(folded(value)), MemoryType.GENERAL),
        _one_of(*(kind.value for kind in EXTRACTED_TYPES), IDEA),
    ] = MemoryType.FACTS
    sources: Annotated[list[str], BeforeValidator(lambda value: list(islice(texts_of(value), MAX_SOURCES)))] = Field(
        default=[], max_length=MAX_SOURCES, description="Names of the messages that say it: m1, m2 and so on"
    )
    topic: Annotated[str | None, BeforeValidator(_label)] = Field(
        default=None, max_length=MAX_LABEL, description="One or two words"
    )
    tags: list[str] = Field(default=[], max_length=MAX_TAGS)
    importance: Annotated[float, _or_noted(share_of, DEFAULT_IMPORTANCE)] = Field(
        default=DEFAULT_IMPORTANCE, ge=0, le=1, description="How much it matters for later conversations"
    )
    happened_at: _Time = Field(default=None, description=f"When it happened or began to hold: {_DATE}")
    holds_until: _Time = Field(default=None, description=f"When it ends, if that was said: {_DATE}")
    state: Annotated[
        str | None, BeforeValidator(lambda value: _STATES.get(folded(value))), _one_or_none_of(*STATES)
    ] = Field(default=None, description="Of a goal or an idea alone")
    entities: list[ExtractedEntity] = Field(default=[], max_length=MAX_ENTITIES)
    relations: list[ExtractedRelation] = Field(default=[], max_length=MAX_ENTITIES)
    action: Annotated[
        str,
        _or_noted(lambda value: _ACTIONS.get(folded(value)), Action.ADD.value),
        _one_of(*(action.value for action in Action)),
    ] = Action.ADD.value
    target: Annotated[str | None, BeforeValidator(lambda value: next(texts_of(value), None))] = Field(
        default=None, description="The known memory, k1, k2 and so on, of any action but add"
    )

    @field_validator("content", mode="before")
    @classmethod
    def one_line(cls, value: Any) -> str:
        """The text in one line. Raises InvalidMemory if it is empty, too long or says nothing."""
        given = value if isinstance(value, str) else ""
        text = " ".join(mended(given[: MAX_CONTENT + 1]).split())
        while len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1].strip()
        if len(given) > MAX_CONTENT:
            raise InvalidMemory(f"has {len(given)} characters and was left out: {text[:_MAX_NAME]}…")
        if text.casefold() in _NOTHING:
            raise InvalidMemory("says nothing")
        return canonical_text(text, max_bytes=MAX_CONTENT * 4)

    @field_validator("tags", mode="before")
    @classmethod
    def distinct_labels(cls, value: Any) -> list[str]:
        """The distinct labels among the first few strings."""
        labels = (label for text in islice(texts_of(value), 4 * MAX_TAGS) if (label := _label(text)))
        return list({label.casefold(): label for label in labels}.values())[:MAX_TAGS]

    @field_validator("entities", "relations", mode="before")
    @classmethod
    def valid_ones(cls, value: Any, info: ValidationInfo) -> list[_Form]:
        """The valid items; skips invalid ones."""
        form = ExtractedEntity if info.field_name == "entities" else ExtractedRelation
        found: list[_Form] = []
        for item in cast("list[Any]", value)[:MAX_ENTITIES] if isinstance(value, list) else []:
            with suppress(ValidationError):
                found.append(form.model_validate(item))
        return found

    def validity(self, said_at: datetime, zone: tzinfo, problems: list[str]) -> tuple[datetime | None, datetime | None]:
        """When the memory begins and ceases to hold; adds unreadable times to ``problems``."""
        start, end = start_of(self.happened_at, said_at, zone), end_of(self.holds_until, said_at, zone)
        for given, moment in ((self.happened_at, start), (self.holds_until, end)):
            if moment is None and folded(given) not in _NO_TIME:
                problems.append(f"has no readable time: {quoted(given)}")
        if start and end and end <= start:
            problems.append("ends before it begins")
            end = None
        return start, end

    def graph(self, is_kept: Callable[[str], bool]) -> tuple[tuple[Entity, ...], tuple[Relation, ...]]:
        """The entities and relations whose names ``is_kept`` accepts; ends of relations become entities if they fit."""
        entities = {
            entity.name.casefold(): Entity(entity.name, entity.kind) for entity in self.entities if is_kept(entity.name)
        }
        given = [Relation(relation.source, relation.name, relation.target) for relation in self.relations]
        relations = [
            relation for relation in given if all(map(is_kept, (relation.source, relation.name, relation.target)))
        ]
        for name in [end for relation in relations for end in (relation.source, relation.target)]:
            entities.setdefault(name.casefold(), Entity(name))
        kept = dict(islice(entities.items(), MAX_ENTITIES))
        known = [
            relation
            for relation in relations
            if {relation.source.casefold(), relation.target.casefold()} <= kept.keys()
        ]
        return tuple(kept.values()), tuple(dict.fromkeys(known))


class ExtractedMemories(BaseModel):
    """The memories that should be kept of the conversation; an empty list if there are none."""

    model_config = _Form.model_config
    memories: list[ExtractedMemory] = Field(max_length=MAX_MEMORIES)
