"""Copies a store into another one, and gives all texts of a store vectors of another embedding model.

Both can be repeated, interrupted and run beside writers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from itertools import chain, islice
from typing import Any, Final

from inference_core.effects import Progress
from inference_core.embeddings.embedder import Passage
from inference_core.embeddings.factory import EmbeddingsSpec, make_embedder
from inference_core.errors import (
    ConfigurationError,
    InvalidInput,
    QuotaExceeded,
    SecretFound,
    StoreError,
    UserErased,
    VersionConflict,
)
from inference_core.lifecycle.ledger import know_copies_of
from inference_core.memory.audit import Actor, Cause
from inference_core.memory.namespaces import (
    AUDIT,
    ERASED,
    QUOTA,
    SEALS,
    VERSIONS,
    encode_label,
    holds_memories,
    is_item,
)
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.text import encode_json
from inference_core.memory.trust import Decision, no_higher
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.outbox.outbox import put_in_place
from inference_core.services.operations.admission import proposed_on
from inference_core.stores.backend import (
    CONTENT_KEY_META,
    EMBEDDING_META,
    Backend,
    Put,
    Row,
    Unreadable,
    Write,
    change_of,
    unpack_value,
)
from inference_core.stores.engine import content_key_of
from inference_core.stores.factory import KeySource, open_backend
from inference_core.stores.indexing.embedding import DIMENSIONS_META, VectorSpace, fill
from inference_core.stores.indexing.embedding import PORTION as EMBEDDING_PORTION
from inference_core.stores.rules.audit_log import AuditLog
from inference_core.stores.rules.erasure_epoch import fences_of, roots_of
from inference_core.stores.rules.redacting import redacted

PORTION: Final = 200
_TRIES: Final = 5


class ConflictPolicy(str, Enum):
    """What to do with a row whose key the target already has, with another value or time.

    ``NEWER`` keeps the one written later, ``KEEP`` the target's, ``REPLACE`` the new one. ``FAIL`` raises InvalidInput
    before anything of its portion is written.
    """

    NEWER = "newer"
    KEEP = "keep"
    REPLACE = "replace"
    FAIL = "fail"


@dataclass(slots=True)
class TransferReport:
    """Counts of rows.

    ``already_there`` were equal, ``kept`` were not written because the target's row stays, ``unreadable`` were skipped,
    ``waiting`` wait for the user's confirmation, and ``full`` exceed the user's quota. ``has_other_key``: the target's
    content key differs, so rejections, roles in spaces and API keys of the source have no effect there.
    """

    read: int = 0
    written: int = 0
    already_there: int = 0
    kept: int = 0
    unreadable: int = 0
    full: int = 0
    waiting: int = 0
    total: int | None = None
    has_other_key: bool = False

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON data."""
        return asdict(self)


