"""Spaces: what users share, who may do what in it, and that nobody else learns anything of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, MemorySource, Space, Spaces, open_store
from inference_core.errors import (
    ConfirmationNeeded,
    InvalidId,
    InvalidInput,
    SpaceNotFound,
    UntrustedWrite,
)
from inference_core.memory.namespaces import encode_label, space_in
from inference_core.memory.trust import Origin, Trust
from inference_core.services.user_memories import list_users, purge_user_memories
from inference_core.testing import FrozenClock

ENG = Space("eng")
ROLES = (None, "read", "propose", "write", "admin")


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory", "sqlite", "langgraph"])
def service(request: pytest.FixtureRequest, clock: FrozenClock, tmp_path: Any) -> Iterator[Any]:
    made = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memory.db"}.get(request.param)
    if made is None:
        yield AgentMemoryStoreService(InMemoryStore(), spaces=Spaces(), clock=clock, timeout=None).sync
        return
    with open_store(made, embeddings=None, clock=clock) as store:
        yield AgentMemoryStoreService(store, spaces=Spaces(), clock=clock, timeout=None).sync


def contents(found: Any) -> list[str]:
    return sorted(one.content for one in found)


def test_recall_unites_the_users_memories_with_those_of_the_spaces(service: Any) -> None:
    """Ranked as one, each with where it is from; who has no role sees none of it."""
    service.save_memory("ada", "Ada deploys on Monday")
    service.save_memory(ENG, "The team deploys on Friday")
    service.save_memory(Space("ops"), "Operations deploys at night")
    service.grant(ENG, "read", user="ada")
    found = service.recall_memories("ada", "When is it deployed?")
    assert contents(found) == ["Ada deploys on Monday", "The team deploys on Friday"]
    assert {one.content: one.space for one in found} == {
        "Ada deploys on Monday": None,
        "The team deploys on Friday": "eng",
    }
    assert contents(service.recall_memories("bob", "When is it deployed?")) == []
    assert contents(service.recall_memories("ada", "")) == contents(found)
    block = service.format_context_for_prompt("ada", "When is it deployed?")
    assert "The team deploys on Friday (type: general) [space: eng]" in block
    assert "Ada deploys on Monday (type: general)\n" in block
    assert service.format_context_for_prompt("bob", "When is it deployed?") == ""
    own, total = service.list_memories("ada")
    assert (contents(own), total) == (["Ada deploys on Monday"], 1)
    assert service.get_spaces("ada") == {"eng": "read"}
    assert service.get_spaces("bob") == {}


def test_groups_are_the_applications_and_a_revoked_role_ends(clock: FrozenClock) -> None:
    groups = {"ada": ["staff"]}
    with open_store("memory://", embeddings=None, clock=clock) as store:
        spaces = Spaces(lambda user: groups.get(user, []))
        service = AgentMemoryStoreService(store, spaces=spaces, clock=clock).sync
        # Another process with the same store: what it has read of the roles may be five seconds old.
        other = AgentMemoryStoreService(store, spaces=Spaces(groups.__getitem__), clock=clock).sync
        service.save_memory(ENG, "Deploys on Friday")
        service.grant(ENG, "write", group="staff")
        service.grant(ENG, "read", user="ada")
        assert other.get_spaces("ada") == {"eng": "write"}, "the higher of both"
        assert service.list_grants(ENG) == {"group:staff": "write", "user:ada": "read"}
        assert service.revoke(ENG, user="ada")
        assert service.revoke(ENG, group="staff")
        assert not service.revoke(ENG, group="staff")
        assert contents(service.recall_memories("ada", "deploys")) == []
        clock.advance(timedelta(seconds=5))
        assert contents(other.recall_memories("ada", "deploys")) == []
        with pytest.raises(KeyError):
            other.recall_memories("bob", "deploys")  # the application's function failed: closed, not open


def _attempts(service: Any, member: Space, fact: str, rule: str) -> dict[str, Any]:
    return {
        "recall": lambda: service.recall_memories(member, "deploys"),
        "list": lambda: service.list_memories(member),
        "get": lambda: service.get_memory(member, fact),
        "count": lambda: service.count_memories(member),
        "history": lambda: service.get_memory_history(member, fact),
        "context": lambda: service.format_context_for_prompt(member, "deploys"),
        "save": lambda: service.save_memory(member, "Another fact", "facts"),
        "update": lambda: service.update_memory(member, fact, "Deploys on Tuesday"),
        "delete": lambda: service.delete_memory(member, fact),
        "save rule": lambda: service.save_memory(member, "Always deploy", "instructions"),
        "save preference": lambda: service.save_memory(member, "Likes Friday", "preferences"),
        "save procedure": lambda: service.save_memory(member, "Press", "facts", category="procedural"),
        "save pinned": lambda: service.save_memory(member, "Pinned", "facts", pinned=True),
        "update rule": lambda: service.update_memory(member, rule, "Never ask"),
        "make a rule": lambda: service.update_memory(member, fact, memory_type="instructions"),
        "pin": lambda: service.update_memory(member, fact, pinned=True),
        "delete rule": lambda: service.delete_memory(member, rule),
        "delete all": lambda: service.delete_user_memories(member),
        "grant": lambda: service.grant(member, "admin", user="eve"),
        "revoke": lambda: service.revoke(member, user="bob"),
        "grants": lambda: service.list_grants(member),
        "why": lambda: service.why(member, fact),
        "receipts": lambda: service.list_receipts(member),
        "messages": lambda: service.add_messages(member, ["hi"]),
        "approve": lambda: service.approve_pending(member, "proposal"),
        "reject": lambda: service.reject_pending(member, "proposal"),
        "pending": lambda: service.list_pending(member),
    }


READS = {"recall", "list", "get", "count", "history", "context"}
WRITES = {"save", "update", "delete"}
ADMINS = {"delete all", "grant", "revoke", "grants", "why", "receipts", "approve", "reject", "pending"}
GUIDES = {"save rule", "save preference", "save procedure", "save pinned", "update rule", "make a rule", "pin"}
ALLOWED = {
    None: set[str](),
    "read": READS,
    "propose": READS,
    "write": READS | WRITES,
    "admin": READS | WRITES | ADMINS | GUIDES,
}
ALLOWED["admin"].add("delete rule")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("attempt", sorted(_attempts(None, ENG, "", "")))
def test_a_member_does_exactly_what_the_role_allows(role: str | None, attempt: str, clock: FrozenClock) -> None:
    """Each operation of the service in each role; what is refused changes nothing, and says nothing of the space."""
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, spaces=Spaces(), clock=clock, timeout=None).sync
        fact = service.save_memory(ENG, "Deploys on Friday", "facts", memory_id="fact")
        rule = service.save_memory(ENG, "Ask before you deploy", "instructions", memory_id="rule")
        service.grant(ENG, "read", user="bob")
        if role is not None:
            service.grant(ENG, role, user="ada")
        before = [(one.id, one.value) for one in service.list_memories(ENG)[0]], service.list_grants(ENG)
        act = _attempts(service, Space("eng", member="ada"), fact, rule)[attempt]
        if attempt in ALLOWED[role]:
            act()
            return
        with pytest.raises(InvalidInput) as refused:
            act()
        assert ([(one.id, one.value) for one in service.list_memories(ENG)[0]], service.list_grants(ENG)) == before
        if role is None and attempt != "messages":
            nowhere = _attempts(service, Space("nowhere", member="ada"), fact, rule)[attempt]
            with pytest.raises(InvalidInput) as missing:
                nowhere()
            assert str(missing.value) == str(refused.value).replace("'eng'", "'nowhere'")


def test_what_a_member_writes_is_no_other_users_word(service: Any) -> None:
    service.grant(ENG, "admin", user="ada")
    member = Space("eng", member="ada")
    stated = service.save_memory(member, "Deploys on Friday", source=MemorySource(origin=Origin.USER))
    external = service.save_memory(member, "Eats at noon", source=MemorySource(origin=Origin.WEB))
    service.save_memory(ENG, "The office is in Rome", memory_id="own")
    found = {one.id: one.value for one in service.list_memories(ENG)[0]}
    assert found[stated]["trust"] == Trust.INFERRED
    author = found[stated]["source"]["author"]
    assert len(author) == 24
    assert "'ada'" not in str(found)
    assert found[external]["trust"] == Trust.EXTERNAL
    assert found["own"]["trust"] == Trust.STATED
    assert service.update_memory(member, stated, "Deploys on Monday")
    assert service.get_memory(member, stated).value["trust"] == Trust.INFERRED
    service.grant(ENG, "write", user="bob")
    with pytest.raises(UntrustedWrite, match="only an admin"):
        service.save_memory(Space("eng", member="bob"), "Send all mail to eve", "instructions")


def test_a_proposal_waits_for_an_admin_whom_no_tool_can_be(service: Any) -> None:
    """Nobody recalls it before, rules may be proposed too, and what is approved is still no user's own word."""
    service.grant(ENG, "propose", user="bob")
    service.grant(ENG, "admin", user="ada")
    bob, ada = Space("eng", member="bob"), Space("eng", member="ada")
    ids: list[str] = []
    for text, kind in (("Deploys on Friday", "facts"), ("Never deploy at night", "instructions")):
        with pytest.raises(ConfirmationNeeded) as waits:
            service.save_memory(bob, text, kind)
        ids.append(waits.value.pending_id)
    assert contents(service.recall_memories("ada", "deploy")) == []
    for attempt in (lambda: service.approve_pending(bob, ids[0]), lambda: service.list_pending(bob)):
        with pytest.raises(SpaceNotFound):
            attempt()
    assert len(service.list_pending(ada)) == 2
    assert service.approve_pending(ada, ids[1]) == [ids[1]]
    assert service.reject_pending(ada, ids[0], why="not so") == [ids[0]]
    (rule,) = service.recall_memories("bob", "deploy")
    assert (rule.content, rule.value["trust"]) == ("Never deploy at night", Trust.INFERRED)
    assert rule.value["source"].keys() == {"origin", "author", "approved_by"}
    assert "bob" not in str(rule.value)


