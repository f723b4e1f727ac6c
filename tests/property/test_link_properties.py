"""Links only add: within what the user may read, nothing that recall finds without them is lost or loses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core import AgentMemoryStoreService, open_store
from inference_core.services.agent_memory_service import SyncMemoryService

WORDS = ["Ida", "Max", "ida's", "Jos\u00e9:", "violin", "Oslo", "sister", "?", "\u674e\u96f7\uff1a", "'; DROP", "<b>"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
names = st.lists(texts, max_size=2)


@examples(40)
@given(
    memories=st.lists(st.tuples(st.sampled_from(["ada", "bob"]), texts, names, names), max_size=12),
    query=texts,
)
def test_links_add_within_what_is_the_users(memories: list[tuple[str, str, list[str], list[str]]], query: str):
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        ids = [(memory[0], _saved(service, number, *memory)) for number, memory in enumerate(memories)]
        plain = {one.id: one.score or 0 for one in service.recall_memories("ada", query, 99, links=False)}
        by_name = {one.id: one.score or 0 for one in service.recall_memories("ada", query, 99)}
        linked = {one.id: one for one in service.recall_memories("ada", query, 99, links=True)}
    own = {key for user, key in ids if user == "ada"}
    assert plain.keys() == by_name.keys() <= linked.keys() <= own
    assert all(by_name[key] >= score for key, score in plain.items())
    assert all((linked[key].score or 0) >= score for key, score in by_name.items())
    ends = {link.memory_id for one in linked.values() for link in one.links}
    assert ends <= {None, *own}
    assert all(link.memory_id != key for key, one in linked.items() for link in one.links)


def _saved(service: SyncMemoryService, number: int, user: str, text: str, entities: list[str], tags: list[str]) -> str:
    """The text is made unlike any other, as one of those that say the same is enough."""
    return service.save_memory(user, f"{text} n{number}", extra_metadata={"entities": entities}, tags=tags)
