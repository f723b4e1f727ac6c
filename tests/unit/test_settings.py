"""MemorySettings: the environment, read when settings are made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from inference_core import settings
from inference_core.errors import ConfigurationError
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.services.operations.scope import MemoryPolicy
from inference_core.settings import AgentSettings, MemorySettings, load_env_file, read_settings
from inference_core.short_term.strategies import DEFAULT_MAX_TOKENS


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGENT_")]:
        monkeypatch.delenv(name)


def test_the_defaults_are_the_documented_ones():
    assert MemorySettings().model_dump() == {
        "enabled": True,
        "store_url": "sqlite:///memory.db",
        "encryption_key": None,
        "keys": None,
        "secrets": "redact",
        "pii": "off",
        "audit": "on",
        "audit_days": 365.0,
        "audit_key": None,
        "embeddings": "auto",
        "late_interaction": True,
        "writes_per_minute": None,
        "max_memories": None,
        "max_bytes": None,
        "log_format": "text",
        "index_mb": 512,
        "auto_recall": True,
        "max_results": 5,
        "categories": ("semantic", "episodic", "procedural"),
        "agent_scope_enabled": True,
        "confirm": (),
        "timezone": "UTC",
        "recall_timeout": 0.3,
        "cold_timeout": 2.0,
        "placement": "last_user",
        "form": None,
        "profile": True,
        "max_tokens": 2_000,
        "engineer": True,
        "receipts": True,
        "receipt_days": 30.0,
        "timeout": 10.0,
        "max_content_bytes": 8192,
        "capture": False,
        "model": (),
        "model_temperature": None,
        "model_tokens": None,
        "media_model": None,
        "min_relevance": 0.0,
        "batch_messages": 10,
        "batch_tokens": 4_000,
        "worker_interval": 30.0,
        "summaries": False,
        "session_quiet": 1_800.0,
        "insights": False,
        "insights_hours": 24.0,
        "ttl": None,
        "access_counts": True,
        "retention": None,
        "retention_basis": "created",
        "retention_hours": 24.0,
        "forget_hours": None,
        "forget_half_life": None,
        "forget_below": 0.1,
        "forget_max_memories": None,
        "forget_max_tokens": None,
        "deleted_days": 7.0,
        "forgotten_days": 90.0,
    }
    assert AgentSettings().model_dump() == {
        "model": None,
        "model_fallbacks": (),
        "checkpoint_url": "sqlite:///checkpoints.db",
        "short_term": (),
        "short_term_max_tokens": DEFAULT_MAX_TOKENS,
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("enabled", "false", False),
        ("store_url", "memory://", "memory://"),
        ("max_results", "50", 50),
        ("agent_scope_enabled", "0", False),
        ("timezone", "Asia/Kathmandu", "Asia/Kathmandu"),
        ("categories", "semantic", ("semantic",)),
        ("categories", " episodic , semantic,", ("episodic", "semantic")),
        ("categories", ",", ()),
        ("embeddings", "local", "local"),
        ("late_interaction", "no", False),
        ("log_format", "json", "json"),
        ("index_mb", "64", 64),
        ("auto_recall", "off", False),
        ("recall_timeout", "0.5", 0.5),
        ("cold_timeout", "1", 1.0),
        ("placement", "system", "system"),
        ("form", "xml", "xml"),
        ("profile", "off", False),
        ("engineer", "off", False),
        ("receipts", "off", False),
        ("receipt_days", "7", 7.0),
        ("timeout", "3", 3.0),
        ("max_content_bytes", "100", 100),
    ],
)
def test_a_setting_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any):
    monkeypatch.setenv(f"AGENT_MEMORY_{name.upper()}", text)
    assert getattr(MemorySettings(), name) == value


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_MAX_RESULTS", "7")
    assert MemorySettings(max_results=9).max_results == 9


def test_other_variables_are_ignored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_COLOUR", "blue")
    monkeypatch.setenv("MAX_RESULTS", "9")
    assert MemorySettings().max_results == 5


@pytest.mark.parametrize("categories", [list(MEMORY_CATEGORIES), tuple(MEMORY_CATEGORIES)])
def test_categories_may_be_a_list_or_a_tuple(categories: Any):
    assert MemorySettings(categories=categories).categories == tuple(MEMORY_CATEGORIES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_results", 0),
        ("max_results", 51),
        ("max_results", "many"),
        ("categories", "semantic,memories"),
        ("categories", ["Semantic"]),
        ("categories", 5),
        ("timezone", "Warsaw"),
        ("enabled", "maybe"),
        ("index_mb", 0),
        ("recall_timeout", 0),
        ("cold_timeout", 0),
        ("receipt_days", 1e7),
        ("session_quiet", float("inf")),
        ("insights_hours", float("inf")),
        ("timeout", -1),
        ("max_content_bytes", 0),
    ],
)
def test_a_bad_setting_is_refused_and_named(field: str, value: Any):
    with pytest.raises(ValidationError) as raised:
        MemorySettings(**{field: value})
    assert field in str(raised.value)


@pytest.mark.parametrize(
    ("text", "spec"),
    [("auto", "auto"), ("none", None), (" None ", None), ("", "auto"), ("openai:m@256", "openai:m@256")],
)
def test_no_embeddings_can_be_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, text: str, spec: str | None):
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", text)
    assert MemorySettings().embeddings_spec == spec


def test_the_settings_of_an_agent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MODEL", "openai:one")
    monkeypatch.setenv("AGENT_MODEL_FALLBACKS", " openai:two, ollama:three ,")
    monkeypatch.setenv("AGENT_CHECKPOINT_URL", "memory://")
    monkeypatch.setenv("AGENT_SHORT_TERM", "flush, summarize,")
    monkeypatch.setenv("AGENT_SHORT_TERM_MAX_TOKENS", "4096")
    settings = AgentSettings()
    assert (settings.short_term, settings.short_term_max_tokens) == (("flush", "summarize"), 4096)
    assert settings.model == "openai:one"
    assert settings.model_fallbacks == ("openai:two", "ollama:three")
    assert settings.checkpoint_url == "memory://"


def test_a_fault_is_one_line_that_names_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_MAX_RESULTS", "many")
    monkeypatch.setenv("AGENT_MEMORY_TIMEZONE", "Warsaw")
    with pytest.raises(ConfigurationError, match=r"AGENT_MEMORY_MAX_RESULTS: .*AGENT_MEMORY_TIMEZONE: ") as raised:
        read_settings(MemorySettings)
    assert "\n" not in str(raised.value)
    assert read_settings(MemorySettings, max_results=3, timezone="UTC").max_results == 3
    monkeypatch.setenv("AGENT_SHORT_TERM", "flush,forget")
    monkeypatch.setenv("AGENT_SHORT_TERM_MAX_TOKENS", "0")
    with pytest.raises(
        ConfigurationError, match=r"AGENT_SHORT_TERM: unknown: 'forget'; known: flush, .*AGENT_SHORT_TERM_MAX_TOKENS: "
    ):
        read_settings(AgentSettings)


def test_a_variable_that_is_like_a_setting_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Guards against a mistyped name, which was ignored in silence; names of other programs are nobody's mistake."""
    monkeypatch.setattr(settings, "_told", set[str]())
    others = ("COLLECTION", "POSTRUN_ANALYSIS_ENABLED", "POSTRUN_ANALYSIS_MODEL", "SIMILARITY_THRESHOLD", "COLOUR")
    for name in (*others, "UPSERT_BY_SIMILARITY", "CATEGORYS", "MODEL", "max_results"):
        monkeypatch.setenv(f"AGENT_MEMORY_{name}", "3")
    monkeypatch.setenv("AGENT_MODLE", "openai:gpt-5-mini")
    for _ in range(2):
        MemorySettings()
        AgentSettings()
    assert caplog.messages == [
        "AGENT_MEMORY_CATEGORYS is not a setting. Did you mean 'AGENT_MEMORY_CATEGORIES'?",
        "AGENT_MODLE is not a setting. Did you mean 'AGENT_MODEL'?",
    ]


def test_a_file_fills_in_what_the_environment_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("AGENT_MEMORY_MAX_RESULTS", "7")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    file = tmp_path / ".env"
    file.write_text("AGENT_MEMORY_MAX_RESULTS=9\nAGENT_MEMORY_TIMEZONE=Asia/Tokyo\n", encoding="utf-8")
    load_env_file(str(file))
    assert (os.environ["AGENT_MEMORY_MAX_RESULTS"], os.environ["AGENT_MEMORY_TIMEZONE"]) == ("7", "Asia/Tokyo")
    with pytest.raises(ConfigurationError, match="no file"):
        load_env_file(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    file.write_text("AGENT_MEMORY_AUTO_RECALL=false\n", encoding="utf-8")
    load_env_file()
    assert os.environ["AGENT_MEMORY_AUTO_RECALL"] == "false"
    file.unlink()
    load_env_file()  # there need not be one


def test_a_policy_is_checked() -> None:
    """The same option may come from settings, a service or a middleware: all of them make a policy."""
    with pytest.raises(ConfigurationError, match="min_relevance must be a number from 0 to 1, not 2"):
        MemoryPolicy.of(min_relevance=2)
