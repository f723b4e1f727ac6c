"""``doctor`` and what it finds out: versions, extras, the store, models, settings, and what is wrong with them."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from inference_core import __version__
from inference_core.cli.options import LOADING_S, Target, on_store
from inference_core.cli.output import draw, one_line, print_json, working
from inference_core.embeddings import large, local, multilingual
from inference_core.embeddings.factory import is_former, make_embedder
from inference_core.errors import ConfigurationError, InferenceCoreError, MissingExtra
from inference_core.lifecycle.repairs import find_damage, user_of
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.settings import AgentSettings, MemorySettings, S, read_settings
from inference_core.stores.backend import EMBEDDING_META
from inference_core.stores.factory import has_store, open_backend
from inference_core.stores.indexing.indexes import index_size, needed_megabytes
from inference_core.stores.urls import shown_url
from inference_core.transfer.migrate import migrate_memories

if TYPE_CHECKING:
    from inference_core.memory.namespaces import Namespace
    from inference_core.stores.backend import Backend

_DISTRIBUTION: Final = "inference-core-memory"
_LIBRARIES: Final = ("langgraph", "langchain", "langchain-core", "numpy")
_EXTRA: Final = re.compile(r"([\w.-]+)[^;]*;.*\bextra == ['\"]([\w-]+)['\"]")
_MODELS: Final = {
    local.EXTRA: local.LocalEmbeddings,
    large.EXTRA: large.LargeEmbeddings,
    multilingual.EXTRA: multilingual.MultilingualEmbeddings,
}
_LABEL: Final = 10
_MANY: Final = 1_000
_MEGABYTE: Final = 1024 * 1024
_INDEXED_BYTES: Final = 10_000
"""Hardly a memory takes more in an index."""
_NAMED: Final = 10
_KEYS: Final = {
    "openai": "OPENAI_API_KEY",
    "azure_openai": "AZURE_OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google_genai": "GOOGLE_API_KEY",
    "mistralai": "MISTRAL_API_KEY",
    "groq": "GROQ_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "cohere": "COHERE_API_KEY",
    "ollama": None,
    "huggingface": None,
}
"""The variable with each provider's key; None: it needs none."""


@dataclass(slots=True)
class StoreReport:
    """What is known of the store. None: it could not be found out; ``exists`` is then True."""

    url: str
    exists: bool = True
    opens: bool = False
    schema_version: int | None = None
    capabilities: dict[str, bool] | None = None
    memories: int | None = None
    users: int | None = None
    flat_memories: int | None = None
    """Memories in any other layout, not only flat ones, that are not migrated yet."""
    layouts: dict[str, int] | None = None
    """All memories in other layouts, by layout; ``others`` counts what else LangGraph's table holds."""
    others: int | None = None
    vectors_made_by: str | None = None
    vectors_pending: int | None = None
    more_pending: bool = False
    unreadable: int | None = None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A configured model and its package. ``key``: present, missing, not needed or unknown."""

    name: str
    installed: bool
    key: str


@dataclass(slots=True)
class Diagnosis:
    """All findings. ``problems`` have to be fixed; ``hints`` are worth knowing."""

    versions: dict[str, str]
    extras: dict[str, bool]
    store: StoreReport
    embedding_model: str | None = None
    embeddings_ready: bool = False
    chat_model: ModelReport | None = None
    fallbacks: list[ModelReport] = field(default_factory=list[ModelReport])
    extraction_models: list[ModelReport] = field(default_factory=list[ModelReport])
    media_model: ModelReport | None = None
    time_zone: str = "UTC"
    changed_settings: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    hints: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON data."""
        return {**asdict(self), "ok": not self.problems}