class Writer:
    """Writes portions of rows into ``backend``, with their vectors if the store's model made them."""

    def __init__(
        self,
        backend: Backend,
        policy: ConflictPolicy,
        report: TransferReport,
        secrets: Policy | Guard | None = None,
        *,
        operation: str = "import",
    ) -> None:
        self._backend = backend
        self._guard = Guard.of(secrets)
        self._policy = policy
        self._report = report
        self._audit_log, self._operation = AuditLog(backend), operation
        self._model = backend.get_meta(EMBEDDING_META)
        self._fences = fences_of(backend)
        self._began = self._fences.all()

    def adopt_model(self, model: str | None) -> None:
        """Makes ``model`` the store's embedding model, if it has none yet."""
        if self._model is None and model:
            self._backend.set_meta(EMBEDDING_META, model)
            self._model = model

    def write(self, puts: Sequence[Put]) -> None:
        """Writes the rows that the policy admits, without secrets.

        Raises InvalidInput for a conflict if the policy is ``FAIL``, SecretFound if secrets are rejected, UserErased
        if a user of ``puts`` was erased since this writer was made, VersionConflict if a row there is damaged or keeps
        changing, StoreError.
        """
        self._report.read += len(puts)
        puts = [self._clean(put) for put in puts if put.namespace[0] != ERASED]
        for _ in range(_TRIES):
            if not puts:
                return
            rows = self._backend.get([(put.namespace, put.key) for put in puts])
            decided = [self._decided(put, row) for put, row in zip(puts, rows, strict=True)]
            chosen = [put for put in decided if put]
            fences = {root: self._fences.checks_since(self._began, [root]) for root in roots_of(chosen)}
            batches = [[put, *fences.get(put.namespace[0], ())] for put in chosen]
            cause = Cause(at=datetime.now(UTC), operation=self._operation)
            outcomes = self._audit_log.apply(batches, cause) if chosen else []
            failed = [(put, error) for put, error in zip(chosen, outcomes, strict=True) if isinstance(error, Exception)]
            self._report.written += len(chosen) - len(failed)
            self._report.full += sum(isinstance(error, QuotaExceeded) for _, error in failed)
            failed = [(put, error) for put, error in failed if not isinstance(error, QuotaExceeded)]
            for _, error in failed:
                if not isinstance(error, VersionConflict):
                    raise error if isinstance(error, StoreError) else StoreError(str(error))
            puts = [put for put, _ in failed]  # others changed these rows meanwhile: decide again
            if self._fences.erased_since(self._began, roots_of(puts)):
                raise UserErased
        if puts:  # or they cannot be read there, and so cannot be compared
            raise VersionConflict(
                f"The row {puts[0].key!r} cannot be written to {self._backend.name}: others keep changing it, or it is "
                "damaged there; run inference-core repair on that store, then try again"
            )

    def propose(self, put: Put) -> None:
        """Makes the memory in ``put`` pending, unless it is or the user has decided. Raises what `write` raises."""
        self._report.read += 1
        clean, now = self._clean(put), datetime.now(UTC)
        record = MemoryRecord.from_value(
            unpack_value(clean.value),
            memory_id=put.key,
            namespace=put.namespace,
            stored_at=put.created_at or put.updated_at,
            updated_at=put.updated_at,
        )
        homes = [(record.namespace[0], category) for category in MEMORY_CATEGORIES]
        key = content_key_of(self._backend)
        root = record.namespace[0]
        for tries in reversed(range(_TRIES)):  # a row that cannot be read is in the way each time
            decision, _, writes = proposed_on(record, homes, now, (), key, self._backend)
            if not writes:
                self._report.kept += decision is Decision.NO
                self._report.already_there += decision is not Decision.NO
                return
            fence = self._fences.checks_since(self._began, [root])
            (outcome,) = self._audit_log.apply([[*writes, *fence]], Cause(at=now, operation=self._operation))
            if not isinstance(outcome, Exception):
                self._report.waiting += 1
                return
            if not tries or not isinstance(outcome, VersionConflict):
                raise outcome if isinstance(outcome, StoreError) else StoreError(str(outcome))
            if self._fences.erased_since(self._began, [root]):
                raise UserErased

    def _clean(self, put: Put) -> Put:
        if is_item(put.namespace):
            return put
        try:
            self._guard.refuse(self._guard.told(unpack_value(put.value)))
        except SecretFound as error:
            raise SecretFound(error.kinds, f"the memory {put.key!r}") from error
        return redacted(self._guard, put)

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
            raise InvalidInput(f"Another memory has the key {put.key!r}; choose which to keep with --conflicts")
        is_older = self._policy is ConflictPolicy.NEWER and put.updated_at <= row.updated_at
        if is_older or self._policy is ConflictPolicy.KEEP:
            self._report.kept += 1
            return None
        if self._operation == "import" and holds_memories(put.namespace):
            put = replace(put, value=encode_json(no_higher(unpack_value(put.value), row.value), what="value"))
        return replace(put, document=document, expected=row.version)


def puts_of(
    backend: Backend, user_ids: Sequence[str], report: TransferReport, *, with_vectors: bool
) -> Iterator[list[Put]]:
    """The rows of these users, or of all, as puts that recreate them: by namespace, the oldest change first.

    Sets the report's total, and at the end the number of unreadable rows. Raises InvalidId, StoreError.
    """
    labels = [encode_label(user_id) for user_id in user_ids]
    namespaces = (
        [namespace for label in labels for namespace in backend.namespaces((label,))]
        if labels
        else backend.namespaces()
    )
    namespaces = [
        namespace for namespace in namespaces if namespace[0] != ERASED
    ]  # fences hold for their own store only
    namespaces = [namespace for namespace in namespaces if namespace[1:] != (QUOTA,)]  # the target counts by itself
    # An audit trail belongs to its store: a copy begins a new one.
    namespaces = [namespace for namespace in namespaces if namespace[1:] != (AUDIT,) and namespace[0] != SEALS]
    report.total = backend.count(namespaces)
    for namespace in namespaces:
        changes = iter(backend.changes(namespace, 0))
        while portion := list(islice(changes, PORTION)):
            keys = [(namespace, change.key) for change in portion]
            rows = backend.get(keys)  # before their texts, so that another run copies what changes in between
            tokens: Sequence[bytes | None] = backend.tokens(keys) if with_vectors else [None] * len(keys)
            read = [
                (row, change_of(row, change, backend), own)
                for row, change, own in zip(rows, portion, tokens, strict=True)
                if row
            ]
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
                for row, change, own in read
            ]
    found = chain.from_iterable(backend.inspect(label) for label in labels) if labels else backend.inspect()
    report.unreadable = sum(isinstance(row, Unreadable) and not row.only_index for row in found)


