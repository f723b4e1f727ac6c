"""Which promises of `inference_core.testing.conformance` LangGraph's stores and ours keep, as one table.

It starts a PostgreSQL with pgvector in a temporary folder, unless CONFORMANCE_POSTGRES holds an address.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psycopg
from baselines import why_no_vectors
from conformance_stores import POSTGRES, schema
from postgres_versions import server_versions
from report import RESULTS, machine
from rich.console import Console
from rich.progress import Progress
from stale import digests

from inference_core.testing.conformance.runner import EveryPromise, Outcome, Verdict, verdicts
from inference_core.testing.conformance.subject import Factory, Subject, promises_of

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from postgres_server import new_server

STORES: Final = {
    "InMemoryStore": "in_memory",
    "SqliteStore": "sqlite",
    "AsyncSqliteStore": "async_sqlite",
    "PostgresStore": "postgres",
    "AsyncPostgresStore": "async_postgres",
    "ours, SQLite": "our_sqlite",
    "ours, in memory": "our_memory",
}
PAGE: Final = Path(__file__).parents[1] / "docs" / "conformance.md"
_PACKAGES: Final = ("langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
_MARKS: Final = {Outcome.KEPT: "yes", Outcome.BROKEN: "**no**", Outcome.UNTRIED: "-"}
_TABLE: Final = "<!-- table: sh scripts/bench conformance -->\n"
_END: Final = "<!-- end -->\n"
Findings = dict[str, list[dict[str, Any]]]


class InPostgres(EveryPromise):
    """A crowd that is large enough for PostgreSQL to plan as it does in use, with the statistics that it has then."""

    crowd = 4_000

    def settle(self, subject: Subject) -> None:
        """Does at once what autovacuum does within a minute."""
        with psycopg.connect(schema(subject.place.folder), autocommit=True) as connection:
            connection.execute("ANALYZE")


def tried(names: Sequence[str]) -> Findings:
    """The verdicts on each store."""
    count = len(promises_of(EveryPromise)) * len(names)
    found: Findings = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("conformance", total=count)
        for name in names:
            found[name] = []
            kind = InPostgres if "Postgres" in name else EveryPromise
            for verdict in verdicts(Factory(f"conformance_stores:{STORES[name]}"), kind=kind):
                found[name].append(_described(verdict))
                progress.update(task, advance=1, description=name)
    return found


def _described(verdict: Verdict) -> dict[str, Any]:
    promise = verdict.promise
    return {
        "name": promise.name,
        "is_robustness": promise.is_robustness,
        "text": promise.text,
        "outcome": verdict.outcome,
        "notes": verdict.notes(),
        "modes": {one.mode: one.outcome for one in verdict.findings},
    }


@contextmanager
def postgres_server() -> Generator[str]:
    """The address of a PostgreSQL with pgvector."""
    if address := os.environ.get(POSTGRES):
        yield address
        return
    with closing(new_server("postgres")) as server:
        server.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield server.url()


def versions(address: str) -> dict[str, str]:
    """What was tried."""
    return {name: version(name) for name in _PACKAGES} | server_versions(address)


def table(found: Findings, *, only_broken: bool = False) -> str:
    """The findings as Markdown: a promise a row, a store a column."""
    names = list(found)
    lines = [f"| promise | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for at, promise in enumerate(found[names[0]]):
        outcomes = [Outcome(found[name][at]["outcome"]) for name in names]
        if not only_broken or Outcome.BROKEN in outcomes:
            kind = "" if promise["is_robustness"] else " (contract)"
            text = promise["text"].replace("|", "\\|")
            lines.append(f"| {text}{kind} | {' | '.join(_MARKS[outcome] for outcome in outcomes)} |")
    counts = [
        f"{_count(found[name], is_robustness=False)}, {_count(found[name], is_robustness=True)}" for name in names
    ]
    lines.append(f"| kept / tested: contract, robustness | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def _count(verdicts: Sequence[Mapping[str, Any]], *, is_robustness: bool) -> str:
    outcomes = [one["outcome"] for one in verdicts if one["is_robustness"] is is_robustness]
    return f"{outcomes.count(Outcome.KEPT)} / {len(outcomes) - outcomes.count(Outcome.UNTRIED)}"


def remarks(document: Mapping[str, Any]) -> str:
    """What the table depends on."""
    packages = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    missing = document["no_vectors"]
    vectors = f" SqliteStore and AsyncSqliteStore had no vectors: {missing}." if missing else ""
    return f"{packages}; Python {document['machine']['python']}, {document['machine']['date'][:10]}.{vectors}\n"


def write(document: Mapping[str, Any]) -> None:
    """The findings as files, and the table on the page about them."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "conformance.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    text = f"# conformance\n\n{remarks(document)}\n{table(document['stores'])}"
    (RESULTS / "conformance.md").write_text(text, encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_TABLE)
    shown = f"{_TABLE}{remarks(document)}\n{table(document['stores'], only_broken=True)}{_END}"
    PAGE.write_text(before + shown + rest.partition(_END)[2], encoding="utf-8")


def main() -> int:
    """Tries all stores; 1 if one of ours breaks a promise."""
    parser = argparse.ArgumentParser(prog="sh scripts/bench conformance", description=__doc__)
    parser.add_argument("--store", action="append", choices=[*STORES], help="only this one (several times: these)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--unpublished", action="store_true", help="leave benchmarks/results and docs as they are")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    with postgres_server() as address:
        os.environ[POSTGRES] = address
        found = tried(options.store or [*STORES])
        document = {
            "name": "conformance",
            "machine": machine(),
            "code": digests("conformance"),
            "versions": versions(address),
            "no_vectors": why_no_vectors(),
            "stores": found,
        }
    print(json.dumps(document) if options.json else f"{remarks(document)}\n{table(found)}")
    if not options.unpublished and not options.store:
        write(document)
    ours = [one for name, those in found.items() if name.startswith("ours") for one in those]
    return int(any(one["outcome"] == Outcome.BROKEN for one in ours))


if __name__ == "__main__":
    sys.exit(main())
