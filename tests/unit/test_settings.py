"""MemorySettings: the environment, read when settings are made."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pydantic import ValidationError

from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.settings import MemorySettings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGENT_MEMORY_")]:
        monkeypatch.delenv(name)


def test_the_defaults_are_the_documented_ones():
    assert MemorySettings().model_dump() == {
        "enabled": True,
        "store_url": "sqlite:///memory.db",
        "max_results": 5,
        "categories": ("semantic", "episodic", "procedural"),
        "agent_scope_enabled": True,
        "timezone": "UTC",
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
        ("categories", "", ()),
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
    ],
)
def test_a_bad_setting_is_refused_and_named(field: str, value: Any):
    with pytest.raises(ValidationError) as raised:
        MemorySettings(**{field: value})
    assert field in str(raised.value)
