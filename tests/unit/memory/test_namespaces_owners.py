"""Marks that recognize a user without naming the user."""

from __future__ import annotations

import pytest

from inference_core import resolve_user
from inference_core.errors import IdentityError
from inference_core.memory.namespaces import is_owner, owner_mark

IDS = ["ada", "ada@example.com", "Ägnes", "owner:ada", "owner:0123456789abcdef:0", "\ud800", "a" * 600]


@pytest.mark.parametrize("user", IDS)
def test_a_mark_is_of_one_user_and_does_not_say_which(user: str) -> None:
    mark = owner_mark(user)
    assert user not in mark
    assert mark != owner_mark(user)  # nor that two threads are of the same user
    assert [one for one in IDS if is_owner(mark, one)] == [user]
    assert is_owner(user, user)  # as earlier versions kept it
    assert not is_owner(None, user)
    assert not is_owner("", user)


def test_a_mark_is_nobodys_user_id() -> None:
    """Who sees a mark in a stream and takes it for a user id gets nothing of the user."""
    mark = owner_mark("ada")
    assert not is_owner(mark, mark)
    with pytest.raises(IdentityError, match="another user"):
        resolve_user(None, mark, owner=mark)
    assert resolve_user(None, "ada", owner=mark) == "ada"


def test_nobody_is_marked_as_nobody() -> None:
    assert owner_mark("") == ""
    assert is_owner("", "")
    assert not is_owner(owner_mark("ada"), "")
