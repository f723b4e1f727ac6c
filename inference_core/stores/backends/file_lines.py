"""Lines of a journal as bytes: readable, or compressed and encrypted. And the names of the files that they stand in.

A line is bound to its place (file, generation and number), so that one that was moved or changed is noticed: of
readable and compressed lines by a checksum, against accidents; of encrypted ones by AES-256-GCM, against tampering.
"""

from __future__ import annotations

import hmac
import os
import re
from base64 import b64decode
from hashlib import blake2b, sha256
from typing import Any, Final, Protocol

from inference_core.errors import ConfigurationError, MissingExtra

KEY_BYTES: Final = 32
_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])", re.ASCII)
_DIGEST_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_SUM: Final = b',"sum":"'
_SUM_BYTES: Final = len(_SUM) + 2 * _DIGEST_BYTES + len(b'"}')


class Lines(Protocol):
    """How the lines of a store are written."""

    @property
    def suffix(self) -> str:
        """How the names of its files end."""
        ...

    def file_name(self, label: str) -> str:
        """The name of a root label's file; different labels give different names, also where case is ignored."""
        ...

    def seal(self, body: bytes, place: bytes) -> bytes:
        """A JSON object as a line for ``place``, without the line end."""
        ...

    def unseal(self, line: bytes, place: bytes) -> bytes:
        """What `seal` was given. Raises ValueError if the line was not made by it for this place."""
        ...


class ReadableLines:
    """JSON Lines; the last member of each object is its checksum."""

    suffix = ".jsonl"

    def file_name(self, label: str) -> str:
        """Plain labels stay readable; of others there is the readable part and a hash."""
        return _readable_name(label) + self.suffix

    def seal(self, body: bytes, place: bytes) -> bytes:
        """``body`` with its checksum."""
        return body[:-1] + self._sum(body, place)

    def unseal(self, line: bytes, place: bytes) -> bytes:
        """The body, whose checksum is right."""
        body = line[:-_SUM_BYTES] + b"}"
        if line[-_SUM_BYTES:] != self._sum(body, place):
            raise ValueError("the checksum is wrong")
        return body

    def _sum(self, body: bytes, place: bytes) -> bytes:
        return _SUM + _digest(body, place).hex().encode() + b'"}'


class CompressedLines:
    """Each line by itself through Zstandard (RFC 8878), with a checksum. Raises MissingExtra."""

    suffix = ".journal"

    def __init__(self) -> None:
        try:
            import zstandard  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingExtra("Compression of a file store", "file") from error
        self._zstandard: Any = zstandard

    def file_name(self, label: str) -> str:
        """Plain labels stay readable."""
        return _readable_name(label) + self.suffix

    def seal(self, body: bytes, place: bytes) -> bytes:
        """``body`` in fewer bytes."""
        packed = self.compressed(body)
        return _without_line_ends(packed + _digest(packed, place))

    def unseal(self, line: bytes, place: bytes) -> bytes:
        """The body, whose checksum is right."""
        payload = _with_line_ends(line)
        packed, digest = payload[:-_DIGEST_BYTES], payload[-_DIGEST_BYTES:]
        if digest != _digest(packed, place):
            raise ValueError("the checksum is wrong")
        return self.expanded(packed)

    def compressed(self, body: bytes) -> bytes:
        """``body`` as one frame."""
        return self._zstandard.ZstdCompressor().compress(body)

    def expanded(self, packed: bytes) -> bytes:
        """The content of a frame. Raises ValueError."""
        try:
            return self._zstandard.ZstdDecompressor().decompress(packed)
        except self._zstandard.ZstdError as error:
            raise ValueError(f"it cannot be expanded: {error}") from error


class EncryptedLines:
    """Each line with AES-256-GCM (NIST SP 800-38D) under a random nonce; names of files tell nothing about users.

    The keys for lines, names and `check` are derived from ``key`` and the store's ``salt``. Raises MissingExtra.
    """

    suffix = ".journal"

    def __init__(self, key: bytes, salt: bytes, packing: CompressedLines | None = None) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra("Encryption of a file store", "file") from error
        self._cipher = AESGCM(_derived(key, salt, "lines"))
        self._invalid = InvalidTag
        self._names = _derived(key, salt, "names")
        self.check = _derived(key, salt, "check").hex()
        self._packing = packing

    def file_name(self, label: str) -> str:
        """A keyed hash of the label."""
        return hmac.digest(self._names, _bytes_of(label), "sha256").hex()[:40] + self.suffix

    def seal(self, body: bytes, place: bytes) -> bytes:
        """``body``, encrypted for this place."""
        nonce = os.urandom(_NONCE_BYTES)
        packed = self._packing.compressed(body) if self._packing else body
        return _without_line_ends(nonce + self._cipher.encrypt(nonce, packed, place))

    def unseal(self, line: bytes, place: bytes) -> bytes:
        """The body, if it was encrypted with this key for this place."""
        payload = _with_line_ends(line)
        try:
            packed = self._cipher.decrypt(payload[:_NONCE_BYTES], payload[_NONCE_BYTES:], place)
        except self._invalid as error:
            raise ValueError("it was not encrypted with this key for this place") from error
        return self._packing.expanded(packed) if self._packing else packed


def parse_key(given: str | bytes) -> bytes:
    """32 bytes, given as they are or in base64 or hexadecimal. Raises ConfigurationError, which does not repeat it."""
    try:
        key = given if isinstance(given, bytes) else _decoded(given.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            "The encryption key must be 32 random bytes in base64 or hexadecimal; make one with: "
            'python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return key


def _decoded(text: str) -> bytes:
    if len(text) == 2 * KEY_BYTES:
        return bytes.fromhex(text)
    return b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _readable_name(label: str) -> str:
    if _PLAIN_NAME.fullmatch(label) and not _DEVICES.fullmatch(label):
        return label
    shown = re.sub(r"[^a-z0-9]+", "-", label.lower(), flags=re.ASCII)[:24].strip("-")
    return f"{shown}~{sha256(_bytes_of(label)).hexdigest()[:40]}"


def _bytes_of(label: str) -> bytes:
    return label.encode(errors="surrogatepass")


def _digest(body: bytes, place: bytes) -> bytes:
    return blake2b(place + b"\n" + body, digest_size=_DIGEST_BYTES).digest()


def _derived(key: bytes, salt: bytes, purpose: str) -> bytes:
    return hmac.digest(key, b"inference_core file store\0" + salt + purpose.encode(), "sha256")


def _without_line_ends(payload: bytes) -> bytes:
    return payload.replace(b"\x1b", b"\x1be").replace(b"\n", b"\x1bn")


def _with_line_ends(line: bytes) -> bytes:
    payload = line.replace(b"\x1bn", b"\n").replace(b"\x1be", b"\x1b")
    if _without_line_ends(payload) != line:
        raise ValueError("it is cut within a byte")
    return payload
