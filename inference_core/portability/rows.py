"""All rows of a store, as the puts that would make them anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import encode_json
from inference_core.retrieval.documents import Change
from inference_core.stores.backend import Backend, Put, Row, Unreadable

PORTION = 200


def scopes_of(backend: Backend, labels: Sequence[str] = ()) -> list[Namespace]:
    """The namespaces of the users with these labels, or all."""
    if not labels:
        return backend.namespaces()
    return [name for label in labels for name in backend.namespaces((label,))]


def puts_of(backend: Backend, scope: Namespace, *, with_vectors: bool) -> Iterator[list[Put]]:
    """The rows of ``scope`` in portions, in the order of their last writes. Raises StoreError."""
    changes = iter(backend.changes(scope, 0))
    while portion := list(islice(changes, PORTION)):
        keys = [(scope, change.key) for change in portion]
        tokens: Sequence[bytes | None] = backend.tokens(keys) if with_vectors else [None] * len(keys)
        rows = backend.get(keys)
        yield [_put(row, change, own) for row, change, own in zip(rows, portion, tokens, strict=True) if row]


def count_unreadable(backend: Backend, labels: Sequence[str] = ()) -> int:
    """How many rows of the users with these labels, or of all, cannot be read. Raises StoreError."""
    found = chain.from_iterable(backend.inspect(label) for label in labels) if labels else backend.inspect()
    return sum(isinstance(one, Unreadable) and not one.only_index for one in found)


def _put(row: Row, change: Change, tokens: bytes | None) -> Put:
    return Put(
        namespace=row.namespace,
        key=row.key,
        value=encode_json(row.value, what="value"),
        document=change.document and change.document._replace(tokens=tokens),
        kind=change.kind,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expiry=row.expiry,
    )
