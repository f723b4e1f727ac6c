"""What remains of long conversations: ours, and LangChain's SummarizationMiddleware, with the same summarizer.

Every message of synthetic conversations of 200 to 1,000 messages holds facts, which are unique sentences, each with a
fixed question in other words. A fact is recallable at the end if its sentence is in what the model is shown then, or in
the ten memories recalled for its question. With ``--data DIR`` the conversations are those of LoCoMo files, and their
turns are the facts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import overflow_picture
import overflow_time
from command import Result, plain
from fact_kinds import Fact
from histories import SIZES, History, locomo, synthetic
from langchain.agents.middleware import SummarizationMiddleware
from replay import Replay, Summarizer, plain_text
from report import Row, publish
from timing import scratch, watched

from inference_core import MemoryStore, ShortTermMemoryMiddleware, open_store
from inference_core.effects import run
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.short_term import strategies
from inference_core.short_term.blocks.vector import VectorMemory
from inference_core.short_term.strategies import FlushToLongTerm, OverflowStrategy, Summarize, Trim
from inference_core.short_term.window import count_tokens

LIMIT: Final = 8_000
KEPT: Final = LIMIT // 4
"""What a flush keeps of the limit, for those who can be told what to keep."""
RECALLED: Final = 10
DEEP: Final = 1_000
TURN_S: Final = 10
"""How long a turn is taken to last where that matters: when the summarizer fails, ours lets it rest for a while."""
EVERY_TENTH: Final = "every tenth call"
OUTAGE: Final = "for a tenth of the turns"
_ANY_SIZE: Final = 1_000_000
_SUMS: Final = (
    "messages",
    "facts",
    "recallable",
    "window",
    "recall",
    "default_recall",
    "unread",
    "summaries",
    "summarizer_tokens",
    "invalid",
)


class System(NamedTuple):
    """What is measured; ``is_flushing``: messages go to long-term memory, so that they can be recalled."""

    name: str
    middleware: Callable[[Summarizer], Any]
    is_flushing: bool = False


def _theirs(**options: Any) -> Callable[[Summarizer], Any]:
    return lambda summarizer: SummarizationMiddleware(summarizer.model, trigger=("tokens", LIMIT), **options)


def _ours(made: Callable[[Summarizer], list[OverflowStrategy]]) -> Callable[[Summarizer], Any]:
    return lambda summarizer: ShortTermMemoryMiddleware(made(summarizer), max_tokens=LIMIT)


SYSTEMS: Final = (
    System("LangChain, default keep (20 messages)", _theirs()),
    System("LangChain, keep a quarter", _theirs(keep=("tokens", KEPT))),
    System("LangChain, keep a quarter, summarize all", _theirs(keep=("tokens", KEPT), trim_tokens_to_summarize=None)),
    System("ours: Trim to a quarter", _ours(lambda _: [Trim(KEPT)])),
    System("ours: Summarize", _ours(lambda summarizer: [Summarize(summarizer.model)])),
    System("ours: FlushToLongTerm", _ours(lambda _: [FlushToLongTerm()]), is_flushing=True),
    System(
        "ours: FlushToLongTerm + Summarize",
        _ours(lambda summarizer: [FlushToLongTerm(), Summarize(summarizer.model)]),
        is_flushing=True,
    ),
)
_FAILING: Final = (SYSTEMS[0], SYSTEMS[4], SYSTEMS[6])


def replayed(
    system: System,
    history: History,
    summarizer: Summarizer,
    store: MemoryStore,
    before: Callable[[int], None] = lambda _: None,
) -> tuple[Replay, Result]:
    """``history`` with ``system``, and what holds of it whatever is recalled."""
    replay = Replay(history, [system.middleware(summarizer)], store)
    replay.run(before)
    return replay, {
        "summaries": summarizer.calls - summarizer.failed,
        "failed_calls": summarizer.failed,
        "summarizer_tokens": summarizer.tokens,
        "window_tokens": count_tokens(replay.shown),
        "largest_window_tokens": replay.largest,
        "invalid": replay.invalid,
        "aborted": replay.aborted,
    }


def asked(system: System, history: History, store: MemoryStore) -> Result:
    """Where each fact of ``history`` is after it happened with ``system``."""
    summarizer = Summarizer()
    replay, result = replayed(system, history, summarizer, store)
    shown = plain_text([message.text for message in replay.shown])
    recall = Recall(store, history.name) if system.is_flushing else None
    seen = plain_text([shown, *summarizer.read, stored_text(store, history.name)])
    counts: Counter[str] = Counter()
    misses: list[Result] = []
    for fact, role in watched(history.facts, f"{system.name}: asking for the facts of {history.name}"):
        sentence = plain_text([fact.sentence])
        in_window = sentence in shown
        ranks = recall.ranks(fact) if recall else {}
        counts.update({"facts": 1, "window": in_window} | dict.fromkeys(ranks, 1))
        counts.update({"recallable": in_window or "recall" in ranks, "unread": sentence not in seen})
        if recall and not in_window and "recall" not in ranks:
            misses.append({"kind": fact.kind, "role": role} | recall.why(fact))
    roles = Counter(role for _, role in history.facts)
    known = {"history": history.name, "messages": history.size, "facts_by_role": roles}
    return {**known, **counts, **result, "misses": misses}


class Recall:
    """Asks the passages of a user: the ten best of any size, and as many as the block gives by default."""

    def __init__(self, store: MemoryStore, user: str) -> None:
        overflow_time.embed(store)
        self._session = user
        self._blocks = {
            "recall": VectorMemory(store, user_id=user, max_results=RECALLED, max_tokens=_ANY_SIZE),
            "default_recall": VectorMemory(store, user_id=user),
        }
        self._deep = VectorMemory(store, user_id=user, max_results=DEEP, max_tokens=_ANY_SIZE)
        self._stored = stored_text(store, user)

    def ranks(self, fact: Fact) -> dict[str, int]:
        """Under the name of each block that recalls it, the position of ``fact`` for its question."""
        found = {name: self._rank(block, fact) for name, block in self._blocks.items()}
        return {name: rank for name, rank in found.items() if rank}

    def why(self, fact: Fact) -> Result:
        """Why ``fact`` is not recalled: whether it is stored, and at which position of a thousand; 0: at none."""
        return {"is_stored": plain_text([fact.sentence]) in self._stored, "rank": self._rank(self._deep, fact)}

    def _rank(self, block: VectorMemory, fact: Fact) -> int:
        wanted = plain_text([fact.sentence])
        found = block.get(self._session, fact.question)
        return next((at for at, one in enumerate(found, 1) if wanted in plain_text([one.content])), 0)


def stored_text(store: MemoryStore, user: str) -> str:
    """All that is in long-term memory of ``user``."""
    namespaces = MemoryNamespaceBuilder().read_scopes(user)
    return plain_text([row.value["content"] for row in run(store.engine.page(namespaces, limit=_ANY_SIZE))])


def failed(system: System, history: History, store: MemoryStore, scenario: str) -> Result:
    """``history`` with a summarizer that fails at times, and how many facts nobody has taken care of.

    A fact is lost if it was said and is neither in the state nor in long-term memory, and no summarizer that answered
    has read it. LangChain's loses some without any failure: by default it shows its summarizer the last 4,000 tokens
    of what leaves.
    """
    now = 0

    def turn(at: int) -> None:
        nonlocal now
        now = at

    outage = range(len(history.exchanges) * 2 // 5, len(history.exchanges) // 2)
    summarizer = Summarizer(lambda call: call % 10 == 0 if scenario == EVERY_TENTH else now in outage)
    with patch.object(strategies, "time") as clock:
        clock.monotonic = lambda: now * TURN_S
        replay, result = replayed(system, history, summarizer, store, turn)
    said = plain_text(replay.said)
    safe = plain_text([*(message.text for message in replay.state()), *summarizer.read])
    safe += stored_text(store, history.name)
    sentences = [plain_text([fact.sentence]) for fact, _ in history.facts]
    return {
        "system": system.name,
        "scenario": scenario,
        "lost": sum(one in said and one not in safe for one in sentences),
        "unsaid": sum(one not in said for one in sentences),
        **result,
    }


def measured(histories: Sequence[History], folder: Path) -> Result:
    """Every system with every conversation."""
    result: Result = {"sizes": [history.size for history in histories], "systems": {}}
    for system in SYSTEMS:
        found = [_apart(folder, partial(asked, system, history)) for history in histories]
        result["systems"][system.name] = {"total": total(found), "histories": found}
    return result


def failures(history: History, folder: Path) -> list[Result]:
    """What becomes of ``history`` when the summarizer fails."""
    chosen = [(system, scenario) for scenario in (EVERY_TENTH, OUTAGE) for system in _FAILING]
    return [
        _apart(folder, lambda store, one=one: failed(one[0], history, store, one[1]))
        for one in watched(chosen, "failing summarizers")
    ]


def _apart(folder: Path, measure: Callable[[MemoryStore], Result]) -> Result:
    """``measure`` with a new store of its own."""
    with TemporaryDirectory(dir=folder) as own, open_store(f"sqlite:///{own}/memory.db") as store:
        return measure(store)


def total(found: Sequence[Result]) -> Result:
    """The sums over conversations; of windows the mean and the largest."""
    sums: Result = {name: sum(one.get(name, 0) for one in found) for name in _SUMS}
    sums["misses"] = dict(Counter(miss["role"] for one in found for miss in one.get("misses", [])))
    sums["facts_by_role"] = dict(sum((Counter(one.get("facts_by_role", {})) for one in found), Counter[str]()))
    sums["window_tokens"] = round(sum(one["window_tokens"] for one in found) / len(found))
    sums["largest_window_tokens"] = max(one["largest_window_tokens"] for one in found)
    return sums


def table(result: Result) -> list[Row]:
    """The report's rows."""
    sizes = ", ".join(map(str, result.get("sizes", [])))
    return [
        plain(f"messages of the conversations (limit: {result['limit']:,} tokens)", sizes),
        *(row for name, one in result["systems"].items() for row in _rows(name, one["total"])),
        *map(_failure_row, result.get("failures", [])),
        *overflow_time.table(result.get("times", {})),
    ]


