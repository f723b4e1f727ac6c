"""Kill -9 during a copy and while texts are embedded anew: the next run goes on, nothing twice, nothing missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from processes import Forked
from support import HashingEmbeddings
from transfer_process import Other, copy, embed_anew

from inference_core.embeddings.factory import make_embedder
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import EMBEDDING_META, PageRequest, Put
from inference_core.stores.factory import open_backend
from inference_core.transfer.copying import copy_store, reembed

COUNT = 700
SCOPES = (("ada", "semantic"), ("bob", "episodic"))
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('source') / 'source.db'}"
    with closing(open_backend(url)) as backend:
        for scope in SCOPES:
            backend.apply([[put(scope, at) for at in range(COUNT)]])
    return url


def put(namespace: tuple[str, ...], at: int) -> Put:
    document = Document.of(f"tea {at}")
    return Put(namespace=namespace, key=f"k{at}", value=f'{{"n":{at}}}', document=document, updated_at=AT)


def killed(target: Callable[..., None], *arguments: Any, lines: int) -> None:
    """Kills a process after it has said so many lines."""
    process = Forked(target, *arguments)
    for _ in range(lines):
        process.said.readline()
    process.kill()
    process.end()


def test_a_copy_that_is_killed_is_finished_by_the_next(source: str, shared_url: str, full: bool) -> None:
    chance = random.Random(5)
    for _ in range(20 if full else 3):
        killed(copy, source, shared_url, lines=chance.randint(1, 6))
    with closing(open_backend(source)) as read, closing(open_backend(shared_url)) as written:
        report = copy_store(read, written)
        assert report.already_there > 0
        assert report.written + report.already_there == report.total == 2 * COUNT
        for scope in SCOPES:
            rows = {row.key: (row.value, row.version) for row in written.page(PageRequest([scope], limit=2 * COUNT))}
            assert rows == {f"k{at}": ({"n": at}, 1) for at in range(COUNT)}
        assert written.heads(SCOPES) == [COUNT] * 2


def test_texts_are_embedded_by_the_next_run_where_one_was_killed(tmp_path: Path, source: str, full: bool) -> None:
    chance = random.Random(6)
    for at in range(7 if full else 1):
        url = f"sqlite:///{tmp_path / f'memory{at}.db'}"
        with closing(open_backend(source)) as read, closing(open_backend(url)) as written:
            copy_store(read, written)
        assert reembed(url, HashingEmbeddings()) == 2 * COUNT
        for _ in range(3):
            killed(embed_anew, url, lines=chance.randint(1, 9))
        assert 0 < reembed(url, Other()) < 2 * COUNT
        check_embedded_once(url)


def check_embedded_once(url: str) -> None:
    """Every text was written, embedded by the first model, and then by `Other`."""
    embedder = make_embedder(Other())
    assert embedder is not None
    with closing(open_backend(url)) as backend:
        assert backend.pending(embedder.fingerprint, 1) == []
        assert backend.get_meta(EMBEDDING_META) == embedder.fingerprint
        models = {change.document and change.document.model for scope in SCOPES for change in backend.changes(scope, 0)}
        assert models == {embedder.fingerprint}
        assert backend.heads(SCOPES) == [3 * COUNT] * 2
