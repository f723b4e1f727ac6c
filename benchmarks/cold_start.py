"""The first recall of a new process: twenty questions that share no word with the memory that answers them.

Each question is the first of a process of its own. The memories were saved by a process that ended right after its last
save: five in an otherwise empty store, and all twenty beside 10,000 others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import ours
from corpus import SESSION_TURNS, Turn
from report import Row, publish
from timing import quantile, scratch, watched

from inference_core.embeddings.embedder import Embedder, TextEncoding
from inference_core.embeddings.local import FINGERPRINT, LocalEmbeddings
from inference_core.retrieval.analysis import analyze

MEMORIES = 10_000
FIRST_BAR_MS = 1_500
SECOND_BAR_MS = 20
FEW = 5
ASKED = {
    "My dog is called Rex": "Which animal do I own?",
    "Allergic to peanuts": "Which snack could kill me?",
    "Works as a cardiologist": "What is my job at the hospital?",
    "Her brother lives in Lisbon": "In which Portuguese city do I have family?",
    "Rides a motorbike every weekend": "Which vehicle do I use for leisure?",
    "Plays the violin in a quartet": "Which musical instrument can I handle?",
    "Was born in Kyoto": "From which Japanese town do I come?",
    "Drinks only oat milk": "What should go into my coffee instead of dairy?",
    "Fears flying": "Why would a train suit me better than a plane?",
    "Married Tom last June": "Who is my husband?",
    "Collects rare stamps": "What is my hobby with old letters and post offices?",
    "Has two daughters, Mia and Zoe": "What are the names of my children?",
    "Supports Liverpool": "Which football club am I a fan of?",
    "Studied physics at university": "What science did I learn as a student?",
    "Sleeps badly since the accident": "Why am I tired at night?",
    "Bakes sourdough on Sundays": "What kind of bread comes out of my oven?",
    "Runs marathons": "Which long-distance sport am I training for?",
    "Speaks fluent Spanish": "Which foreign language could help me in Madrid?",
    "Drives an electric Tesla": "Does my car need petrol?",
    "Paints watercolours of the sea": "What art do I make?",
}
SAVER = """
import json, sys
from inference_core import open_store
memory = open_store(sys.argv[1]).memory("ada")
for text in json.loads(sys.argv[2]):
    memory.add(text, "facts")
"""
ASKER = """
import json, sys, time
from langchain.agents import create_agent
from inference_core import MemoryMiddleware, open_store
from inference_core.testing import ScriptedChatModel
url, wanted, *questions = json.loads(sys.argv[1])
store = open_store(url)
model = ScriptedChatModel(turns=["ok"])
agent = create_agent(model, store=store, middleware=[MemoryMiddleware()])
seen = []
for question in questions:
    result = agent.invoke({"messages": [("user", question)]}, context={"user_id": "ada"})
    seen.append({
        "is_right": any(wanted in message.text for message in model.requests[-1]),
        "status": result["memory_status"], "recall_ms": result["memory_recall_latency_ms"],
    })
hits = store.memory("ada").search(questions[0])
print(json.dumps({"turns": seen, "is_found": wanted in [hit.content for hit in hits], "by_meaning": hits.by_meaning}))
"""


class FewTexts(LocalEmbeddings):
    """The local model, which reads only ``some`` texts and takes any other for one of them."""

    def __init__(self, some: list[str]) -> None:
        super().__init__()
        self._known = dict(zip(some, super().encode(some), strict=True))
        self._others = list(self._known.values())

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encodings of the texts or of others in their place."""
        return [self._known.get(text, self._others[crc32(text.encode()) % len(self._others)]) for text in texts]


def fill(path: Path) -> None:
    """Makes a store with 10,000 notes and their vectors."""
    now = datetime.now(UTC)
    texts = [f"Note {at}: the {at % 97}. visit to harbour {at % 53} took {at % 7} hours" for at in range(MEMORIES)]
    said = [Turn("ada", at // SESSION_TURNS, at, text, now) for at, text in enumerate(texts)]
    with ours.opened(path, Embedder(FewTexts(texts[:50]), FINGERPRINT), late=True) as store:
        ours.fill(store, said, MEMORIES)


def program(code: str, *arguments: str) -> str:
    """What a new process prints that runs ``code``."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def asked(url: str, texts: list[str]) -> list[Any]:
    """What a process each sees whose first question is the one that a text answers, and its second that of another."""
    seen: list[Any] = []
    for at, text in enumerate(watched(texts, "processes")):
        questions = ASKED[text], ASKED[texts[at - 1]]
        seen.append(json.loads(program(ASKER, json.dumps([url, text, *questions]))))
    return seen


def rows_of(what: str, seen: list[Any]) -> list[Row]:
    """The rows of one store. ``seen`` are its processes."""
    count, first, second = len(seen), [one["turns"][0] for one in seen], [one["turns"][1] for one in seen]
    by_meaning = sum(one["status"] == "recalled" for one in first)
    told, found = sum(one["is_right"] for one in first), sum(one["is_found"] and one["by_meaning"] for one in seen)
    took, later = (quantile([one["recall_ms"] for one in turns]) for turns in (first, second))
    return [
        (f"{what}: first turns by meaning", f"{by_meaning} of {count}", f"{count} of {count}", by_meaning == count),
        (f"{what}: the model is told the answer", f"{told} of {count}", f"{count} of {count}", told == count),
        (f"{what}: `search` finds it", f"{found} of {count}", f"{count} of {count}", found == count),
        (f"{what}: first recall, median", f"{took:.0f} ms", f"≤ {FIRST_BAR_MS} ms", took <= FIRST_BAR_MS),
        (f"{what}: second recall, median", f"{later:.1f} ms", f"≤ {SECOND_BAR_MS} ms", later <= SECOND_BAR_MS),
    ]


def rows() -> list[Row]:
    """Both stores, a new process for each question."""
    texts = list(ASKED)
    shared = {text: {*analyze(text)} & {*analyze(question)} for text, question in ASKED.items()}
    if any(shared.values()):
        raise RuntimeError(f"These share words: {[text for text, words in shared.items() if words]}")
    made: list[Row] = []
    with scratch() as folder:
        small: list[Any] = []
        for start in range(0, len(texts), FEW):
            some, url = texts[start : start + FEW], ours.url(folder / f"{start}.db")
            program(SAVER, url, json.dumps(some))
            small += asked(url, some)
        made += rows_of(f"{FEW} memories", small)
        fill(folder / "large.db")
        program(SAVER, ours.url(folder / "large.db"), json.dumps(texts))
        made += rows_of(f"{MEMORIES:,} memories", asked(ours.url(folder / "large.db"), texts))
    return made


if __name__ == "__main__":
    sys.exit(not publish("cold_start", rows()))