def diagnose(url: str | None, embeddings: str | None) -> Diagnosis:
    """Looks at everything and changes nothing: a missing store is not created. What fails becomes a problem.

    ``url`` and ``embeddings`` take precedence over the settings.
    """
    versions = {"inference-core": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    versions |= {name: _installed(name) or "missing" for name in _LIBRARIES}
    given = {"store_url": url, "embeddings": embeddings}
    diagnosis = Diagnosis(versions, _extras(), StoreReport(""))
    memory = _read(diagnosis, MemorySettings, {name: value for name, value in given.items() if value is not None})
    agent = _read(diagnosis, AgentSettings, {})
    diagnosis.time_zone = memory.timezone
    diagnosis.changed_settings = _changed(memory) | _changed(agent)
    diagnosis.store.url = shown_url(memory.store_url)
    _examine_store(diagnosis, memory)
    if agent.model is None:
        diagnosis.hints.append(
            "No chat model: set AGENT_MODEL, for example openai:gpt-5-mini, for chat and AgentService"
        )
    else:
        diagnosis.chat_model = _model(diagnosis, agent.model)
    diagnosis.fallbacks = [_model(diagnosis, name) for name in agent.model_fallbacks]
    diagnosis.extraction_models = [_model(diagnosis, name) for name in memory.model]
    if memory.media_model:
        diagnosis.media_model = _model(diagnosis, memory.media_model)
    if memory.model and all(model.installed and model.key != "missing" for model in diagnosis.extraction_models):
        from inference_core.agents.from_settings import make_extractor  # noqa: PLC0415 - imports all agents

        try:
            make_extractor(memory)
        except ConfigurationError as error:
            diagnosis.problems.append(str(error))
    return diagnosis


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> dict[str, bool]:
    """Each extra for users, and whether all that it needs is installed. A model may come from one of our own wheels."""
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, bool] = {}
    for match in filter(None, map(_EXTRA.match, requirements)):
        if match[2] != "dev":
            extras[match[2]] = extras.get(match[2], True) and _installed(match[1]) is not None
    return extras | {extra: _has_all(kind) for extra, kind in _MODELS.items() if extra in extras}


def _has_all(kind: Callable[[], object]) -> bool:
    """Whether all that a local model needs is installed; the model is not loaded."""
    try:
        kind()
    except MissingExtra:
        return False
    return True


def _read(diagnosis: Diagnosis, kind: type[S], given: dict[str, Any]) -> S:
    """The settings; invalid ones become a problem and are replaced by their defaults."""
    try:
        return read_settings(kind, **given)
    except ConfigurationError as error:
        diagnosis.problems.append(str(error))
        faults = error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else []
    wrong = {str(error["loc"][0]) for error in faults}
    return kind(**given | {name: kind.model_fields[name].default for name in wrong})


def _changed(settings: MemorySettings | AgentSettings) -> dict[str, str]:
    """The settings that differ from their defaults, by environment variable, without passwords."""
    prefix = settings.model_config.get("env_prefix", "")
    changed: dict[str, str] = {}
    for name, one in type(settings).model_fields.items():
        value: Any = getattr(settings, name)
        if value != one.default:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - tuples of strings
            changed[f"{prefix}{name}".upper()] = shown_url(text) if "://" in text else text
    return changed


def _examine_store(diagnosis: Diagnosis, settings: MemorySettings) -> None:
    """Looks into the store, if there is one, and at the embedding model that goes with it."""
    url, encryption = settings.store_url, settings.encryption
    try:
        diagnosis.store.exists = has_store(url)
        backend = open_backend(url, **encryption) if diagnosis.store.exists else None
    except InferenceCoreError as error:
        diagnosis.problems.append(str(error))
        _examine_embeddings(diagnosis, settings, None)
        return
    if backend is None:
        diagnosis.hints.append(f"There is no store at {diagnosis.store.url} yet; the first save creates it")
        _examine_embeddings(diagnosis, settings, None)
    else:
        with closing(backend):
            diagnosis.store.opens = True
            try:
                typed = [name for name in backend.namespaces() if len(name) > 1 and name[1] in MEMORY_CATEGORIES]
                diagnosis.store.capabilities = asdict(backend.capabilities)
                diagnosis.store.memories = backend.count(typed)
                diagnosis.store.users = len({name[0] for name in typed})
                diagnosis.store.vectors_made_by = backend.get_meta(EMBEDDING_META)
                version = backend.get_meta("schema_version")
                diagnosis.store.schema_version = int(version) if version else None
                _find_large_users(diagnosis, backend, typed, settings.index_mb)
            except InferenceCoreError as error:
                diagnosis.problems.append(f"The store cannot be read: {error}")
            try:
                _find_damage(diagnosis, backend)
            except InferenceCoreError as error:
                diagnosis.problems.append(f"The rows cannot be read: {error}")
            _examine_embeddings(diagnosis, settings, backend)
    with suppress(InferenceCoreError):  # opening the store has reported it
        report = migrate_memories(url, dry_run=True, **encryption)
        diagnosis.store.flat_memories = report.written
        diagnosis.store.layouts, diagnosis.store.others = dict(report.by_layout), report.others
        if report.written:
            shares = ", ".join(f"{count} {name}" for name, count in report.by_layout.items())
            diagnosis.hints.append(
                f"{report.written} memories are in other layouts ({shares}) and not read yet: inference-core migrate"
            )
        if report.others:
            diagnosis.hints.append(
                f"{report.others} items in LangGraph's table are in no known layout, as in {report.other_places[0]!a}; "
                "they are not changed. If they are memories: inference-core migrate --layout"
            )


