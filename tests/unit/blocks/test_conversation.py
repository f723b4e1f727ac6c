"""Whose conversation a session is."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from inference_core.errors import ConfigurationError, IdentityError, InvalidId
from inference_core.short_term.blocks.memory import Conversation, Owners

ID = UUID("12345678-1234-5678-1234-567812345678")


def test_the_user_is_fixed_or_found_by_session():
    assert Owners("ada").conversation("s1") == Conversation("ada", "s1")
    assert Owners(owner={"s1": "ada"}.get).conversation("s1") == Conversation("ada", "s1")
    assert Owners(ID).conversation(ID) == Conversation(str(ID), str(ID))


@pytest.mark.parametrize("nobody", [None, ""], ids=["none", "empty"])
def test_a_session_of_nobody_is_closed(nobody: Any):
    with pytest.raises(IdentityError, match="'s1'"):
        Owners(owner=lambda _: nobody).conversation("s1")


def test_there_has_to_be_one_source():
    with pytest.raises(ConfigurationError, match="Whose memory is it"):
        Owners().conversation("s1")
    with pytest.raises(ConfigurationError, match="not both"):
        Owners("ada", {"s1": "ada"}.get)


def test_ids_that_cannot_be_ones_are_refused():
    with pytest.raises(InvalidId):
        Owners("")
    with pytest.raises(InvalidId, match="session_id"):
        Owners("ada").conversation("")
    with pytest.raises(InvalidId):
        Owners(owner=lambda _: "a\x00").conversation("s1")
