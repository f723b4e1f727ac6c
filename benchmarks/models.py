"""What the local models cost: a question, a text among many, loading, and the memory of a process with both.

Each model runs in a process of its own, on one processor, the larger English one only where it is installed. All times
are the processor's, so other load on the machine does not count. The multilingual model is measured with ten languages
and, for the ratio, with MiniLM's English. The last process holds the whole package and the two smaller models, after
many texts of each.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Final

from command import Options, Result, bar, plain, run
from report import Row
from timing import quantile, resident_bytes, scratch

N: Final = 300
ASKED: Final = 60
WARM_UP: Final = 5
BATCH: Final = 32
QUERY_BAR_MS: Final = 60
LARGE_QUERY_BAR_MS: Final = 35
MEMORY_BAR_MB: Final = 350
ENGLISH: Final = (
    "The user lives in York with her partner and two cats.",
    "He prefers short answers without polite phrases.",
    "The meeting with the client was moved to Tuesday, 14 May, at ten o'clock.",
    "The password of the router lies in the kitchen drawer.",
    "She is allergic to nuts and has not eaten meat since last winter.",
    "The project uses PostgreSQL now instead of MySQL.",
    "What is the first name of Camilla's sister?",
    "Remind me to buy train tickets for the trip to Marseille.",
    "Where did we go camping last summer?",
    "The team uses Python 3.12 and runs the tests on every commit.",
)
FOREIGN: Final = Path(__file__).parents[1] / "scripts" / "projection_texts.json"
_MB: Final = 1024 * 1024


def english(count: int) -> Result:
    """MiniLM's times: of loading in seconds and of a question and of a text in milliseconds."""
    from inference_core.embeddings.local import LocalEmbeddings  # noqa: PLC0415 - imports count to loading

    model = LocalEmbeddings()
    return {"minilm_load_s": _loaded(model), **_times("minilm", model, ENGLISH, count)}


def larger(count: int) -> Result:
    """The same of all-mpnet-base-v2, and its process's memory in MB; nothing where it is not installed."""
    from inference_core.embeddings.large import LargeEmbeddings  # noqa: PLC0415 - as above
    from inference_core.errors import MissingExtra  # noqa: PLC0415 - as above

    try:
        model = LargeEmbeddings()
    except MissingExtra:
        return {}
    found = {"mpnet_load_s": _loaded(model), **_times("mpnet", model, ENGLISH, count)}
    gc.collect()
    return {**found, "mpnet_mb": resident_bytes() / _MB}


def multilingual(count: int) -> Result:
    """The same of multilingual-e5-small, with a load that converts its weights before, and with English texts after."""
    from inference_core.embeddings.multilingual import MultilingualEmbeddings  # noqa: PLC0415 - as above

    with scratch() as folder:
        os.environ["XDG_CACHE_HOME"] = str(folder)
        first = _loaded(MultilingualEmbeddings())
        model = MultilingualEmbeddings()
        return {
            "e5_first_load_s": first,
            "e5_load_s": _loaded(model),
            **_times("e5", model, foreign(), count),
            **_times("e5_english", model, ENGLISH, count),
        }


def together(count: int) -> Result:
    """The memory of a process, in MB: with the package, with MiniLM, with both, after a question and many texts."""
    from inference_core import MemoryMiddleware, open_store  # noqa: PLC0415 - what they take is measured
    from inference_core.embeddings.local import LocalEmbeddings  # noqa: PLC0415 - as above
    from inference_core.embeddings.multilingual import MultilingualEmbeddings  # noqa: PLC0415 - as above

    used: list[Any] = [open_store("memory://", embeddings=None), MemoryMiddleware]
    found: Result = {"package_mb": resident_bytes() / _MB}
    for name, kind, texts in (("minilm", LocalEmbeddings, ENGLISH), ("both", MultilingualEmbeddings, foreign())):
        model = kind()
        model.embed_query(texts[0])
        found[f"{name}_loaded_mb"] = resident_bytes() / _MB
        _embed(model, list(islice(cycle(texts), count)))
        gc.collect()
        found[f"{name}_mb"] = resident_bytes() / _MB
        used.append(model)
    return {**found, "highest_mb": resident_bytes("VmHWM") / _MB}


def foreign() -> list[str]:
    """Sentences in ten languages."""
    return list(chain.from_iterable(json.loads(FOREIGN.read_text(encoding="utf-8")).values()))


def _times(name: str, model: Any, texts: Sequence[str], count: int) -> Result:
    asked = [_processor_ms(model.embed_query, text) for text in islice(cycle(texts), ASKED + WARM_UP)][WARM_UP:]
    took = _processor_ms(lambda many: _embed(model, many), list(islice(cycle(texts), count)))
    return {
        f"{name}_query_ms": quantile(asked),
        f"{name}_query_p95_ms": quantile(asked, 0.95),
        f"{name}_text_ms": took / count,
    }


def _loaded(model: Any) -> float:
    return _processor_ms(lambda _: model.load(), None) / 1000


def _embed(model: Any, texts: list[str]) -> None:
    for start in range(0, len(texts), BATCH):
        model.embed_documents(texts[start : start + BATCH])


def _processor_ms(call: Callable[[Any], object], argument: Any) -> float:
    started = time.process_time()
    call(argument)
    return (time.process_time() - started) * 1000


def measured(options: Options) -> Result:
    """What each process says, one after the other."""
    found: Result = {"n": options.n}
    for call in (english, larger, multilingual, together):
        with multiprocessing.get_context("spawn").Pool(1, _on_one_processor) as pool:
            found |= pool.apply(call, (options.n,))
    for what in ("query", "text"):
        found[f"{what}_ratio"] = found[f"e5_english_{what}_ms"] / found[f"minilm_{what}_ms"]
    return found


def _on_one_processor() -> None:
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def table(result: Result) -> list[Row]:
    """The report's rows."""
    of_larger: list[Row] = []
    if "mpnet_mb" in result:
        of_larger = [
            bar("all-mpnet-base-v2, English: a question, median", result["mpnet_query_ms"], LARGE_QUERY_BAR_MS),
            plain("95th percentile", result["mpnet_query_p95_ms"]),
            plain(f"a text, in batches of {BATCH}", result["mpnet_text_ms"]),
            plain("loading", result["mpnet_load_s"], "s"),
            plain(f"a process with it, after {result['n']} texts", result["mpnet_mb"], "MB"),
        ]
    return [
        plain("MiniLM, English: a question, median", result["minilm_query_ms"]),
        plain(f"a text, in batches of {BATCH}", result["minilm_text_ms"]),
        plain("loading", result["minilm_load_s"], "s"),
        *of_larger,
        bar("multilingual-e5-small, ten languages: a question, median", result["e5_query_ms"], QUERY_BAR_MS),
        plain("95th percentile", result["e5_query_p95_ms"]),
        plain(f"a text, in batches of {BATCH}", result["e5_text_ms"]),
        plain("loading", result["e5_load_s"], "s"),
        plain("loading for the first time", result["e5_first_load_s"], "s"),
        plain("a question in English, compared with MiniLM", result["query_ratio"], "times"),
        plain("a text in English, compared with MiniLM", result["text_ratio"], "times"),
        plain("a process with the package and an open store", result["package_mb"], "MB"),
        plain(f"with MiniLM, after {result['n']} texts", result["minilm_mb"], "MB"),
        bar(f"with both models, after {result['n']} texts of each", result["both_mb"], MEMORY_BAR_MB, "MB"),
        plain("its highest, while a model is loaded", result["highest_mb"], "MB"),
    ]


if __name__ == "__main__":
    sys.exit(run("models", measured, table, __doc__, N))
