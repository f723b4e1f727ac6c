"""Turns the tracing of coverage on and off: it doubles the time of what is traced."""

from __future__ import annotations

import os
from typing import Any

import pytest
from coverage import Coverage

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
"""The name of this process among those that pytest-xdist has started; None: it is no such process."""


def trace(config: pytest.Config, on: bool) -> None:
    """Turns the tracing on or off, where coverage is measured."""
    plugin: Any = config.pluginmanager.getplugin("_cov")
    controller = plugin and plugin.cov_controller
    if not controller or on == controller.started:
        return
    if on:
        controller.resume()
    else:
        controller.pause()
        stop_tracing()


def stop_tracing() -> None:
    """Ends what pytest-cov has begun beside the measuring of this process: nobody reads its data."""
    while other := Coverage.current():
        other.stop()


if WORKER:
    stop_tracing()