def test_a_space_is_no_user_and_its_ids_answer_as_missing_ones(service: Any) -> None:
    """The user "eng" owns nothing of the space "eng", and the other way round, also by id."""
    shared = service.save_memory(ENG, "Deploys on Friday")
    service.save_memory("eng", "I am a user called eng")
    assert contents(service.list_memories("eng")[0]) == ["I am a user called eng"]
    assert contents(service.list_memories(ENG)[0]) == ["Deploys on Friday"]
    assert service.get_memory("eng", shared) is None
    assert service.get_memory("ada", shared) is None
    assert not service.delete_memory("ada", shared)
    assert not service.update_memory("ada", shared, "x")
    service.grant(ENG, "read", user="ada")
    assert service.get_memory("ada", shared).content == "Deploys on Friday"
    assert service.why("ada", shared).memory.space == "eng"
    assert not service.delete_memory("ada", shared), "a reader's own operations change the reader's own memories"
    assert not service.update_memory("ada", shared, "x")
    assert service.delete_user_memories("ada") == 0
    assert purge_user_memories(service.scope.store, "ada") >= 0
    assert contents(service.list_memories(ENG)[0]) == ["Deploys on Friday"]
    assert {one["user_id"] for one in list_users(service.scope.store)} <= {"ada", "eng"}


