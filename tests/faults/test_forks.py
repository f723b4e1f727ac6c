"""Processes that are forked after a store was opened, as by multiprocessing, Celery or `gunicorn --preload`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from processes import Forked

from inference_core import open_store
from inference_core.errors import StoreUnavailable

NS = ("ada", "notes")


def write_in_a_fork(url: str) -> None:
    with open_store(url, embeddings=None) as store:
        store.put(NS, "a", {"n": 1})
        asyncio.run(store.aget(NS, "a"))
        if os.fork() == 0:
            signal.alarm(20)
            for call in (lambda: store.put(NS, "b", {"n": 2}), lambda: asyncio.run(store.aget(NS, "a"))):
                try:
                    call()
                except StoreUnavailable as error:
                    print(error, flush=True)
            os._exit(0)
        os.wait()
        store.put(NS, "c", {"n": 3})
        print([item.key for item in store.search(NS)], flush=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/memory.db", "file:///{}/memories"])
def test_regression_a_store_that_was_opened_before_a_fork_refuses(url: str, tmp_path: Path) -> None:
    """The fork has no thread that writes or reads, so the calls waited for ever."""
    code, lines = Forked(write_in_a_fork, url.format(tmp_path)).end()
    assert code == 0
    assert [line.partition(";")[0] for line in lines] == [
        *["The store was opened before this process was forked"] * 2,
        "['c', 'a']",
    ]
