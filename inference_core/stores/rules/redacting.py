"""Takes secrets out of writes, whatever made them: the last check before a database.

The guard that it applies, and that earlier steps have usually applied already, is in `memory/redaction.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference_core.memory.namespaces import is_item
from inference_core.memory.redaction import Guard
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Put, Write


def redacted(guard: Guard, put: Put) -> Put:
    """``put`` without secrets in value and text; a text that changes gets new terms and vectors.

    An application's own items, and rows without texts, stay as they are.
    """
    if guard.is_off or is_item(put.namespace):
        return put
    value, document = guard.stored(put.value), put.document
    if document and (text := guard.text(document.text)) is not document.text:
        document = Document.soon_of(text, document.situation)
    return put if value is put.value and document is put.document else replace(put, value=value, document=document)


def without_secrets(guard: Guard, batch: Sequence[Write]) -> list[Write]:
    """``batch`` with each row to be put `redacted`."""
    return [redacted(guard, put) if isinstance(put, Put) else put for put in batch]
