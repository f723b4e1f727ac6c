"""All rows of a store, as the puts that would make them anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from inference_core.memory.namespaces import encode_label
from inference_core.memory.text import encode_json
from inference_core.portability.writing import TransferReport
from inference_core.stores.backend import Backend, Put, Unreadable

PORTION: Final = 200


def puts_of(
    backend: Backend, user_ids: Sequence[str], report: TransferReport, *, with_vectors: bool
) -> Iterator[list[Put]]:
    """The rows of these users, or of all, in portions: by namespace, in the order of their last writes.

    Sets the report's total, and at the end how many rows cannot be read. Raises InvalidId, StoreError.
    """
    labels = [encode_label(user_id) for user_id in user_ids]
    scopes = [scope for label in labels for scope in backend.namespaces((label,))] if labels else backend.namespaces()
    report.total = backend.count(scopes)
    for scope in scopes:
        changes = iter(backend.changes(scope, 0))
        while portion := list(islice(changes, PORTION)):
            keys = [(scope, change.key) for change in portion]
            tokens: Sequence[bytes | None] = backend.tokens(keys) if with_vectors else [None] * len(keys)
            yield [
                Put(
                    namespace=row.namespace,
                    key=row.key,
                    value=encode_json(row.value, what="value"),
                    document=change.document and change.document._replace(tokens=own),
                    kind=change.kind,
                    created_at=row.created_at,
                    updated_at=row.updated_at,
                    expiry=row.expiry,
                )
                for row, change, own in zip(backend.get(keys), portion, tokens, strict=True)
                if row
            ]
    found = chain.from_iterable(backend.inspect(label) for label in labels) if labels else backend.inspect()
    report.unreadable = sum(isinstance(one, Unreadable) and not one.only_index for one in found)
