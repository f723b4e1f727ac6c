"""``ingest``: conversations from files become a user's memories, word for word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inference_core.cli.interruption import held_back
from inference_core.cli.opening import opened
from inference_core.cli.options import Agent, AsJson, Embeddings, Url, User, one_of
from inference_core.cli.output import note, print_json
from inference_core.cli.progress import progress_bar
from inference_core.cli.rendering import print_figures
from inference_core.ingestion import FORMATS

if TYPE_CHECKING:
    from inference_core.ingestion.verbatim import IngestReport

_AUTO: Final = "auto"
_INTERRUPTED: Final = 130


def ingest(
    file: Annotated[Path, typer.Argument(help="A LoCoMo file, a BEAM folder, or JSON Lines with role and content.")],
    user: User,
    agent: Agent = None,
    form: Annotated[str, typer.Option("--format", help="What the file is.", **one_of((_AUTO, *FORMATS)))] = _AUTO,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Remember conversations from a file, one memory a message. Run it again to continue where it stopped."""
    from inference_core.evaluation.datasets import load_transcript
    from inference_core.ingestion.transcripts import format_of
    from inference_core.ingestion.verbatim import IngestReport
    from inference_core.ingestion.verbatim import ingest as ingested

    chosen = format_of(file) if form == _AUTO else form
    transcript = load_transcript(chosen, file)
    report = IngestReport()
    try:
        with (
            opened(url, agent, embeddings, embeds=True, creates=True) as memory,
            progress_bar("Messages") as show,
            held_back() as check,
        ):
            for report in ingested(memory.service.scope, user, transcript):
                show(report.done, transcript.total)
                check()
    except KeyboardInterrupt:
        _print(report, chosen, as_json=json)
        note("Interrupted. What was written is kept; run the same command again to continue")
        raise typer.Exit(_INTERRUPTED) from None
    except Exception:
        if report.done:
            _print(report, chosen, as_json=json)
        raise
    _print(report, chosen, as_json=json)


def _print(report: IngestReport, form: str, *, as_json: bool) -> None:
    figures: dict[str, Any] = {
        "format": form,
        "messages": report.messages,
        "memories": report.written,
        "already_there": report.already_there,
        "skipped": dict(report.skipped),
        "sessions": len(report.sessions),
        "seconds": round(report.seconds, 2),
    }
    if as_json:
        print_json(figures | {"without_vector": report.without_vector})
    else:
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items() if count)
        print_figures(figures | {"skipped": reasons or 0})
    if report.without_vector:
        note(f"{report.without_vector} memories wait for their vectors; they get them once the embedding model answers")
