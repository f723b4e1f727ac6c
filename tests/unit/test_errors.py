"""The tree of errors."""

from __future__ import annotations

import inspect

import pytest

from inference_core import errors
from inference_core.errors import (
    BlockFailed,
    ConfigurationError,
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
    StoreError,
    StoreUnavailable,
    UnsupportedSchema,
    UntrustedWrite,
    VersionConflict,
    WriteUnknown,
)


def test_every_error_is_in_the_tree():
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) == 25
    assert all(issubclass(found, InferenceCoreError) and found.__doc__ for found in classes)


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (InvalidInput, (InferenceCoreError, ValueError)),
        (InvalidMemory, (InvalidInput,)),
        (InvalidMemoryType, (InvalidMemory, ValueError, AssertionError)),
        (InvalidCategory, (InvalidInput,)),
        (InvalidId, (InvalidInput,)),
        (InvalidFilter, (InvalidInput,)),
        (UntrustedWrite, (InvalidInput,)),
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
