"""Writes rows into a store beside those that are there; any number of times, interrupted or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from inference_core.errors import InvalidInput, StoreError, VersionConflict
from inference_core.stores.backend import EMBEDDING_META, Backend, Put, Row
from inference_core.stores.codec import unpack_value


class ConflictPolicy(str, Enum):
    """What happens to a row if another one stands under its key."""

    NEWER = "newer"
    """The one that was written later stays."""
    KEEP = "keep"
    """What is there stays."""
    REPLACE = "replace"
    """What comes goes in its place."""
    FAIL = "fail"
    """Nothing of the portion is written."""


@dataclass(slots=True)
class TransferReport:
    """Counts of rows. ``already_there`` are equal ones; ``kept`` are those whose place another one has kept.

    ``unreadable`` are those of the source that cannot be read, which were left out.
    """

    read: int = 0
    written: int = 0
    already_there: int = 0
    kept: int = 0
    unreadable: int = 0
    total: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON data."""
        return asdict(self)


class Writer:
    """Writes portions into ``backend``. Vectors go along if they are of the store's model, or it has none yet."""

    def __init__(self, backend: Backend, policy: ConflictPolicy, report: TransferReport) -> None:
        self._backend = backend
        self._policy = policy
        self._report = report
        self._model = backend.get_meta(EMBEDDING_META)

    def adopt_model(self, model: str | None) -> None:
        """Makes ``model`` the store's, if it has none yet."""
        if self._model is None and model:
            self._backend.set_meta(EMBEDDING_META, model)
            self._model = model

    def write(self, puts: Sequence[Put]) -> None:
        """Writes what the policy lets in; rows that others change meanwhile are looked at again.

        Raises InvalidInput at a conflict if it is to fail, StoreError.
        """
        self._report.read += len(puts)
        while puts:
            rows = self._backend.get([(put.namespace, put.key) for put in puts])
            decided = [self._decided(put, row) for put, row in zip(puts, rows, strict=True)]
            chosen = [put for put in decided if put]
            outcomes = self._backend.apply([[put] for put in chosen]) if chosen else []
            failed = [(put, one) for put, one in zip(chosen, outcomes, strict=True) if isinstance(one, Exception)]
            self._report.written += len(chosen) - len(failed)
            for _, error in failed:
                if not isinstance(error, VersionConflict):
                    raise error if isinstance(error, StoreError) else StoreError(str(error))
            puts = [put for put, _ in failed]

    def _decided(self, put: Put, row: Row | None) -> Put | None:
        """The write, or None if the row stays as it is."""
        document = put.document
        if document and document.model and document.model != self._model:
            document = document._replace(model="", vector=None, tokens=None)
        if row is None:
            return replace(put, document=document, expected=0)
        known = (row.updated_at, row.created_at, row.value)
        if known == (put.updated_at, put.created_at, unpack_value(put.value)):
            self._report.already_there += 1
            return None
        if self._policy is ConflictPolicy.FAIL:
            raise InvalidInput(f"Another memory stands under {put.key!r}; choose which one stays with --conflicts")
        is_older = self._policy is ConflictPolicy.NEWER and put.updated_at <= row.updated_at
        if is_older or self._policy is ConflictPolicy.KEEP:
            self._report.kept += 1
            return None
        return replace(put, document=document, expected=row.version)