def _rows(name: str, one: Result) -> Iterator[Row]:
    """Of one system: what can be recalled, with a bar for those that flush, and what it took."""
    share, shares = one["recallable"] / one["facts"], [one[part] / one["facts"] for part in ("window", "recall")]
    text = f"{share:.1%} ({shares[0]:.1%} in the window, {shares[1]:.1%} by recall)"
    flushes = one["recall"] > 0
    yield f"facts recallable, {name}", text, "100 %" if flushes else "", share == 1 if flushes else None
    unread = f"{name}: facts that left unread, neither stored nor given to the summarizer"
    yield unread, str(one["unread"]), "0" if flushes else "", one["unread"] == 0 if flushes else None
    if flushes:
        default = one["window"] + one["default_recall"]
        yield plain(f"{name}: with the block's defaults, five memories", f"{default / one['facts']:.1%}")
        missed = [f"{role} {count} of {one['facts_by_role'][role]}" for role, count in sorted(one["misses"].items())]
        yield plain(f"{name}: stored, but not among the ten best, by role", ", ".join(missed) or "none")
    cost = f"{one['summaries']} calls, {one['summarizer_tokens']:,} tokens given"
    yield plain(f"{name}: summaries", cost)
    tokens = f"{one['window_tokens']:,}, the largest ever {one['largest_window_tokens']:,}"
    yield plain(f"{name}: tokens of the final window, mean", tokens)
    yield plain(f"{name}: invalid histories", str(one["invalid"]))


