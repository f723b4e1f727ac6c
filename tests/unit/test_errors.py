"""The tree of errors."""

from __future__ import annotations

import inspect

import pytest

from inference_core import errors
from inference_core.errors import (
    BlockFailed,
    ConfigurationError,
    ConfirmationNeeded,
    DeadlineExceeded,
    EmbeddingError,
    EmbeddingMismatch,
    IdentityError,
    InferenceCoreError,
    InvalidCategory,
    InvalidFilter,
    InvalidId,
    InvalidInput,
    InvalidMemory,
    InvalidMemoryType,
    MemoryNotFound,
    MissingExtra,
    ModelError,
    ReadOnlyMemory,
    ReadOnlyStore,
    ScopeTooLarge,
    SecretFound,
    StoreError,
    StoreUnavailable,
    UnsupportedSchema,
    UntrustedWrite,
    VersionConflict,
    WriteUnknown,
    without_quotes,
)


def test_every_error_is_in_the_tree():
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass) if found.__module__ == errors.__name__]
    assert len(classes) == 34
    assert all(issubclass(found, InferenceCoreError) and found.__doc__ for found in classes)


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (InvalidInput, (InferenceCoreError, ValueError)),
        (InvalidMemory, (InvalidInput,)),
        (InvalidMemoryType, (InvalidMemory, ValueError, AssertionError)),
        (SecretFound, (InvalidMemory,)),
        (InvalidCategory, (InvalidInput,)),
        (InvalidId, (InvalidInput,)),
        (InvalidFilter, (InvalidInput,)),
        (UntrustedWrite, (InvalidInput,)),
        (ConfirmationNeeded, (UntrustedWrite,)),
        (ConfigurationError, (InferenceCoreError, ValueError)),
        (MissingExtra, (ConfigurationError, ImportError)),
        (EmbeddingMismatch, (ConfigurationError,)),
        (ReadOnlyMemory, (InferenceCoreError, TypeError)),
        (BlockFailed, (InferenceCoreError,)),
        (MemoryNotFound, (InferenceCoreError, LookupError)),
        (IdentityError, (InferenceCoreError, PermissionError)),
        (EmbeddingError, (InferenceCoreError,)),
        (ModelError, (InferenceCoreError,)),
        (VersionConflict, (StoreError,)),
        (UnsupportedSchema, (StoreError,)),
        (ReadOnlyStore, (StoreError,)),
        (ScopeTooLarge, (StoreError,)),
        (StoreUnavailable, (StoreError,)),
        (DeadlineExceeded, (StoreUnavailable, TimeoutError)),
        (WriteUnknown, (StoreUnavailable,)),
    ],
)
def test_an_error_can_be_caught_as_each_of_its_bases(error: type[Exception], bases: tuple[type[Exception], ...]):
    assert all(issubclass(error, base) for base in bases)


def test_a_missing_extra_says_how_to_install_it():
    message = str(MissingExtra("embeddings='local'", "local"))
    assert message == "embeddings='local' needs an extra: pip install 'inference-core-memory[local]'"


def test_a_missing_memory_is_named():
    error = MemoryNotFound("m'1")
    assert error.memory_id == "m'1"
    assert str(error) == 'No memory with id "m\'1"'


@pytest.mark.parametrize(
    "text",
    [
        "Could not decode to UTF-8 column 'value' with text '{\"content\":\"PRIVATE tea\"}'",
        "Could not decode to UTF-8 column 'value' with text '{\"content\":\"PRIVATE and cut off",
        "duplicate key value violates unique constraint\nDETAIL:  Key (content)=(PRIVATE) already exists.",
        'E11000 duplicate key error, dup key: { _id: \'["ada","semantic","PRIVATE"]\' }',
        "Invalid isoformat string: 'PRIVATE likes tea in the morning'",
    ],
)
def test_what_a_database_quotes_is_not_repeated(text: str):
    said = without_quotes(ValueError(text))
    assert "PRIVATE" not in said
    assert said.startswith(f"ValueError: {text[:14]}")


def test_what_a_database_says_is_kept():
    assert without_quotes(OSError("no such table: 'memory_rows' (1)")) == "OSError: no such table: 'memory_rows' (1)"
    assert without_quotes(KeyError()) == "KeyError"
