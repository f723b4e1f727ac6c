"""``reembed``: embed all texts of a store with another model."""

from __future__ import annotations

from typing import Annotated

import typer

from inference_core.cli.opening import existing_settings
from inference_core.cli.options import AsJson, Url
from inference_core.cli.output import print_result
from inference_core.cli.progress import progress_bar


def reembed(
    embeddings: Annotated[str, typer.Option("--embeddings", metavar="NAME", help="The new model.")],
    place: Annotated[str | None, typer.Argument(metavar="URL", help="The store; the same as --url.")] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Embed all texts with another model. An interrupted run continues where it stopped."""
    from inference_core.stores.reembed import reembed as embed_anew

    settings = existing_settings(place or url, embeddings)
    key = settings.encryption_key_text
    with progress_bar("Embedding texts") as advance:
        done = embed_anew(settings.store_url, settings.embeddings_spec, advance, encryption_key=key)
    print_result({"embedded": done}, f"Embedded {done} texts.", as_json=json)
