"""Exports a store to human-readable JSON Lines with checksums, and imports them.

The first line names the format and its version, the last one counts the rows; each row has a checksum of its own, and
the last line one of all. A file whose name ends in ``.gz`` is compressed.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import TextIOWrapper
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, Final, cast

from inference_core.effects import Progress
from inference_core.errors import InvalidInput, UnsupportedSchema, without_quotes
from inference_core.lifecycle.ledger import note_copy
from inference_core.memory.namespaces import (
    Namespace,
    encode_label,
    holds_memories,
    holds_pending,
    is_sidecar,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.text import encode_json, is_encodable, text_field
from inference_core.memory.trust import Trust, as_fact, guides, lowered, trust_of
from inference_core.memory.types import GUIDING_TYPES, MemoryCategory, MemoryType
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import (
    EMBEDDING_META,
    MAX_KEY_LENGTH,
    MAX_VALUE_BYTES,
    Backend,
    Expiry,
    Put,
    expiry_micros,
    from_micros,
    to_micros,
    unpack_value,
)
from inference_core.transfer.copying import PORTION, ConflictPolicy, TransferReport, Writer, puts_of

FORMAT: Final = "inference-core-memory"
VERSION: Final = 1
_LONGEST_LINE: Final = 64 * 1024 * 1024
_CHECKSUM: Final = 16
_MAX_LABELS: Final = 32
_STREAM: Final = Path("/dev/stdout")
"""What an erasure names instead of a file: nobody knows where an export went that was written to a stream."""


def put_to_json(put: Put, *, with_vectors: bool = False) -> dict[str, Any]:
    """``put`` as JSON data, without the version it expects. Times are microseconds; an import analyzes texts again."""
    document = put.document
    made: dict[str, Any] = {
        "namespace": list(put.namespace),
        "key": put.key,
        "kind": put.kind,
        "value": unpack_value(put.value),
        "created_at": None if put.created_at is None else to_micros(put.created_at),
        "updated_at": to_micros(put.updated_at),
    }
    if document:
        made |= {"text": document.text, "situation": list(document.situation)}
    if put.expiry:
        made["expiry"] = list(expiry_micros(put.expiry))
    if with_vectors and document and document.vector:
        tokens = base64.b85encode(document.tokens).decode() if document.tokens else None
        made["vector"] = [document.model, base64.b85encode(document.vector).decode(), tokens]
    return made


def put_from_json(stored: Any) -> Put:
    """The put that `put_to_json` wrote. Raises InvalidInput for anything else.

    A memory that claims more trust than its source earns gets its source's. A forgotten memory from outside that would
    guide an agent becomes a fact; one that is not forgotten waits for the user (see `import_store`).
    """
    try:
        created = stored["created_at"]
        expiry: Expiry | None = None
        if stored.get("expiry") is not None:
            ends, lasts = stored["expiry"]
            expiry = Expiry(from_micros(ends), timedelta(microseconds=lasts))
        namespace = tuple(_label(label) for label in stored["namespace"][: _MAX_LABELS + 1])
        value, kind = stored["value"], _text(stored["kind"])
        if (holds_memories(namespace) or is_sidecar(namespace)) and not holds_pending(namespace):
            value: Any = lowered(value)
            fields = cast("dict[str, Any]", value if type(value) is dict else {})
            if is_sidecar(namespace) and _guides_from_outside(fields, memory_namespace(namespace)):
                value, kind = as_fact(fields), MemoryType.FACTS.value if kind in GUIDING_TYPES else kind
                namespace = sidecar_namespace((namespace[0], MemoryCategory.SEMANTIC.value), namespace[1])
        key, encoded = _label(stored["key"]), _value(value)
        document: Document | None = None
        if "text" in stored:
            session, by_assistant, happened, importance = stored["situation"]
            moment = None if happened is None else float(happened)
            situation = DocumentMetadata(_text(session), bool(by_assistant), moment, float(importance))
            document = Document.of(_text(stored["text"]), situation)
            if "vector" in stored:
                model, vector, tokens = stored["vector"]
                packed = None if tokens is None else base64.b85decode(tokens)
                document = document._replace(model=_text(model), vector=base64.b85decode(vector), tokens=packed)
        put = Put(
            namespace=namespace,
            key=key,
            value=encoded,
            document=document,
            kind=kind,
            created_at=None if created is None else from_micros(created),
            updated_at=from_micros(stored["updated_at"]),
            expiry=expiry,
        )
        if not 0 < len(put.namespace) <= _MAX_LABELS:
            raise InvalidInput(f"a namespace must have 1 to {_MAX_LABELS} labels")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, binascii.Error) as error:
        raise InvalidInput(f"Not a stored memory: {without_quotes(error)}") from error
    return put


def _guides_from_outside(value: Mapping[str, Any], home: Namespace) -> bool:
    """Whether the stored memory would guide an agent, and is from outside."""
    return trust_of(value) <= Trust.EXTERNAL and guides(text_field(value, "memory_type"), home[1])


def _value(value: Any) -> str:
    if type(value) is not dict:
        raise TypeError("a value must be an object")
    encoded = encode_json(cast("dict[str, Any]", value), what="value")
    if len(encoded.encode()) > MAX_VALUE_BYTES:
        raise ValueError(f"a value may take {MAX_VALUE_BYTES} bytes")
    return encoded


def _label(value: Any) -> str:
    if not _text(value) or len(value) > MAX_KEY_LENGTH or "\x00" in value:
        raise ValueError(f"a label or key must have 1 to {MAX_KEY_LENGTH} characters without NUL")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not is_encodable(value):
        raise TypeError("text must be valid Unicode")
    return value


def export_store(
    backend: Backend,
    path: Path | IO[bytes],
    *,
    user_ids: Sequence[str] = (),
    with_vectors: bool = False,
    progress: Progress | None = None,
) -> TransferReport:
    """Writes the rows of ``backend``, of these users or of all, into the file ``path``, or an open one.

    A new file appears only once it is complete, and only its owner may read it. Vectors are left out unless asked for;
    an importing store makes them again. Deleted memories that can still be restored, and pending ones, are left out.
    Rows that cannot be read are left out and counted. Raises InvalidInput, StoreError, OSError.
    """
    report = TransferReport()
    total = hashlib.sha256()
    with _new_file(path, lambda part: note_copy(backend, "export that was interrupted", part, user_ids)) as file:
        model = backend.get_meta(EMBEDDING_META) if with_vectors else None
        file.write(_encoded({"format": FORMAT, "version": VERSION, "embedding": model}))
        for rows in puts_of(backend, user_ids, report, with_vectors=with_vectors):
            # Left out: what somebody deleted, and texts that updates replaced, which expire by themselves; and what
            # waits for the user, which is no memory yet.
            portion = [
                put
                for put in rows
                if not (put.expiry and is_sidecar(put.namespace)) and not holds_pending(put.namespace)
            ]
            for put in portion:
                row = put_to_json(put, with_vectors=with_vectors)
                encoded = _encoded(row)
                total.update(encoded.encode())
                file.write(_encoded({"row": row, "sha256": _checksum(encoded)}))
            report.read += len(portion)
            if progress:
                progress(report.read, max(report.total or 0, report.read))
        file.write(_encoded({"rows": report.read, "sha256": total.hexdigest()}))
    note_copy(backend, "export", path if isinstance(path, Path) else _STREAM, user_ids)
    report.written = report.read
    return report


def import_store(
    path: Path,
    backend: Backend,
    *,
    user_ids: Sequence[str] = (),
    policy: ConflictPolicy = ConflictPolicy.NEWER,
    progress: Progress | None = None,
    secrets: Policy | Guard | None = None,
) -> TransferReport:
    """Writes an export's rows, of these users or of all, to ``backend``; safe to repeat, to interrupt, beside writers.

    Secrets are redacted, or treated as ``secrets`` says. Rules, preferences and procedures from outside wait for the
    user: no store keeps such memories, so somebody has put them into the file.

    Raises InvalidInput for a file that is not an export, damaged or cut off, naming the line; UnsupportedSchema for one
    of a newer version; InvalidId, StoreError. The rows before the fault were written, and stay.
    """
    labels = frozenset(map(encode_label, user_ids))
    report = TransferReport()
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        writer = Writer(backend, policy, report, secrets)
        puts = _puts(cast("IO[str]", file), writer, path)
        wanted = (put for put in puts if not labels or put.namespace[0] in labels)
        while portion := list(islice(wanted, PORTION)):
            waiting = {
                id(put): put
                for put in portion
                if holds_memories(put.namespace) and _guides_from_outside(unpack_value(put.value), put.namespace)
            }
            writer.write([put for put in portion if id(put) not in waiting])
            for put in waiting.values():
                writer.propose(put)
            if progress:
                progress(report.read, report.read)
    report.total = report.read
    return report


def _puts(file: IO[str], writer: Writer, path: Path) -> Iterator[Put]:
    """The rows of the file. Raises InvalidInput after the last good row, UnsupportedSchema."""
    total = hashlib.sha256()
    rows = 0
    for number, found in enumerate(_objects(file, path), 1):
        if number == 1:
            version, model = found.get("version"), found.get("embedding")
            if found.get("format") != FORMAT:
                raise InvalidInput(f"{path} is not an export of this package")
            if not isinstance(version, int) or version > VERSION:
                raise UnsupportedSchema(f"{path} has version {version!r:.20}; this package reads up to {VERSION}")
            writer.adopt_model(model if isinstance(model, str) else None)
        elif "row" in found:
            row = _encoded(found["row"])
            if found.get("sha256") != _checksum(row):
                raise InvalidInput(f"{path} is damaged in line {number}: its checksum does not match")
            total.update(row.encode())
            rows += 1
            try:
                yield put_from_json(found["row"])
            except InvalidInput as error:
                raise InvalidInput(f"{path}, line {number}: {error}") from error
        elif found == {"rows": rows, "sha256": total.hexdigest()}:
            return
        else:
            raise InvalidInput(f"{path} is damaged: it ends with {found.get('rows')!r:.20} rows, and {rows} were read")
    raise InvalidInput(f"{path} is cut off after {rows} rows; they were imported, the rest is missing")


def _objects(file: IO[str], path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the file, each of which is a JSON object."""
    for number in count(1):
        try:
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            found = json.loads(line)
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{path} is damaged, or not an export of this package: line {number} is not text"
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidInput(f"{path} cannot be read further: {error}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is damaged or cut off in line {number}: it is not JSON") from error
        if not isinstance(found, dict):
            raise InvalidInput(f"{path} is not an export of this package: line {number} is not an object")
        yield cast("dict[str, Any]", found)


def _encoded(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n"


def _checksum(row: str) -> str:
    return hashlib.sha256(row.encode()).hexdigest()[:_CHECKSUM]


@contextmanager
def _new_file(path: Path | IO[bytes], note: Callable[[Path], None]) -> Generator[IO[str]]:
    """The file to write; ``path`` is there only once it is complete and on disk.

    Until then it has another name, which ``note`` is called with: an erasure must name it if this process is killed.
    """
    if not isinstance(path, Path):
        stream = TextIOWrapper(path, encoding="utf-8", newline="\n")  # pyright: ignore[reportArgumentType] - bytes are written
        try:
            yield stream
        finally:
            stream.detach()  # flushes it, and leaves what the caller has opened open
        return
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # it may be readable by others, or a link to another file
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            note(part)
            binary = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if path.suffix == ".gz" else raw
            with TextIOWrapper(binary, encoding="utf-8", newline="\n") as file:  # pyright: ignore[reportArgumentType] - GzipFile is one
                yield file
                file.flush()
                if binary is not raw:
                    binary.close()
                raw.flush()
                os.fsync(raw.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
