"""Every error that the package raises, as one tree.

InferenceCoreError
├── InvalidInput (ValueError)            an argument is invalid
│   ├── InvalidMemory                    content, metadata or id of a memory
│   │   ├── InvalidMemoryType            also an AssertionError: older callers catch either
│   │   └── SecretFound                  the text holds a secret, and the store is set to reject those
│   ├── InvalidCategory
│   ├── SpaceNotFound                    no space of this name in which the user has the needed role
│   ├── InvalidId                        a user id, an agent's name or a space's name
│   ├── InvalidFilter
│   └── UntrustedWrite                   the source of the text may not write this kind of memory
│       └── ConfirmationNeeded           it waits for the user's confirmation
├── ConfigurationError (ValueError)      the developer has to change the set-up
│   ├── MissingExtra (ImportError)       an optional dependency is not installed
│   └── EmbeddingMismatch                the store holds vectors of another model
├── ReadOnlyMemory (TypeError)           a memory block is read-only
├── BlockFailed                          a memory block of the application raised
├── MemoryNotFound (LookupError)         no memory with this id in the scopes that the caller may read
├── IdentityError (PermissionError)      there is no user ID, or two contradict each other
├── EmbeddingError                       the embedding model failed
├── ModelError                           the chat model failed
└── StoreError                           the store could not do what was asked
    ├── VersionConflict                  the memory is not at the expected version
    ├── SealError                        a sealed row was moved, swapped or changed, or its key is unknown
    ├── Held                             a legal hold keeps it; nothing was removed
    ├── UserErased                       the user is being erased, or was during this operation
    ├── UnsupportedSchema                the data was written by a newer version of this package
    ├── ReadOnlyStore                    the store was opened read-only
    ├── QuotaExceeded                    the user or the agent has as much as allowed, or writes too often
    ├── SeveralOwners                    one batch has rows of several users, which lie on different servers
    ├── ScopeTooLarge                    a scope of another library's store is too large to rank in this process
    └── StoreUnavailable                 the store failed or cannot be reached
        ├── DeadlineExceeded (TimeoutError)  the caller's time is up; nothing was written
        ├── StoreBusy                    the store answers, but others hold what the call needs
        └── WriteUnknown                 a write was sent and not confirmed; retry it under the same id
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

_MAX_REASON: Final = 200
_MAX_READ: Final = 2_000
_QUOTED: Final = re.compile(r"""'[^']{25,}(?:'|$)|"[^"]{25,}(?:"|$)|[{\[(][^{\[(]{0,5}['"b].*""")
"""Matches quoted values, and whatever looks like data; not short quotations, such as names of tables and files."""


class InferenceCoreError(Exception):
    """Base of all errors of this package."""


class InvalidInput(InferenceCoreError, ValueError):
    """An argument is invalid; nothing was changed."""


class InvalidMemory(InvalidInput):
    """The content, the metadata or the id of a memory cannot be stored."""


class InvalidMemoryType(InvalidMemory, AssertionError):
    """The memory type is not one of the known ones."""


class SecretFound(InvalidMemory):
    """The text holds a secret that the store is set to reject; nothing was stored. ``kinds`` names what it holds."""

    def __init__(self, kinds: tuple[str, ...], what: str = "it") -> None:
        super().__init__(f"Not stored: {what} contains a secret ({', '.join(kinds)}); leave that out")
        self.kinds = kinds


class InvalidCategory(InvalidInput):
    """The memory category is not one of the known ones."""


class SpaceNotFound(InvalidInput):
    """The user has no such role in a space of this name; the error does not tell whether the space exists."""

    def __init__(self, name: str, role: str) -> None:
        super().__init__(f"There is no space {name[:80]!r} in which this user has the role {role!r}")


class InvalidId(InvalidInput):
    """The user id, agent name or space name is empty, too long, reserved or not valid text."""


class InvalidFilter(InvalidInput):
    """The filter has an unknown key or operator, or a value that cannot be compared."""


class UntrustedWrite(InvalidInput):
    """The memory may not be stored or changed; the message says why.

    The user, or an admin of the space, has rejected these words before, or has too many memories to confirm. Or an
    update without a ``source`` would turn a memory from a tool, a document or the web into a procedural one. Or a
    member of a space who is not an admin would change what guides its agents.
    """


class ConfirmationNeeded(UntrustedWrite):
    """The memory is not stored, but waits under ``pending_id`` until the user, or an admin of its space, confirms it.

    ``is_external``: it waits because its text comes from a tool, a document or the web, not from the user.
    """

    def __init__(self, pending_id: str, why: str, *, is_external: bool, reviewer: str = "the user") -> None:
        super().__init__(
            f"Not saved yet: {why}. It waits until {reviewer} confirms it, with inference-core review or in the "
            "application; no tool can do that. Do not retry"
        )
        self.pending_id = pending_id
        self.is_external = is_external


class ConfigurationError(InferenceCoreError, ValueError):
    """The set-up is wrong; the message says what to change."""


class MissingExtra(ConfigurationError, ImportError):
    """An optional dependency is missing; the message holds the line that installs it, and what ``also`` is needed."""

    def __init__(self, feature: str, extra: str, also: str = "") -> None:
        super().__init__(f"{feature} needs an extra: pip install 'inference-core-memory[{extra}]'{also}")


