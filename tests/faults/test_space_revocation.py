"""A role that one process takes away ends in the others."""

from __future__ import annotations

from typing import Any

from processes import CONTEXT, Forked
from space_process import answer

from inference_core import AgentMemoryStoreService, Space, Spaces, open_store
from inference_core.memory.spaces import REFRESH_S
from inference_core.testing import FrozenClock

ENG = Space("eng")
FACT, RULE = "Deploys happen at the harbour", "Ask Grace before deploying"


def test_another_process_notices_a_revoked_role_within_five_seconds(shared_url: str) -> None:
    """Also in the midst of a thread whose profile holds a memory of the space, and with a warm index."""
    ours, theirs = CONTEXT.Pipe()

    def tell(asked: str | float) -> Any:
        ours.send(asked)
        return ours.recv()

    with open_store(shared_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, spaces=Spaces(), clock=FrozenClock()).sync
        service.save_memory(ENG, FACT, "facts")
        service.save_memory(ENG, RULE, "instructions", pinned=True)
        service.save_memory("ada", "Ada deploys on Fridays", "facts")
        service.grant(ENG, "read", user="ada")
        process = Forked(answer, shared_url, theirs)
        theirs.close()
        for is_member in (True, False, True):
            (service.grant(ENG, "read", user="ada") if is_member else service.revoke(ENG, user="ada"))
            tell(REFRESH_S)
            prompt, found = tell("Who deploys, and where do deploys happen?")
            assert (FACT in prompt, RULE in prompt, FACT in found, RULE in found) == (is_member,) * 4
            assert "Ada deploys on Fridays" in found
        ours.send(None)
        assert process.end() == (0, [])
