"""Which secrets and which harmless texts are redacted, and how long that takes: 100 KB of hostile text, and a save."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from report import Row, publish

from inference_core import AgentMemoryStoreService, Guard, open_store
from inference_core.memory.redaction import Policy
from inference_core.memory.secrets import credentials_in
from inference_core.services.agent_memory_service import SyncMemoryService

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from secret_texts import benign, held_out, hostile, known

MIN_FOUND, MAX_FALSE, MAX_MS, MAX_SAVE = 0.95, 0.01, 60.0, 1.03
ROUNDS = 40
SAVES = 25
SAID = "Ada moved to Rome in 2019, works for Acme and prefers short answers in the morning, but not too early ({})"


def _shares() -> list[Row]:
    guard = Guard()
    samples, others, texts = known(), held_out(), benign()
    found = sum(one.secret not in guard.text(one.text) for one in samples)
    unknown = sum(one.secret not in guard.text(one.text) for one in others)
    false = sum(bool(guard.kinds(text)) for text in texts)
    return [
        (
            f"redacted of {len(samples)} secrets in formats written for",
            f"{found} ({found / len(samples):.1%})",
            f"≥ {MIN_FOUND:.0%}",
            found >= MIN_FOUND * len(samples),
        ),
        (
            f"redacted of {len(others)} secrets in forms not written for",
            f"{unknown} ({unknown / len(others):.1%})",
            "",
            None,
        ),
        (
            f"redacted of {len(texts)} harmless texts",
            f"{false} ({false / len(texts):.1%})",
            f"≤ {MAX_FALSE:.0%}",
            false <= MAX_FALSE * len(texts),
        ),
    ]


def _milliseconds(act: Callable[[], object], rounds: int = 7) -> float:
    def once() -> float:
        started = time.process_time()  # the processor's, as other work on the machine does not count
        act()
        return (time.process_time() - started) * 1_000

    return min(once() for _ in range(rounds))


def _times() -> list[Row]:
    rows: list[Row] = []
    for name, text in hostile():
        credentials_in(text)  # compiles what it needs
        took = _milliseconds(lambda text=text: credentials_in(text))
        rows.append((f"100 KB of {name}", f"{took:.1f} ms", f"≤ {MAX_MS:g} ms", took <= MAX_MS))
    prose = SAID.format("x")
    took = _milliseconds(lambda: [credentials_in(prose) for _ in range(1_000)])
    return [*rows, (f"{len(prose)} characters of prose", f"{took:.1f} µs", "", None)]


def _saves() -> list[Row]:
    """Saves with and without, in turns, so that the machine's load meets both alike."""
    took: dict[Policy, list[float]] = {"off": [], "redact": []}
    number = 0
    with TemporaryDirectory() as folder, ExitStack() as opened:
        services: dict[Policy, SyncMemoryService] = {
            name: AgentMemoryStoreService(
                opened.enter_context(open_store(f"sqlite:///{folder}/{name}.db", embeddings=None, secrets=name))
            ).sync
            for name in took
        }
        for at in range(ROUNDS):
            for name in (*services,) if at % 2 else (*services,)[::-1]:
                for _ in range(SAVES):
                    number += 1
                    started = time.perf_counter()
                    services[name].save_memory("ada", SAID.format(number), topic="home", tags=["rome"])
                    took[name].append((time.perf_counter() - started) * 1_000)
    off, redact = statistics.median(took["off"]), statistics.median(took["redact"])
    share = redact / off
    return [
        ("a save without redaction, median", f"{off:.3f} ms", "", None),
        ("a save with it", f"{redact:.3f} ms ({share:.3f} times as long)", f"≤ {MAX_SAVE} times", share <= MAX_SAVE),
    ]


if __name__ == "__main__":
    sys.exit(not publish("redaction", [*_shares(), *_times(), *_saves()]))