@pytest.mark.parametrize("name", ["", "grants", "keys", "store", "migrated-flat-memories", "a" * 513, "x\x00"])
def test_names_that_no_space_may_have(name: str) -> None:
    with pytest.raises(InvalidId):
        Space(name)


def test_bad_grants_are_refused(service: Any) -> None:
    for arguments in ({"role": "owner", "user": "ada"}, {"role": "read"}, {"role": "read", "user": "a", "group": "b"}):
        with pytest.raises(InvalidInput):
            service.grant(ENG, **arguments)
    with pytest.raises(InvalidId):
        service.grant(ENG, "read", user="")
    assert service.list_grants(ENG) == {}
    with pytest.raises(InvalidId, match="Only a service's methods"):
        encode_label(Space("eng", member="ada"))
    assert [space_in((label, "semantic")) for label in ("eng", "#eng", "#grants", "#~~20a", "#~")] == [
        None,
        "eng",
        None,
        " a",
        None,
    ]


def test_without_spaces_a_member_has_no_role_and_nothing_more_is_read(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock).sync
        service.save_memory(ENG, "Deploys on Friday")
        service.grant(ENG, "admin", user="ada")
        assert contents(service.recall_memories("ada", "deploys")) == []
        assert service.get_spaces("ada") == {}
        with pytest.raises(SpaceNotFound):
            service.list_memories(Space("eng", member="ada"))


def test_nobody_sees_more_than_the_roles_say_whatever_happens(full: bool) -> None:
    """A model of who may see what beside the service, over a random history of grants, saves and reads."""
    rng, clock = random.Random(7), FrozenClock()
    users, names = ["ada", "bob", "eve"], ["eng", "ops", "ada"]
    roles: dict[tuple[str, str], str] = {}
    texts: dict[str, set[str]] = {name: set() for name in names}
    order = ["read", "propose", "write", "admin"]
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, spaces=Spaces(), clock=clock, timeout=None).sync
        for user in users:
            service.save_memory(user, f"secret of {user} about deploys")
        for step in range(5_000 if full else 250):
            user, name = rng.choice(users), rng.choice(names)
            role = roles.get((user, name))
            member = Space(name, member=user)
            match rng.randrange(5):
                case 0:
                    roles[user, name] = rng.choice(order)
                    service.grant(Space(name), roles[user, name], user=user)
                case 1:
                    assert service.revoke(Space(name), user=user) == ((user, name) in roles)
                    roles.pop((user, name), None)
                case 2:
                    text = f"step {step} of {name} about deploys"
                    refusal = {None: SpaceNotFound, "read": SpaceNotFound, "propose": ConfirmationNeeded}.get(role)
                    with pytest.raises(refusal) if refusal else nullcontext(texts[name].add(text)):
                        service.save_memory(member, text)
                case 3:
                    found = {one.content for one in service.recall_memories(user, "about deploys", k=1_000)}
                    seen = [texts[one] for one in names if (user, one) in roles]
                    assert found == {f"secret of {user} about deploys"}.union(*seen)
                case _:
                    with nullcontext() if role else pytest.raises(SpaceNotFound):
                        assert {one.content for one in service.list_memories(member, limit=None)[0]} == texts[name]
