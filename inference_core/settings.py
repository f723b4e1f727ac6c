"""The settings. Only this module reads ``AGENT_*`` environment variables: when settings are made, never on import."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from inference_core.clock import time_zone
from inference_core.effects import COLD_TIMEOUT_S, RECALL_TIMEOUT_S
from inference_core.errors import ConfigurationError
from inference_core.memory.quota import Limit, Quota
from inference_core.memory.redaction import Guard
from inference_core.memory.text import MAX_CONTENT_BYTES, did_you_mean
from inference_core.memory.types import MEMORY_CATEGORIES, validate_memory_category

S = TypeVar("S", bound=BaseSettings)
STRATEGIES: Final = ("flush", "summarize", "trim", "delete")
"""What AGENT_SHORT_TERM may name."""
_SHORTEST_KEY: Final = 32
_YEAR_S: Final = 31_536_000.0
"""Longest interval that a thread is asked to wait: Python limits the timeout of a wait."""
_NO_EMBEDDINGS: Final = ("", "none", "off")
_LOG = logging.getLogger(__name__)
_told: Final = set[str]()
"""Variables about which this process has warned."""


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part for part in map(str.strip, value.split(",")) if part)


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
"""Names separated by commas."""


class _Settings(BaseSettings):
    """Base of the settings. Warns once about each variable that looks like a misspelt setting."""

    def model_post_init(self, context: Any, /) -> None:
        """Looks for misspelt variables in the environment."""
        super().model_post_init(context)
        prefix = self.model_config.get("env_prefix", "")
        known = [name.upper() for name in type(self).model_fields]
        for name in sorted(name for name in os.environ if name.upper().startswith(prefix) and name not in _told):
            own = name.upper().removeprefix(prefix)
            if own not in known and not own.startswith(("MEMORY_", "SERVER_")) and (asked := did_you_mean(own, known)):
                _told.add(name)
                _LOG.warning("%s is not a setting%s", name, asked.replace("'", f"'{prefix}", 1))


class MemorySettings(_Settings):
    """Settings of the memory, each from the environment variable ``AGENT_MEMORY_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="AGENT_MEMORY_", extra="ignore", env_ignore_empty=True)

    enabled: bool = Field(default=True, description="Enable long-term memory for agents.")
    store_url: str = Field(default="sqlite:///memory.db", description="Where memories are kept.")
    encryption_key: SecretStr | None = Field(
        default=None,
        description="With AGENT_MEMORY_KEYS, the master key of that key store; without it, the key of an encrypted "
        "file store: 32 random bytes in base64 or hexadecimal. Keep a copy elsewhere.",
    )
    keys: str | None = Field(
        default=None,
        description="The key store, for example sqlite:///keys.db or file:///keys.json. It holds a key for each user, "
        "and all memories are encrypted with these keys. Keep it out of the memories' backups. None: memories are not "
        "encrypted.",
    )
    embeddings: str = Field(
        default="auto",
        description="Embedding model: auto (the best local ones that are installed), local, local-large, "
        "local-multilingual, local-by-language, local-large-by-language, provider:model, or none for recall by words "
        "only.",
    )
    late_interaction: bool = Field(
        default=True, description="Keep and compare token vectors, if the model produces them."
    )
    secrets: Literal["redact", "reject", "off"] = Field(
        default="redact",
        description="What happens to credentials and card numbers before anything is stored: redact (each is replaced "
        "by its kind), reject (the save fails) or off.",
    )
    pii: Literal["redact", "reject", "off"] = Field(
        default="off",
        description="What happens to e-mail addresses, phone numbers, IBANs, IP addresses and US social security "
        "numbers before anything is stored: redact, reject or off.",
    )
    writes_per_minute: str | None = Field(
        default=None,
        description="Maximum saves and updates per minute, of a user and of each of the user's agents: 600,agent=200.",
    )
    max_memories: str | None = Field(
        default=None, description="Maximum memories of a user, and of each of the user's agents: 5000,agent=1000."
    )
    max_bytes: str | None = Field(
        default=None,
        description="Maximum bytes of a user's memories as stored, without vectors, and of each of the user's agents.",
    )
    audit: Literal["on", "off"] = Field(
        default="on", description="Record an event for each change of a memory: who, when and why, but never the text."
    )
    audit_days: float = Field(default=365.0, gt=0, le=36_500, description="Days after which an audit event is removed.")
    audit_key: SecretStr | None = Field(
        default=None, description="Key of the audit trail, at least 16 characters. By default, the store keeps one."
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="How the command line logs: text, or json (one document per line, with the trace and without the "
        "texts of errors).",
    )
    index_mb: int = Field(default=512, ge=1, description="Megabytes for the search indexes of all users together.")
    auto_recall: bool = Field(default=True, description="Recall memories before each run and put them into the prompt.")
    max_results: int = Field(default=5, ge=1, le=50, description="Maximum memories of each category in a prompt.")
    min_relevance: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Minimum relevance of memories that answer a question, in recalls and prompts. Pinned memories and "
        "the profile do not count.",
    )
    categories: Annotated[tuple[str, ...], NoDecode] = Field(
        default=tuple(MEMORY_CATEGORIES), description="Categories of memories in a prompt, separated by commas."
    )
    agent_scope_enabled: bool = Field(
        default=True, description="Give each named agent its own episodic and procedural memory."
    )
    confirm: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Categories, separated by commas, in which what agents save waits for the user's confirmation. "
        "Rules and preferences that a tool, a document or the web may have dictated always wait.",
    )
    timezone: str = Field(default="UTC", description="The users' time zone, as an IANA name.")
    recall_timeout: float = Field(
        default=RECALL_TIMEOUT_S,
        gt=0,
        description="Maximum seconds that a recall may take before a reply, once the process is warm; waiting for its "
        "turn in a burst does not count.",
    )
    cold_timeout: float = Field(
        default=COLD_TIMEOUT_S,
        gt=0,
        description="Maximum seconds that the first reply of a process waits for its memories, while the embedding "
        "model is loaded and the user's index is built.",
    )
    placement: Literal["last_user", "system"] = Field(
        default="last_user",
        description="Where recalled memories go: last_user (after the user's last message, so that prompt caches "
        "keep what is before it) or system (at the end of the system prompt).",
    )
    form: Literal["xml", "compact", "markdown", "json"] | None = Field(
        default=None,
        description="How memories are written in the prompt. By default, compact (fewest tokens) after the user's "
        "message, and xml (the sections of the CoALA document) with AGENT_MEMORY_PLACEMENT=system.",
    )
    profile: bool = Field(
        default=True,
        description="Show preferences, instructions and pinned memories in the same words throughout a thread.",
    )
    max_tokens: int = Field(
        default=2_000, ge=1, description="Maximum tokens of all memories in a prompt, including the profile."
    )
    engineer: bool = Field(
        default=True,
        description="Show only the recalled memories that may answer the question, without repetitions and "
        "contradictions.",
    )
    receipts: bool = Field(
        default=True, description="Record which memories each model call saw, and why, but not their text."
    )
    receipt_days: float = Field(default=30.0, gt=0, le=36_500, description="Days for which prompt receipts are kept.")
    timeout: float = Field(
        default=10.0, gt=0, description="Maximum seconds of an operation other than a reply's recall."
    )
    max_content_bytes: int = Field(
        default=MAX_CONTENT_BYTES, ge=1, description="Maximum content of a memory, in bytes of UTF-8."
    )
    capture: bool = Field(default=False, description="Extract memories from conversations, in the background.")
    model: Names = Field(
        default=(),
        description="Chat models that extract memories, as provider:model, separated by commas; each is "
        "tried if the one before it fails. None: rules for plain statements in English and German.",
    )
    model_temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        description="Temperature of AGENT_MEMORY_MODEL. None: its own. Reasoning models may reject it.",
    )
    model_tokens: int | None = Field(
        default=None, ge=1, description="Maximum tokens of an answer by AGENT_MEMORY_MODEL. None: its own limit."
    )
    media_model: str | None = Field(
        default=None,
        description="Chat model, as provider:model, with which the worker puts pictures and recordings in messages "
        "into words. None: they are left out.",
    )
    batch_messages: int = Field(default=10, ge=1, le=100, description="Maximum messages in an extraction batch.")
    batch_tokens: int = Field(default=4_000, ge=1, description="Maximum tokens in an extraction batch.")
    worker_interval: float = Field(
        default=30.0, gt=0, le=_YEAR_S, description="Seconds between the worker's checks of the outbox."
    )
    summaries: bool = Field(
        default=False, description="Summarize each captured session, with the models, or else from its own sentences."
    )
    session_quiet: float = Field(
        default=1_800.0, gt=0, le=_YEAR_S, description="Seconds without a message after which a session is summarized."
    )
    insights: bool = Field(
        default=False, description="Have the models derive higher-level memories from several related ones."
    )
    insights_hours: float = Field(
        default=24.0, gt=0, le=8_760, description="Hours between two updates of a user's higher-level memories."
    )
    ttl: str | None = Field(
        default=None,
        description="Minutes after which a memory that nobody reads or writes is permanently removed. A category can "
        "have its own: 1440,episodic=60,semantic=none. None: never.",
    )
    access_counts: bool = Field(default=True, description="Count how often each memory is recalled, in the background.")
    forget_hours: float | None = Field(
        default=None,
        gt=0,
        description="Hours between the worker's runs that forget by the AGENT_MEMORY_FORGET limits. None: never.",
    )
    forget_half_life: float | None = Field(
        default=None,
        gt=0,
        description="Days after which an unused memory has lost half its strength. None: memories do not fade.",
    )
    forget_below: float = Field(
        default=0.1, ge=0, le=1, description="Strength, from 0 to 1, below which a memory is forgotten."
    )
    forget_max_memories: str | None = Field(
        default=None,
        description="Maximum memories of a user, and of single types: 5000,context=200. The weakest are forgotten.",
    )
    forget_max_tokens: str | None = Field(
        default=None, description="Maximum tokens of a user's memories. The weakest are forgotten."
    )
    deleted_days: float = Field(
        default=7.0,
        ge=0,
        le=36_500,
        description="Days for which deleted memories can be restored and replaced texts read. 0: neither is kept.",
    )
    forgotten_days: float = Field(
        default=90.0, ge=0, description="Days for which forgotten memories can be restored; then they are erased."
    )
    retention: str | None = Field(
        default=None,
        description="Days after which the worker permanently removes rows, by memory type, category, all, archive, "
        "versions, receipts or conversations, as in interaction=365,archive=30. None: nothing.",
    )
    retention_basis: Literal["created", "last_used", "valid_to"] = Field(
        default="created", description="What a memory's age is measured from: created, last_used or valid_to."
    )
    retention_hours: float = Field(default=24.0, gt=0, description="Hours between the worker's retention runs.")

    @property
    def embeddings_spec(self) -> str | None:
        """What `open_store` takes as ``embeddings``."""
        return None if self.embeddings.strip().lower() in _NO_EMBEDDINGS else self.embeddings

    @property
    def encryption(self) -> dict[str, Any]:
        """What `open_store` takes as ``encryption_key`` and ``keys``."""
        key = self.encryption_key.get_secret_value() or None if self.encryption_key else None
        return {"encryption_key": key, "keys": self.keys or None}

    @property
    def audit_key_bytes(self) -> bytes | None:
        """What `open_store` takes as ``audit_key``."""
        return self.audit_key.get_secret_value().encode() or None if self.audit_key else None

    @property
    def guard(self) -> Guard:
        """What `open_store` takes as ``secrets``."""
        return Guard(self.secrets, self.pii)

    @property
    def quota(self) -> Quota:
        """What `open_store` takes as ``quota``."""
        return Quota(self.max_memories, self.max_bytes, self.writes_per_minute)

    @field_validator("max_memories", "max_bytes", "writes_per_minute", mode="before")
    @classmethod
    def _limit(cls, value: object) -> object:
        Limit.of(str(value) if isinstance(value, int) else value if isinstance(value, str) else None)
        return str(value) if isinstance(value, int) else value

    @field_validator("categories", "confirm", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        names = _listed(value)
        if isinstance(names, list | tuple):
            return tuple(validate_memory_category(str(name)) for name in names if str(name).strip())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - names of any type
        return names

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        time_zone(value)
        return value


def policy_of(settings: MemorySettings) -> dict[str, Any]:
    """The `PolicyOptions` of a service, middleware or tools."""
    return {
        "agent_scope_enabled": settings.agent_scope_enabled,
        "embeddings": settings.embeddings_spec,
        "secrets": settings.guard,
        "quota": settings.quota,
        "audit": settings.audit == "on",
        "timezone": settings.timezone,
        "max_content_bytes": settings.max_content_bytes,
        "counts_access": settings.access_counts,
        "deleted_days": settings.deleted_days,
        "confirm": settings.confirm,
        "min_relevance": settings.min_relevance,
        "media_model": settings.media_model,
    }


class AgentSettings(_Settings):
    """Settings of `AgentService` and the command line's chat, each from the environment variable ``AGENT_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="AGENT_", extra="ignore", env_ignore_empty=True)

    model: str | None = Field(default=None, description="Chat model, as provider:model, for example openai:gpt-5-mini.")
    model_fallbacks: Names = Field(
        default=(), description="Chat models to ask in this order when the first fails, separated by commas."
    )
    checkpoint_url: str = Field(
        default="sqlite:///checkpoints.db", description="Where conversations are kept between runs."
    )
    short_term: Names = Field(
        default=(),
        description="What happens to older messages when a conversation exceeds its limit, in order, separated by "
        f"commas: {', '.join(STRATEGIES)}. Empty: nothing.",
    )
    short_term_max_tokens: int = Field(
        default=100_000,
        ge=1,
        description="Maximum tokens of a request to the chat model, including prompt and tools; see AGENT_SHORT_TERM.",
    )

    @field_validator("short_term")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in STRATEGIES]
        if unknown:
            raise ValueError(f"unknown: {', '.join(map(repr, unknown))}; known: {', '.join(STRATEGIES)}")
        return value


class ServerSettings(_Settings):
    """Settings of ``inference-core serve``, each from the environment variable ``AGENT_SERVER_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="AGENT_SERVER_", extra="ignore", env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", description="The address to listen on; any but loopback needs a key.")
    port: int = Field(default=8765, ge=0, le=65_535, description="The port to listen on.")
    root_path: str = Field(
        default="",
        pattern=r"^(/[^/?#\s]+)*$",
        description="The prefix, such as /memory, that a proxy strips from the paths before it forwards requests.",
    )
    user: str | None = Field(
        default=None,
        description="The user of AGENT_SERVER_KEY. Without that key, on loopback, requests without a key act as this "
        "user.",
    )
    key: SecretStr | None = Field(
        default=None,
        description="A fixed key for AGENT_SERVER_USER, of at least 32 characters, instead of stored keys.",
    )
    hosts: Names = Field(
        default=(),
        description="Host names of the server, separated by commas; requests for others are refused. "
        "None: localhost on loopback, else any.",
    )
    origins: Names = Field(
        default=(), description="Other sites whose pages may send requests, such as https://app.example.com."
    )
    issuer: str | None = Field(
        default=None, description="The address of your identity provider (OpenID), whose tokens are accepted as keys."
    )
    audience: str | None = Field(
        default=None, description="The audience that the issuer's tokens must name; required with an issuer."
    )
    subject: str = Field(default="sub", description="The claim of the issuer's tokens that holds the user's ID.")
    jwks_url: str | None = Field(
        default=None, description="Where the issuer's keys are. None: as its OpenID configuration says."
    )
    airi: bool = Field(default=False, description="Also answer on the routes of AIRI's memory service, under /api.")
    ledger: Path | None = Field(
        default=None, description="The ledger of erasures. None: beside the store's files, else in the current folder."
    )
    rate: float = Field(default=50.0, gt=0, description="Maximum requests per second of one user with one key.")
    burst: int = Field(default=100, ge=1, description="Requests allowed in a burst above that rate.")

    @field_validator("key")
    @classmethod
    def _long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None  # an empty variable is no key
        if len(value.get_secret_value()) < _SHORTEST_KEY:
            raise ValueError(f"must have at least {_SHORTEST_KEY} characters")
        return value


def read_settings(kind: type[S], **given: Any) -> S:
    """Settings of ``kind`` from the environment; values that are ``given`` take precedence.

    Raises ConfigurationError, which names each variable at fault.
    """
    try:
        return kind(**given)
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        faults = "; ".join(
            f"{prefix}{'.'.join(map(str, one['loc'])).upper()}: {one['msg'].removeprefix('Value error, ')}"
            for one in error.errors()
        )
        raise ConfigurationError(faults) from error


def load_env_file(path: str | Path | None = None) -> None:
    """Sets environment variables from a ``.env`` file; variables that are already set do not change.

    ``path`` None: ``.env`` in the working directory, if any. Raises ConfigurationError if ``path`` is not a file.
    """
    from dotenv import load_dotenv  # noqa: PLC0415 - only for those who ask for it

    if path is not None and not Path(path).is_file():
        raise ConfigurationError(f"There is no file {path}")
    load_dotenv(path or Path(".env"))
