"""``inference-core reembed [URL] --embeddings NAME``: embed all texts of a store with another model."""

from __future__ import annotations

from typing import Annotated

import typer

from inference_core.cli.opening import check_exists, memory_settings
from inference_core.cli.options import AsJson, Url
from inference_core.cli.output import note, print_json
from inference_core.cli.progress import progress_bar


def reembed(
    embeddings: Annotated[str, typer.Option("--embeddings", metavar="NAME", help="The new model.")],
    place: Annotated[str | None, typer.Argument(metavar="URL", help="The store; the same as --url.")] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Embed all texts with another model.

    A run that was interrupted goes on where it stopped.
    """
    from inference_core.stores.reembed import reembed as embed_anew  # noqa: PLC0415 - numpy and stores are slow

    settings = memory_settings(place or url, embeddings)
    check_exists(settings.store_url)
    with progress_bar("Embedding texts") as advance:
        done = embed_anew(
            settings.store_url, settings.embeddings_spec, advance, encryption_key=settings.encryption_key_text
        )
    if json:
        print_json({"embedded": done})
    else:
        note(f"Embedded {done} texts.")
