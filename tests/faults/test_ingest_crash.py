"""Kill -9 while conversations are ingested: the next run goes on; nothing twice, nothing missing."""

from __future__ import annotations

import random
import time
from pathlib import Path

from processes import Forked

from inference_core import AgentMemoryStoreService, open_store
from inference_core.ingestion.formats.transcripts import read_messages
from inference_core.ingestion.verbatim import IngestReport, ingest
from inference_core.outbox.messages import MARKS

MESSAGES = 1_500


def ingest_and_tell(url: str, path: Path) -> None:
    with open_store(url, embeddings=None) as store:
        for report in ingest(AgentMemoryStoreService(store).scope, "ada", read_messages(path)):
            print(report.written, flush=True)


def killed(url: str, path: Path, seconds: float) -> int:
    """Starts an ingestion and kills it ``seconds`` after its first new memories; how many it said it had written."""
    process = Forked(ingest_and_tell, url, path)
    while (said := int(process.said.readline())) == 0:
        pass
    time.sleep(seconds)
    process.kill()
    return max([said, *map(int, process.end()[1])])


def test_after_kill_9_the_next_run_writes_the_rest(tmp_path: Path, full: bool):
    url = f"sqlite:///{tmp_path}/memory.db"
    path = tmp_path / "chat.jsonl"
    texts = [f"message {number} {'long ' * (number % 7)}".strip() for number in range(MESSAGES)]
    path.write_text("".join(f'{{"role": "user", "content": "{text}"}}\n' for text in texts), encoding="utf-8")
    chance = random.Random(5)
    said = sum(killed(url, path, chance.uniform(0, 0.02)) for _ in range(30 if full else 2))
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        before = service.sync.count_memories("ada")["total"]
        report = IngestReport()
        for report in ingest(service.scope, "ada", read_messages(path)):  # noqa: B007
            pass
        documents, total = service.sync.list_memories("ada", limit=None)
        marks = store.engine.backend.count([("ada", MARKS)])
    assert 0 < said <= before < MESSAGES
    assert (report.already_there, report.written) == (before, MESSAGES - before)
    assert [document.content for document in reversed(documents)] == texts
    assert (total, marks) == (MESSAGES, MESSAGES)
