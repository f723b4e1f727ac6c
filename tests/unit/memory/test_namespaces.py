"""Owners as namespace labels, and which scopes an agent writes and reads."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any
from uuid import UUID

import pytest
from support import each, expanded, load

from inference_core.errors import InvalidCategory, InvalidId, InvalidMemoryType
from inference_core.memory.namespaces import (
    FORGOTTEN,
    MAX_ID_BYTES,
    MEMORIES_STORE_NAME,
    USAGE,
    MemoryNamespaceBuilder,
    Namespace,
    agent_in,
    decode_label,
    encode_label,
    holds_forgotten,
    holds_memories,
    is_sidecar,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPES, MemoryCategory, get_category_for_type

ENTRIES = load("hostile_ids.json")
USER = "u1"


def _labels() -> dict[str, str]:
    labels: dict[str, str] = {}
    for entry in ENTRIES:
        owner = expanded(entry["id"])
        try:
            labels[str(owner)] = encode_label(owner)  # a number is the same user as its digits
        except InvalidId:
            continue
    return labels


def _all_scopes(user: str, agent: str | None) -> set[Namespace]:
    builder = MemoryNamespaceBuilder(agent_name=agent)
    written = {builder.namespace_for(user, category) for category in MemoryCategory}
    return written | set(builder.read_scopes(user)) | {builder.legacy_namespace(user)}


@each(ENTRIES)
def test_a_hostile_id_is_refused_or_survives_a_round_trip(entry: dict[str, Any]):
    owner = expanded(entry["id"])
    try:
        label = encode_label(owner)
    except InvalidId:
        assert not entry["plain"]
        return
    assert decode_label(label) == str(owner)
    assert label.isascii()
    assert label
    assert "." not in label
    assert "/" not in label
    assert (label == owner) == (entry["plain"] and owner != "langgraph")


def test_different_ids_have_different_labels():
    labels = _labels()
    assert len(labels) > 60
    assert len(set(labels.values())) == len(labels)


def test_no_namespace_of_one_user_is_a_prefix_of_another_users():
    owners = list(_labels())
    namespaces = {owner: _all_scopes(owner, owner) for owner in owners}
    clashes = [
        (one, other)
        for one, other in combinations(owners, 2)
        for mine, yours in product(namespaces[one], namespaces[other])
        if mine[: len(yours)] == yours[: len(mine)]
    ]
    assert clashes == []


def test_agents_with_similar_names_have_disjoint_own_scopes():
    owners = list(_labels())
    own = [MemoryNamespaceBuilder(agent_name=name).namespace_for(USER, "episodic") for name in owners]
    assert len(set(own)) == len(owners)


def test_the_reserved_word_of_langgraph_is_encoded():
    assert encode_label("langgraph") == "~langgraph"
    assert decode_label("~langgraph") == "langgraph"


@pytest.mark.parametrize("owner", ["a", "A-Z_09", "x" * 64, "semantic", "memories"])
def test_a_plain_id_is_its_own_label(owner: str):
    assert encode_label(owner) == owner
    assert decode_label(owner) == owner


@pytest.mark.parametrize(
    ("owner", "label"), [("a.b", "~a~2eb"), ("~", "~~7e"), ("\u00e9", "~~c3~a9"), ("x" * 65, "~" + "x" * 65)]
)
def test_any_other_id_is_escaped_byte_by_byte(owner: str, label: str):
    assert encode_label(owner) == label
    assert decode_label(label) == owner


def test_a_uuid_has_the_label_of_its_text():
    owner = UUID("550e8400-e29b-41d4-a716-446655440000")
    assert encode_label(owner) == encode_label(str(owner)) == str(owner)
    assert [encode_label(number) for number in (0, 42, -7)] == ["0", "42", "-7"]


@pytest.mark.parametrize("mark", ["a", "\u00e9", "\U0001f600"])
def test_an_id_has_at_most_512_bytes(mark: str):
    most = MAX_ID_BYTES // len(mark.encode())
    assert decode_label(encode_label(mark * most)) == mark * most
    with pytest.raises(InvalidId, match="1 to 512 bytes"):
        encode_label(mark * (most + 1))


@pytest.mark.parametrize("owner", ["", "a\x00b", "\ud800", None, 5.0, b"alice", ["alice"], True], ids=ascii)
def test_what_cannot_name_an_owner_is_refused(owner: Any):
    with pytest.raises(InvalidId, match=r"^agent_name "):
        encode_label(owner, what="agent_name")


@pytest.mark.parametrize(
    "label",
    [
        "",
        "~",
        "~alice",
        "a.b",
        "alice~",
        "~~zz",
        "~~4",
        "~~2E",
        "~~c3",
        "~~00",
        "~~61",
        "~a b",
        "\u00e9",
        "~\ud800",
        "~~  ",
    ],
    ids=ascii,
)
def test_a_label_that_is_never_made_is_refused(label: str):
    with pytest.raises(InvalidId):
        decode_label(label)


@pytest.mark.parametrize("name", MEMORY_TYPES)
def test_a_memory_is_written_to_the_scope_of_its_category(name: str):
    category = get_category_for_type(name).value
    shared = (USER, category)
    own = shared if category == "semantic" else (*shared, "planner")
    assert MemoryNamespaceBuilder(agent_name="planner").namespace_for_type(USER, name) == own
    assert MemoryNamespaceBuilder().namespace_for_type(USER, name) == shared


@pytest.mark.parametrize("category", [*MEMORY_CATEGORIES, *MemoryCategory])
@pytest.mark.parametrize("name", [None, ""])
def test_an_agent_without_a_name_uses_the_shared_scopes(category: MemoryCategory, name: str | None):
    builder = MemoryNamespaceBuilder(agent_name=name)
    shared = (USER, MemoryCategory(category).value)
    assert builder.namespace_for(USER, category) == shared
    assert builder.read_scopes(USER, category) == [shared]


def test_an_agent_uses_the_shared_scopes_when_agent_scopes_are_off():
    builder = MemoryNamespaceBuilder(agent_name="planner", agent_scope_enabled=False)
    shared = [(USER, category) for category in MEMORY_CATEGORIES]
    assert [builder.namespace_for(USER, category) for category in MemoryCategory] == shared
    assert builder.read_scopes(USER) == shared
    assert builder.agent_name == "planner"


def test_a_named_agent_reads_the_shared_scopes_and_its_own():
    builder = MemoryNamespaceBuilder(agent_name="planner")
    assert builder.read_scopes(USER) == [
        (USER, "semantic"),
        (USER, "episodic"),
        (USER, "episodic", "planner"),
        (USER, "procedural"),
        (USER, "procedural", "planner"),
    ]
    assert builder.read_scopes(USER, "episodic") == [(USER, "episodic"), (USER, "episodic", "planner")]
    assert builder.read_scopes(USER, MemoryCategory.SEMANTIC) == [(USER, "semantic")]


def test_two_agents_never_read_each_others_scopes():
    one, other = MemoryNamespaceBuilder(agent_name="planner"), MemoryNamespaceBuilder(agent_name="planner2")
    for category in (MemoryCategory.EPISODIC, MemoryCategory.PROCEDURAL):
        assert one.namespace_for(USER, category) not in other.read_scopes(USER)
        assert other.namespace_for(USER, category) not in one.read_scopes(USER)
    shared = set(one.read_scopes(USER)) & set(other.read_scopes(USER))
    assert shared == {(USER, category) for category in MEMORY_CATEGORIES}


def test_every_scope_that_is_written_is_read():
    for name in (None, "planner", "a.b"):
        builder = MemoryNamespaceBuilder(agent_name=name)
        assert {builder.namespace_for(USER, category) for category in MemoryCategory} <= set(builder.read_scopes(USER))


def test_the_flat_namespace_of_old_data_is_no_scope():
    builder = MemoryNamespaceBuilder()
    assert builder.legacy_namespace("a.b") == ("~a~2eb", MEMORIES_STORE_NAME)
    assert builder.legacy_namespace(USER) not in builder.read_scopes(USER)


def test_the_base_collection_is_kept():
    assert MemoryNamespaceBuilder("mine").base_collection == "mine"
    assert MemoryNamespaceBuilder().base_collection == "agent_memory"


def test_bad_arguments_are_refused():
    builder = MemoryNamespaceBuilder()
    with pytest.raises(InvalidCategory):
        builder.namespace_for(USER, "memories")
    with pytest.raises(InvalidCategory):
        builder.read_scopes(USER, "memories")
    with pytest.raises(InvalidMemoryType):
        builder.namespace_for_type(USER, "mood")
    for call in (builder.read_scopes, builder.legacy_namespace):
        with pytest.raises(InvalidId):
            call("")
    for name in ("a\x00b", 0, False, b""):
        with pytest.raises(InvalidId, match=r"^agent_name "):
            MemoryNamespaceBuilder(agent_name=name)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("place", [USAGE, FORGOTTEN])
@pytest.mark.parametrize("memories", [("ada", "semantic"), ("ada", "episodic", "planner")], ids=len)
def test_a_sidecar_belongs_to_memories_and_holds_none(memories: Namespace, place: str):
    sidecar = sidecar_namespace(memories, place)
    assert (memory_namespace(sidecar), is_sidecar(sidecar), holds_memories(sidecar)) == (memories, True, False)
    assert holds_forgotten(sidecar) is (place == FORGOTTEN)
    assert not is_sidecar(memories)
    assert not holds_forgotten(memories)
    for other in (("ada",), ("ada", place), ("ada", place, "notes"), ("ada", "notes", "semantic"), (place, "semantic")):
        assert not is_sidecar(other)
        assert not holds_forgotten(other)


def test_what_is_beside_memories_belongs_to_their_agent() -> None:
    """The category of a deleted memory was taken for its agent."""
    for home, agent in ((("u", "semantic"), None), (("u", "episodic", "planner"), "planner")):
        assert agent_in(home) == agent_in(sidecar_namespace(home, FORGOTTEN)) == agent
