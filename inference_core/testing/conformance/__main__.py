"""``python -m inference_core.testing.conformance module:factory``: which promises a LangGraph store keeps."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from inference_core.errors import ConfigurationError
from inference_core.testing.conformance.runner import Outcome, Verdict, verdicts
from inference_core.testing.conformance.subject import Factory

_MARKS: Final = {Outcome.KEPT: "kept  ", Outcome.BROKEN: "BROKEN", Outcome.UNTRIED: "-     "}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints each promise once tested. Returns 1 if a contract promise (--strict: any) is broken; 2 if misused."""
    parser = argparse.ArgumentParser(prog="python -m inference_core.testing.conformance", description=__doc__)
    parser.add_argument(
        "factory",
        help="module:function that returns an empty store, or a context manager of one; the function may have the "
        "parameters place (a folder), embeddings and index",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON; the table goes to stderr")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for a broken robustness promise too")
    parser.add_argument("--only", default="", metavar="TEXT", help="only promises whose names contain this")
    options = parser.parse_args(arguments)
    stream = sys.stderr if options.json else sys.stdout
    found: list[Verdict] = []
    try:
        for verdict in verdicts(Factory(options.factory), options.only):
            found.append(verdict)
            kind = "robustness" if verdict.promise.is_robustness else "contract"
            print(f"{kind:<10}  {_MARKS[verdict.outcome]}  {verdict.promise.text}", file=stream, flush=True)
            for note in verdict.notes():
                print(f"{'':20}  {note}", file=stream, flush=True)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(verdict) | {"outcome": verdict.outcome} for verdict in found], indent=1))
    else:
        print(f"{_count(found, 'contract')}, {_count(found, 'robustness')}")
    broken = [verdict.promise for verdict in found if verdict.outcome is Outcome.BROKEN]
    return int(any(options.strict or not promise.is_robustness for promise in broken))


def _count(verdicts: Sequence[Verdict], kind: str) -> str:
    those = [verdict.outcome for verdict in verdicts if verdict.promise.is_robustness is (kind == "robustness")]
    tried = len(those) - those.count(Outcome.UNTRIED)
    return f"{kind}: {those.count(Outcome.KEPT)} of {tried} kept"


if __name__ == "__main__":
    sys.exit(main())