def _failure_row(one: Result) -> Row:
    what = f"summarizer down, {one['scenario']}: {one['system']}"
    text = f"{one['lost']} facts lost, {one['aborted']} runs aborted, {one['failed_calls']} calls failed"
    is_ours = one["system"].startswith("ours")
    return what, text, "0 lost, 0 aborted" if is_ours else "", one["lost"] + one["aborted"] == 0 if is_ours else None


def main() -> int:
    """Measures, and publishes table and picture."""
    command = argparse.ArgumentParser(prog="sh scripts/bench overflow", description=__doc__)
    command.add_argument("--data", type=Path, help="a folder with LoCoMo files, instead of made-up conversations")
    command.add_argument("--unpublished", action="store_true", help="leave benchmarks/results as it is")
    command.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="messages of each made-up conversation")
    command.add_argument("--only", choices=("facts", "times"), help="one part; nothing is published")
    options = command.parse_args()
    name = "overflow_locomo" if options.data else "overflow"
    reached, result = False, Result()
    with scratch() as folder:
        for result in _stages(options, folder):  # after each, because all of them take half an hour
            reached = publish(name, table(result), result, written=not (options.unpublished or options.only))
    if not (options.unpublished or options.only or options.data):
        overflow_picture.draw(result)
    return int(not reached)


def _stages(options: argparse.Namespace, folder: Path) -> Iterator[Result]:
    """What is known after each stage."""
    result: Result = {"limit": LIMIT, "systems": {}}
    if options.only != "facts" and not options.data:
        result["times"] = overflow_time.measured(folder)
        yield result
    if options.only != "times":
        histories = list(locomo(options.data)) if options.data else synthetic(tuple(options.sizes))
        if not options.data:
            result["failures"] = failures(histories[len(histories) // 2], folder)
            yield result
        yield result | measured(histories, folder)


if __name__ == "__main__":
    sys.exit(main())
