"""Encoding of owners is injective, whatever they are called."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.errors import InvalidId
from inference_core.memory.namespaces import MAX_ID_BYTES, MemoryNamespaceBuilder, decode_label, encode_label
from inference_core.memory.types import MemoryCategory

TRICKY = st.text(alphabet="~a2eE.\u00e9\u0301/_-", max_size=8)
OWNERS = st.one_of(TRICKY, st.text(max_size=40), st.sampled_from(["langgraph", "~langgraph", "semantic", "memories"]))
MANY = examples(300)
FEW = examples(100)


def _label(owner: str) -> str | None:
    try:
        return encode_label(owner)
    except InvalidId:
        return None


def test_different_owners_have_different_labels(full: bool):
    @examples(10_000 if full else 300)
    @given(OWNERS, OWNERS)
    @example("a.b", "~a~2eb")
    @example("~", "~~7e")
    @example("\u00e9", "e\u0301")
    def differ(one: str, other: str) -> None:
        assume(one != other)
        labels = _label(one), _label(other)
        assert labels[0] != labels[1] or labels == (None, None)

    differ()


@MANY
@given(OWNERS)
def test_an_owner_is_refused_or_read_back_exactly(owner: str):
    label = _label(owner)
    if label is None:
        assert not owner or "\x00" in owner or len(owner.encode(errors="surrogatepass")) > MAX_ID_BYTES
    else:
        assert decode_label(label) == owner


@MANY
@given(st.text(alphabet="~a2e0f.", max_size=10))
def test_a_label_is_refused_or_made_again_exactly(label: str):
    try:
        owner = decode_label(label)
    except InvalidId:
        return
    assert encode_label(owner) == label


@FEW
@given(OWNERS, OWNERS, OWNERS, OWNERS)
def test_scopes_of_different_users_never_overlap(user: str, agent: str, other_user: str, other_agent: str):
    assume(user != other_user and all(_label(name) for name in (user, agent, other_user, other_agent)))
    one, other = MemoryNamespaceBuilder(agent_name=agent), MemoryNamespaceBuilder(agent_name=other_agent)
    for mine in [*one.read_scopes(user), one.legacy_namespace(user)]:
        for yours in [*other.read_scopes(other_user), other.legacy_namespace(other_user)]:
            assert mine[: len(yours)] != yours[: len(mine)]


@FEW
@given(OWNERS, OWNERS, OWNERS)
def test_scopes_of_different_agents_share_only_what_is_shared(user: str, agent: str, other_agent: str):
    assume(agent != other_agent and all(_label(name) for name in (user, agent, other_agent)))
    one, other = MemoryNamespaceBuilder(agent_name=agent), MemoryNamespaceBuilder(agent_name=other_agent)
    assert set(one.read_scopes(user)) & set(other.read_scopes(user)) == {
        (encode_label(user), category.value) for category in MemoryCategory
    }
