"""``doctor``: what is installed, configured and stored; problems and how to mend them come last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import typer

from inference_core.cli.options import Target, on_store
from inference_core.cli.output import draw, one_line, print_json, working

if TYPE_CHECKING:
    from inference_core.cli.diagnosis import Diagnosis, ModelReport

_LABEL: Final = 10


@on_store("url", "embeddings", "json")
def doctor(target: Target) -> None:
    """Find what is wrong, and how to mend it.

    Looks at the installation, the settings, the store and the models, and changes nothing. Exits with 1 if something
    is wrong.
    """
    from inference_core.cli.diagnosis import diagnose

    with working("Looking …"):
        found = diagnose(target.url, target.embeddings)
    if target.json:
        print_json(found.to_json())
    else:
        _print_table("bold", _lines(found))
        draw("")
        _print_table("yellow", [("hint", text) for text in found.hints])
        _print_table("bold red", [("problem", text) for text in found.problems])
        if not found.problems:
            _print_table("green", [("Nothing is wrong.", "")])
    if found.problems:
        raise typer.Exit(1)


def _print_table(style: str, rows: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style=style, min_width=_LABEL)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(one_line(value)))
    draw(grid)


def _lines(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())
    yield "extras", ", ".join(f"{name}{'' if there else ' (missing)'}" for name, there in found.extras.items())
    store = found.store
    yield "store", f"{store.url} ({'opens' if store.opens else 'does not open' if store.exists else 'not there yet'})"
    if store.capabilities is not None:
        yield "", ", ".join(name.replace("_", " ") for name, has in store.capabilities.items() if has)
        yield "", f"memories: {store.memories}, users: {store.users}, schema version: {store.schema_version or 'none'}"
        is_configured = store.vectors_made_by == found.embedding_model
        maker = "the configured model" if is_configured else store.vectors_made_by or "no model yet"
        more = "more than " if store.more_pending else ""
        yield "", f"vectors by {maker}, {more}{store.vectors_pending or 0} pending"
    ready = "ready" if found.embeddings_ready else "not ready"
    yield "embeddings", f"{found.embedding_model} ({ready})" if found.embedding_model else "none"
    yield "chat model", _model(found.chat_model) if found.chat_model else "none"
    yield "fallbacks", "; ".join(map(_model, found.fallbacks)) or "none"
    yield "time zone", found.time_zone
    changed = [f"{name}={value}" for name, value in found.changed_settings.items()] or ["all as by default"]
    yield from zip(["settings", *[""] * len(changed)], changed, strict=False)


def _model(model: ModelReport) -> str:
    return f"{model.name} ({'installed' if model.installed else 'not installed'}, key {model.key})"