def _find_damage(diagnosis: Diagnosis, backend: Backend) -> None:
    """Reads every row, and names some of those that cannot be read."""
    damages = list(find_damage(backend))
    broken = [damage for damage in damages if not damage.is_newer]
    newer = [damage for damage in damages if damage.is_newer]
    diagnosis.store.unreadable = len(damages)
    diagnosis.problems += [f"A row cannot be read and is left out: {damage}" for damage in broken[:_NAMED]]
    if broken:
        more = f"{len(broken)} rows in all, the first {_NAMED} are listed" if len(broken) > _NAMED else "These rows"
        diagnosis.problems.append(f"{more}: restore a backup, or remove what is damaged with inference-core repair")
    if newer:
        diagnosis.problems.append(
            f"{len(newer)} memories were written by a newer version of this package and are left out; the first is "
            f"{newer[0]}. Update the package"
        )


def _find_large_users(diagnosis: Diagnosis, backend: Backend, typed: Sequence[Namespace], index_mb: int) -> None:
    """Names the users whose index alone is larger than the bound; builds the indexes of those that may be."""
    few = index_mb * _MEGABYTE // _INDEXED_BYTES
    counts: Counter[str] = Counter()
    for tally in backend.tally(typed) if (diagnosis.store.memories or 0) > few else ():
        counts[tally.namespace[0]] += tally.rows
    for root in [root for root, count in counts.items() if count > few]:
        own = [namespace for namespace in typed if namespace[0] == root]
        needed = needed_megabytes(index_size(backend, diagnosis.store.vectors_made_by or "", own))
        if needed > index_mb:
            diagnosis.hints.append(
                f"The search index of {user_of(root)!a} is larger than AGENT_MEMORY_INDEX_MB={index_mb}, the limit "
                "of all users together. A process keeps only one such index, and searches other users with so many "
                f"memories by words only. Set AGENT_MEMORY_INDEX_MB to at least {needed}"
            )


def _examine_embeddings(diagnosis: Diagnosis, settings: MemorySettings, backend: Backend | None) -> None:
    """Loads the embedding model. A provider's is not called; its package and key must be there."""
    made_by = diagnosis.store.vectors_made_by
    try:
        embedder = make_embedder(settings.embeddings_spec, made_by)
    except ConfigurationError as error:
        diagnosis.problems.append(str(error))
        return
    if embedder is None and settings.embeddings == "auto" and is_former(made_by):
        diagnosis.problems.append(
            f"The store's vectors were made by {made_by}, which this version no longer has. Until its texts are "
            f"embedded again, recall is by words only: inference-core reembed {diagnosis.store.url} --embeddings auto"
        )
        return
    if embedder is None:
        by_choice = settings.embeddings_spec is None
        advice = "AGENT_MEMORY_EMBEDDINGS turns it off" if by_choice else "pip install 'inference-core-memory[local]'"
        diagnosis.hints.append(f"No embedding model: recall is by words only. {advice}")
        return
    with closing(embedder):
        diagnosis.embedding_model = embedder.fingerprint
        embedder.warm()
        diagnosis.embeddings_ready = embedder.wait_ready(LOADING_S)
        if not diagnosis.embeddings_ready:
            failure = embedder.failure or "The embedding model did not load in time"
            diagnosis.problems.append(f"{failure}. Until then, recall is by words only")
    if ":" in settings.embeddings:
        _model(diagnosis, settings.embeddings)
    if backend is None:
        return
    if made_by not in (None, embedder.fingerprint):
        diagnosis.problems.append(
            f"The store's vectors were made by {made_by}, not by {embedder.fingerprint}. Name the first with "
            "AGENT_MEMORY_EMBEDDINGS, or embed all texts again: "
            f"inference-core reembed {diagnosis.store.url} --embeddings NAME"
        )
    waiting = len(backend.pending(made_by or embedder.fingerprint, _MANY + 1))
    diagnosis.store.vectors_pending, diagnosis.store.more_pending = min(waiting, _MANY), waiting > _MANY
    if waiting:
        diagnosis.hints.append(
            "Some memories are waiting for their vectors; the next process that opens the store adds them"
        )


