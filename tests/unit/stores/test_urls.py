"""What a store's URL says."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import ConfigurationError
from inference_core.stores.factory import open_backend
from inference_core.stores.urls import StoreUrl, parse_url, shown_url, url_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///a.db", StoreUrl("sqlite", Path("a.db"))),
        ("sqlite+aiosqlite:////tmp/a%20b.db?x=1", StoreUrl("sqlite", Path("/tmp/a b.db"))),
        ("sqlite:///a.db?mode=ro", StoreUrl("sqlite", Path("a.db"), read_only=True)),
        ("sqlite://", StoreUrl("memory")),
        ("sqlite:///:memory:", StoreUrl("memory")),
        ("memory://", StoreUrl("memory")),
        ("file:///my%20memories", StoreUrl("file", Path("my memories"))),
        ("file:////srv/m?compress=zstd", StoreUrl("file", Path("/srv/m"), "zstd")),
        ("postgresql+asyncpg://u:p@h/d", StoreUrl("postgresql")),
    ],
)
def test_the_parts_of_a_url(url: str, expected: StoreUrl):
    assert parse_url(url) == expected


@pytest.mark.parametrize("path", ["a%20b.db", "/tmp/100%", "what?mode=ro", "a b#c", "\udcff"])
def test_a_path_of_any_name_has_a_url(path: str):
    assert parse_url(url_of("sqlite", Path(path))) == StoreUrl("sqlite", Path(path))


@pytest.mark.parametrize(
    "url", ["", "memory.db", "sqlite:memory.db", "sqlite://memory.db", "sqlite:///", "file:///", "file://x", None, 5]
)
def test_what_is_no_url_is_refused(url: Any):
    with pytest.raises(ConfigurationError, match="URL"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory.db", "memory.db"),
        ("ada:secret@host/db", "ada:***@host/db"),
        ("postgresql:/ada:secret@host/db", "postgresql:***@host/db"),
        ("sqlite://ada:secret@memory.db", "sqlite://ada:***@memory.db"),
        ("file://ada:secret@memories", "file://ada:***@memories"),
        # Regression: PostgreSQL's own form of a connection, with names and values, was shown whole.
        ("host=h password=secret user=ada", "host=h password=*** user=ada"),
        (r"user=ada password = 'my \'secret' host=h", "user=ada password=*** host=h"),
        ("Server=h;Uid=ada;Pwd=secret;", "Server=h;Uid=ada;Pwd=***;"),
        ("passwd=secret", "passwd=***"),
    ],
)
def test_a_bad_url_is_shown_without_its_password(url: str, shown: str):
    """Guards the message: it names what was given, so that one sees the slip, and never a password."""
    with pytest.raises(ConfigurationError) as raised:
        parse_url(url)
    assert str(raised.value).endswith(f", not {shown!r}")


def test_an_at_sign_in_a_path_is_no_password():
    assert shown_url("sqlite:///a:b@c/memory.db") == "sqlite:///a:b@c/memory.db"
    assert shown_url("a@b/memory.db") == "a@b/memory.db"


def test_the_file_is_the_one_that_the_store_opens(tmp_path: Path):
    with closing(open_backend(f"sqlite:///{tmp_path}/a%20b.db?cache=x")) as backend:
        assert backend.name == f"sqlite:///{tmp_path}/a b.db"
