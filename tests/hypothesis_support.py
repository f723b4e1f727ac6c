"""How many examples a property is checked with."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHORT_RUN, FULL_SIZE = 30, 100
"""The examples of a test that says nothing of them, by the size of the run."""


def choose_size(*, full: bool) -> None:
    """Sets the size of the run, before any module of tests is imported. No example has a deadline."""
    settings.register_profile("this run", deadline=None, max_examples=FULL_SIZE if full else SHORT_RUN)
    settings.load_profile("this run")


def examples(number: int, **options: Any) -> settings:
    """Settings for ``number`` examples at full size, and for as large a part of them in the short run as of others."""
    return settings(max_examples=number * settings().max_examples // FULL_SIZE, **options)