def _model(diagnosis: Diagnosis, name: str) -> ModelReport:
    """What is known of a provider's model; what it lacks becomes a problem."""
    provider = name.partition(":")[0]
    if ":" not in name:
        diagnosis.problems.append(
            f"The model {name!r} does not name a provider; write provider:model such as openai:gpt-5-mini"
        )
        return ModelReport(name, installed=False, key="unknown")
    installed = find_spec(f"langchain_{provider.replace('-', '_')}") is not None
    if not installed:
        extra = f"'{_DISTRIBUTION}[{provider}]'" if provider in diagnosis.extras else f"langchain-{provider}"
        diagnosis.problems.append(f"The package for {name} is missing: pip install {extra}")
    if provider not in _KEYS:
        return ModelReport(name, installed, "unknown")
    variable = _KEYS[provider]
    if variable is None:
        return ModelReport(name, installed, "not needed")
    if os.environ.get(variable, "").strip():
        return ModelReport(name, installed, "present")
    diagnosis.problems.append(f"The key for {name} is missing: set {variable}")
    return ModelReport(name, installed, "missing")


@on_store("url", "embeddings", "json")
def doctor(target: Target) -> None:
    """Diagnose problems and suggest fixes.

    Checks the installation, settings, store and models, and changes nothing. Exits with 1 if it finds a problem.
    """
    with working("Checking …"):
        diagnosis = diagnose(target.url, target.embeddings)
    if target.json:
        print_json(diagnosis.to_json())
    else:
        _draw_pairs("bold", _findings(diagnosis))
        draw("")
        _draw_pairs("yellow", [("hint", text) for text in diagnosis.hints])
        _draw_pairs("bold red", [("problem", text) for text in diagnosis.problems])
        if not diagnosis.problems:
            _draw_pairs("green", [("No problems found.", "")])
    if diagnosis.problems:
        raise typer.Exit(1)


def _draw_pairs(style: str, rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style=style, min_width=_LABEL)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(one_line(value)))
    draw(grid)


def _findings(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "versions", ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items())
    yield "extras", ", ".join(name for name, there in diagnosis.extras.items() if there) or "none"
    if missing := [name for name, there in diagnosis.extras.items() if not there]:
        yield "", f"not installed: {', '.join(missing)}"
    store = diagnosis.store
    yield "store", f"{store.url} ({'opens' if store.opens else 'does not open' if store.exists else 'does not exist'})"
    if store.capabilities is not None:
        yield "", ", ".join(name.replace("_", " ") for name, has in store.capabilities.items() if has)
        yield "", f"memories: {store.memories}, users: {store.users}, schema version: {store.schema_version or 'none'}"
        is_configured = store.vectors_made_by == diagnosis.embedding_model
        maker = "the configured model" if is_configured else store.vectors_made_by or "no model yet"
        yield "", f"vectors by {maker}, {'more than ' * store.more_pending}{store.vectors_pending or 0} pending"
    ready = "ready" if diagnosis.embeddings_ready else "not ready"
    yield "embeddings", f"{diagnosis.embedding_model} ({ready})" if diagnosis.embedding_model else "none"
    yield "chat model", _shown(diagnosis.chat_model) if diagnosis.chat_model else "none"
    yield "fallbacks", "; ".join(map(_shown, diagnosis.fallbacks)) or "none"
    yield "extraction", "; ".join(map(_shown, diagnosis.extraction_models)) or "by rules"
    if diagnosis.media_model:
        yield "media", _shown(diagnosis.media_model)
    yield "time zone", diagnosis.time_zone
    changed = [f"{name}={value}" for name, value in diagnosis.changed_settings.items()] or ["all defaults"]
    yield from zip(["settings", *[""] * len(changed)], changed, strict=False)


def _shown(model: ModelReport) -> str:
    return f"{model.name} ({'installed' if model.installed else 'not installed'}, key {model.key})"