class EmbeddingMismatch(ConfigurationError):
    """The store's vectors were made by another embedding model; the message names the re-embed command."""


class ReadOnlyMemory(InferenceCoreError, TypeError):
    """The memory block is read-only; nothing was changed."""


class BlockFailed(InferenceCoreError):
    """A memory block of the application raised; the message names the block, ``__cause__`` is its exception."""


class MemoryNotFound(InferenceCoreError, LookupError):
    """There is no memory with this id in the scopes that the caller may read."""

    def __init__(self, memory_id: str) -> None:
        super().__init__(f"No memory with id {memory_id!r}")
        self.memory_id = memory_id


class IdentityError(InferenceCoreError, PermissionError):
    """There is no user ID, or two sources contradict each other; nothing was read or written."""


class EmbeddingError(InferenceCoreError):
    """The embedding model failed or returned no usable vectors."""


class ModelError(InferenceCoreError):
    """The chat model was not reached, refused the request or gave no usable answer; earlier saves stay."""


class StoreError(InferenceCoreError):
    """The store could not do what was asked."""


class VersionConflict(StoreError):
    """The memory's version is not the expected one; nothing was changed."""


class SealError(StoreError):
    """A sealed row cannot be opened: it was moved, swapped, cut or changed, or the key store does not have its key.

    ``reason`` says which, without naming the row.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Held(StoreError):
    """A legal hold keeps what was to be removed; nothing was changed. ``holds`` are the ids of the holds.

    The message gives no reason, as its reader may be the person whom the hold is about.
    """

    def __init__(self, holds: Sequence[str]) -> None:
        super().__init__(f"Not removed: a legal hold keeps it ({', '.join(holds)}); do not retry")
        self.holds = tuple(holds)


class UserErased(StoreError):
    """The write began before an erasure of its user ended; nothing was written. Later writes are accepted."""

    def __init__(self, whose: str = "The user was erased") -> None:
        super().__init__(f"{whose} during this operation; nothing was written. Save it again if it is new")


class UnsupportedSchema(StoreError):
    """The data was written by a newer version of this package; update the package to read it."""


class ReadOnlyStore(StoreError):
    """The store was opened read-only; nothing was changed."""


class QuotaExceeded(StoreError):
    """The user, or one of the user's agents, has reached a limit of the quota; nothing was changed.

    ``kind`` is ``memories``, ``bytes`` or ``writes a minute``, ``used`` the figure before the write, ``limit`` the
    limit, and ``agent`` the agent whose limit it is (None: the user's). A retry helps only with ``writes a minute``,
    after a minute.
    """

    def __init__(self, kind: str, used: int, limit: int, *, agent: str | None = None) -> None:
        whose = " of this agent" if agent else ""
        if kind in ("memories", "bytes"):
            told = f"Memory is full: {used:,} of {limit:,} {kind}{whose}; update or forget memories; do not retry"
        else:
            told = f"Too many writes: the limit is {limit:,} {kind}{whose}; retry in a minute"
        super().__init__(told)
        self.kind, self.used, self.limit, self.agent = kind, used, limit, agent


class SeveralOwners(StoreError):
    """One batch would write rows of several users, which may lie on different servers; nothing was changed."""


class ScopeTooLarge(StoreError):
    """A scope of another library's store has more memories than can be ranked in this process. Listing them works."""


class StoreUnavailable(StoreError):
    """The store failed or cannot be reached."""


class DeadlineExceeded(StoreUnavailable, TimeoutError):
    """The operation took longer than the caller's timeout; a write was not yet sent to the database."""


class StoreBusy(StoreUnavailable):
    """The store works, but other callers hold a lock or connection that this call needs; try again."""


class WriteUnknown(StoreUnavailable):
    """The write was sent and not confirmed: it may or may not be stored. Retry it under the same id."""


@contextmanager
def raised_as(
    ours: Callable[[Exception], Exception], *, but: type[Exception] | tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Converts what its body raises: any exception except those of ``but`` is raised as ``ours(error)``, caused by it.

    Providers and applications raise errors of their own; callers of this package get those of this module.
    """
    try:
        yield
    except Exception as error:  # each provider and each application raises errors of its own
        if isinstance(error, but):
            raise
        raise ours(error) from error


@contextmanager
def only_warned(log: logging.Logger, message: str) -> Generator[None]:
    """Logs an exception of its body as a warning, instead of raising it. ``message`` has one ``%s``, for the error."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - what runs outside goes on, whatever it is
        log.warning(message, error)


def cannot_read(path: object, error: OSError | UnicodeError) -> InvalidInput:
    """The error for a file that cannot be read, with the reason alone: neither a number nor the path once more."""
    return InvalidInput(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}")


def in_one_line(error: BaseException) -> str:
    """The message of ``error`` on one line of at most 200 characters."""
    return " ".join(str(error).split())[:_MAX_REASON]


def without_quotes(error: BaseException) -> str:
    """The message of ``error``, of a database or a parser, without what it quotes: that may be somebody's memory.

    The error's class and first line, without longer quotations and all that follows an opening bracket of data.
    """
    first = str(error).partition("\n")[0][:_MAX_READ]
    said = " ".join(_QUOTED.sub("…", first).split())[:_MAX_REASON]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