def copy_store(
    source: Backend,
    target: Backend,
    *,
    user_ids: Sequence[str] = (),
    policy: ConflictPolicy = ConflictPolicy.NEWER,
    progress: Progress | None = None,
    secrets: Policy | Guard | None = None,
) -> TransferReport:
    """Copies the rows of ``source``, of these users or of all, into ``target``.

    Times and expiry are kept, and vectors too if the target has the same model or none; versions start anew. What is
    written to the source meanwhile may be missed: another run copies what differs. What is deleted at the source stays
    in the target. Secrets are redacted, or treated as ``secrets`` says. A target without a content key takes over the
    source's; the source's backups and exports are noted in it. Raises InvalidInput, StoreError; what was copied stays.
    """
    if source.name == target.name and source.capabilities.durable:
        raise InvalidInput("Source and target are the same store")
    report = TransferReport()
    writer = Writer(target, policy, report, secrets, operation="copy")
    writer.adopt_model(source.get_meta(EMBEDDING_META))
    # First: an interrupted copy must not leave a target with a key of its own, or users whose backups it cannot name.
    if key := source.get_meta(CONTENT_KEY_META):
        target.set_meta(CONTENT_KEY_META, key, is_first=True)
        report.has_other_key = target.get_meta(CONTENT_KEY_META) != key
    know_copies_of(source, target, user_ids)
    for portion in puts_of(source, user_ids, report, with_vectors=True):
        writer.write(portion)
        if progress:
            progress(report.read, max(report.total or 0, report.read))
    if source.capabilities.split != target.capabilities.split:
        put_in_place(target)
    return report


def reembed(
    url: str,
    embeddings: EmbeddingsSpec,
    progress: Progress | None = None,
    *,
    encryption_key: str | bytes | None = None,
    keys: KeySource = None,
) -> int:
    """Embeds all texts of the store at ``url`` that have no vector of this model, and returns their number.

    The store belongs to the new model from the start, so an interrupted run can be resumed: the next call, or opening
    the store with the model, embeds the rest. Raises ConfigurationError, EmbeddingMismatch, EmbeddingError, StoreError.
    """
    embedder = make_embedder(embeddings)
    if embedder is None:
        raise ConfigurationError("Name the embedding model, for example 'local' or 'openai:text-embedding-3-small'")
    backend = open_backend(url, encryption_key=encryption_key, keys=keys)
    audit_log = AuditLog(backend)

    def write(batch: Sequence[Write]) -> None:
        cause = Cause(at=datetime.now(UTC), operation="reembed", actor=Actor(kind="admin"), is_told=True)
        (outcome,) = audit_log.apply([batch], cause)
        if isinstance(outcome, Exception):
            raise outcome

    try:
        if backend.get_meta(EMBEDDING_META) == embedder.fingerprint:
            VectorSpace(backend, embedder)  # refuses another model behind the same name, whose texts look embedded
        embedder.embed_now([Passage("test")])
        backend.set_meta(EMBEDDING_META, embedder.fingerprint)
        backend.set_meta(DIMENSIONS_META, str(embedder.dimensions))
        without = (AUDIT, VERSIONS)  # what is beside memories has no vectors
        names = [name for name in backend.namespaces() if not {*name[1:2]}.intersection(without) and name[0] != SEALS]
        total = backend.count(names)
        done = 0
        while portion := backend.pending(embedder.fingerprint, EMBEDDING_PORTION):
            fill(backend, write, embedder, portion, with_tokens=True)
            done += len(portion)
            if progress:
                progress(done, total)
    finally:
        embedder.close()
        backend.close()
    return done
