"""Whatever a conversation holds and whatever fails: the model sees a valid window, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from flaky import FlakyBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from short_term_support import (
    FORMS,
    USER,
    check_valid,
    earlier_summary,
    exchange,
    extracting,
    lost_words,
    marker,
    markers,
    markers_in,
    model_of,
    numbered,
    result,
    stored_texts,
)

from inference_core import (
    AgentMemory,
    Delete,
    ExtractiveMemory,
    FlushToLongTerm,
    MemoryStore,
    ShortTermMemoryMiddleware,
    StaticMemory,
    Summarize,
    Trim,
    VectorMemory,
    open_store,
)
from inference_core.effects import run
from inference_core.short_term.agent_memory import read_window
from inference_core.short_term.blocks.memory import UserSession, scope_of
from inference_core.short_term.strategies import Eviction, OverflowPolicy, OverflowResult, OverflowStrategy
from inference_core.short_term.window import Window, count_tokens, is_said_by_user, is_summary, view
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel, call_tool

SESSION = "s1"
SHORT = 200
HAN = "\u8bb0\u5fc6"
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
DATA = {"type": "image", "base64": "iVBORw0KGgo=" * 40, "mime_type": "image/png"}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
KINDS = ("user", "user", "assistant", "assistant", "calls", "calls", "calls", "orphan", "system", "summary", "empty")
SUMMARIZERS: dict[str, Any] = {
    "fine": "They spoke about words.",
    "raises": ConnectionError("no model"),
    "silent": " \n",
    "verbose": "A sentence that nobody has asked for, <b>once more</b>.\n" * 800,
}
EXTRACTORS: dict[str, Any] = {
    "fine": extracting,
    "raises": ConnectionError("no model"),
    "prose": "I have found no facts, but I like to talk.",
    "other form": call_tool("ExtractedFacts", facts="none"),
    "odd facts": call_tool(
        "ExtractedFacts",
        facts=[
            {"content": " "},
            {"content": "a\x00b\ud800", "topic": "\x01"},
            {"content": "x" * 9_000, "topic": HAN * 200},
        ],
    ),
}
CALL_IDS = ("id", "call_id", "toolUseId")
RESULT_IDS = ("tool_call_id", "tool_use_id", "call_id", "approval_request_id", "toolUseId")
COMBINATIONS = ("S", "T", "D", "F", "FS", "SF", "ST", "SD", "FT", "FD", "FST", "SS")


def each(check: Callable[..., None], number: int, *given_by: st.SearchStrategy[Any], full: bool) -> None:
    """Checks ``number`` of examples, always others; in the short run a hundredth of them, always the same."""
    options = settings(max_examples=number if full else number // 100, derandomize=not full, suppress_health_check=SLOW)
    options(given(*given_by)(check))()


@dataclass(frozen=True)
class Case:
    """A history, what is done with it, and what fails."""

    messages: list[AnyMessage]
    combination: str
    room: int
    number: int = 2
    role: Any = "user"
    summarizer: str = "fine"
    extractor: str | None = None
    store_is_down: bool = False

    @property
    def flushes(self) -> bool:
        return "F" in self.combination

    @property
    def drops(self) -> bool:
        return "T" in self.combination or "D" in self.combination

    def flush_fails(self, leaving: Sequence[AnyMessage]) -> bool:
        """Whether something keeps a flush of ``leaving`` from being durable."""
        if not self.flushes:
            return False
        said = any(isinstance(one, HumanMessage | AIMessage) and one.text for one in leaving)
        has_extracted = self.extractor not in ("raises", "prose", "other form")
        return (self.store_is_down and bool(markers(leaving))) or (said and not has_extracted)


@st.composite
def texts(draw: st.DrawFn, number: int) -> Any:
    """The content of the message ``number``: its marker word among others, perhaps with pictures."""
    filler = draw(st.sampled_from(["", "word", "word", HAN, "<b>&"])) + " "
    text = f"{marker(number)} {filler * draw(st.sampled_from([0, 1, 3, 30, 300]))}".strip()
    match draw(st.integers(0, 5)):
        case 0:
            return [{"type": "text", "text": text}, draw(st.sampled_from([PICTURE, DATA]))]
        case 1:
            return [text]
        case _:
            return text


@st.composite
def tool_turns(draw: st.DrawFn, number: int) -> list[AnyMessage]:
    """Calls of tools and what came back: perhaps too little, too much, twice, not in order, or not at once."""
    names: list[str | None] = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=4))
    wanted = [{"name": "find", "args": {"word": marker(number + at)}, "id": name} for at, name in enumerate(names)]
    said: Any = draw(st.sampled_from(["", "Let me see", None]))
    if said is None:
        said = [{"type": "tool_use", "id": one["id"] or "", "name": "find", "input": one["args"]} for one in wanted]
    broken: list[Any] = [{"name": "find", "args": "{", "id": "z", "error": "not JSON"}]
    invalid = draw(st.sampled_from([[], [], broken]))
    answered = [name for name in names if name and draw(st.integers(0, 5))]
    results: list[AnyMessage] = [
        ToolMessage(
            draw(texts(number + 10 + at)),
            tool_call_id=name,
            status="error" if draw(st.booleans()) else "success",
        )
        for at, name in enumerate(draw(st.permutations(answered)))
    ]
    if draw(st.integers(0, 5)) == 0:
        results.insert(len(results) // 2, HumanMessage(f"Hurry up {marker(number + 20)}"))
    return [AIMessage(said, tool_calls=wanted, invalid_tool_calls=invalid), *results]


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[AnyMessage]:
    match draw(st.sampled_from(KINDS)):
        case "user":
            return [HumanMessage(draw(texts(number)))]
        case "assistant":
            return [AIMessage(draw(texts(number)))]
        case "calls":
            return draw(tool_turns(number))
        case "orphan":
            return [result(draw(st.sampled_from(["a", "nobody's"])), f"late {marker(number)}")]
        case "system":
            return [SystemMessage(f"Be brief {marker(number)}")]
        case "summary":
            return [earlier_summary(f"Earlier {marker(number)}", draw(st.sampled_from(["user", "system"])))]
        case _:
            return [draw(st.sampled_from([HumanMessage(""), AIMessage("")]))]


@st.composite
def histories(draw: st.DrawFn) -> list[AnyMessage]:
    size = draw(st.integers(1, 14))
    return numbered(message for at in range(size) for message in draw(turns(100 * at)))


ROOMS = st.sampled_from([1, 20, 60, 150, 400, 1_000, 3_000])
CASES = st.builds(
    Case,
    messages=histories(),
    combination=st.sampled_from(COMBINATIONS),
    room=ROOMS,
    number=st.integers(1, 6),
    role=st.sampled_from(["user", "system"]),
    summarizer=st.sampled_from([*SUMMARIZERS, "fine", "fine"]),
    extractor=st.sampled_from([None, None, *EXTRACTORS]),
    store_is_down=st.sampled_from([False, False, False, True]),
)


@dataclass(frozen=True)
class Bench:
    """A store with a fault before it, and what is done with a history on it."""

    backend: FlakyBackend
    store: MemoryStore
    case: Case

    @property
    def passages(self) -> VectorMemory:
        return VectorMemory(self.store, user_id=USER, max_results=10, max_tokens=100_000)

    def heal(self) -> None:
        """Ends the fault, and lets calls through at once."""
        self.backend.heal()
        with self.store.engine._reading:
            pass  # an answer closes the breaker

    @property
    def summarizer(self) -> ScriptedChatModel:
        return model_of(SUMMARIZERS[self.case.summarizer])

    def strategies(self, store: MemoryStore | None = None) -> list[OverflowStrategy]:
        """Those of the case; their blocks on ``store``, if that is not whose window it is."""
        case = self.case
        blocks: list[Any] = [VectorMemory(store)]
        if case.extractor:
            extractor = ExtractiveMemory(model_of(EXTRACTORS[case.extractor]), store)
            blocks = [StaticMemory(["Water is wet"], store), extractor, *blocks]
        made: dict[str, OverflowStrategy] = {
            "S": Summarize(
                self.summarizer,
                summary_message_count=case.number - 1,
                max_summary_tokens=50 * case.number,
                role=case.role,
                timeout=None,
            ),
            "T": Trim(100 * case.number),
            "D": Delete(case.number),
            "F": FlushToLongTerm(blocks, max_stm_token_ratio=case.number / 6),
        }
        return [made[name] for name in case.combination]

    def handle(self, messages: Sequence[AnyMessage], policy: OverflowPolicy | None = None) -> OverflowResult:
        policy = policy or OverflowPolicy(self.strategies(), self.case.room)
        eviction = Eviction(room=policy.room(), conversation=UserSession(USER, SESSION), scope=scope_of(self.store))
        return run(policy.handle(Window(messages, count_tokens), eviction))


@contextmanager
def bench(case: Case) -> Generator[Bench]:
    backend = FlakyBackend()
    with MemoryStore(StoreEngine(backend)) as store:
        backend.fault = "down" if case.store_is_down else None
        yield Bench(backend, store, case)
        backend.heal()


def has_valid(messages: Sequence[AnyMessage]) -> bool:
    """Whether there is anything that may be shown: the results of calls that are not there may not."""
    return any(not isinstance(message, ToolMessage) for message in messages)


def last_group(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The last message that is no result, with what follows it: what the model has to answer."""
    at = max((at for at, message in enumerate(messages) if not isinstance(message, ToolMessage)), default=0)
    return list(messages[at:])


def last_said(messages: Sequence[AnyMessage]) -> AnyMessage | None:
    return next((message for message in reversed(messages) if is_said_by_user(message)), None)


def may_leave(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """All but the user's last message, what has to be answered, system messages and summaries."""
    stays = [*last_group(messages), last_said(messages)]
    return [
        one
        for one in messages
        if not any(one is other for other in stays) and not isinstance(one, SystemMessage) and not is_summary(one)
    ]


def check_shown(shown: Sequence[AnyMessage], messages: Sequence[AnyMessage], room: int) -> None:
    """What the model sees of ``messages`` is valid, in their order, has what it has to have, and fits."""
    check_valid(shown)
    assert bool(shown) == has_valid(messages)
    order = [message.id for message in messages]
    places = [order.index(message.id) for message in shown if message.id]
    assert places == sorted(places)
    there = {message.id for message in shown}
    said = last_said(messages)
    assert said is None or said.id in there
    assert next(one.id for one in last_group(messages) if not isinstance(one, ToolMessage)) in there if shown else True
    if count_tokens(shown) > room:
        assert not there & {message.id for message in may_leave(messages)}
        results = [message for message in shown if isinstance(message, ToolMessage)]
        assert all(isinstance(message.content, str) and len(message.content) <= SHORT for message in results)


def ids(messages: Sequence[AnyMessage]) -> list[str | None]:
    return [message.id for message in messages]


def what_is_shown_is_valid_and_fits(messages: list[AnyMessage], room: int):
    before = [message.model_copy(deep=True) for message in messages]
    shown = view(Window(messages, count_tokens), room)
    check_shown(shown, messages, room)
    assert messages == before
    again = view(Window(shown, count_tokens), room)
    assert again == shown


@st.composite
def exchanges(draw: st.DrawFn) -> list[AnyMessage]:
    """A conversation with calls in all forms of providers, each with its result."""
    messages: list[AnyMessage] = []
    for at in range(draw(st.integers(1, 6))):
        messages.append(HumanMessage(f"{marker(at)} {'word ' * draw(st.integers(0, 40))}"))
        for nth, form in enumerate(draw(st.lists(st.sampled_from(FORMS), max_size=3))):
            messages += exchange(form, f"c{at}-{nth}")
        messages.append(AIMessage("Found."))
    return numbered(messages)


def what_needs_nothing_is_not_changed(messages: list[AnyMessage]):
    shown = view(Window(messages, count_tokens), count_tokens(messages))
    assert len(shown) == len(messages)
    assert all(one is other for one, other in zip(shown, messages, strict=True))


def no_result_is_sent_without_its_call(messages: list[AnyMessage], room: int, lost: set[int]):
    left = [one for at, one in enumerate(messages) if at not in lost]
    shown = view(Window(left, count_tokens), room)
    for at, message in enumerate(shown):
        if isinstance(message, AIMessage):
            answered = ids_in(shown[at + 1], *RESULT_IDS) if at + 1 < len(shown) else []
            needs_none = "mcp_approval_request" in str(message.content)
            assert needs_none or {*ids_in(message, *CALL_IDS)} <= {*answered}
        else:
            asked = ids_in(shown[at - 1], *CALL_IDS) if at else []
            assert {*ids_in(message, *RESULT_IDS)} <= {*asked}
        assert not isinstance(message, FunctionMessage) or "function_call" in shown[at - 1].additional_kwargs
    assert view(Window(shown, count_tokens), room) == shown


def ids_in(message: BaseMessage, *names: str) -> list[str]:
    """The ids of calls under ``names``, anywhere in ``message``."""
    return [found for name in names for found in re.findall(rf"'{name}': '(c\d-\d)'", str(message.model_dump()))]


def a_policy_loses_nothing(case: Case):
    with bench(case) as tools:
        result = tools.handle(case.messages)
        check_result(result, case)
        shown = view(Window(result.messages, count_tokens), case.room)
        check_shown(shown, result.messages, case.room)
        tools.heal()
        if case.flushes and result.evicted:
            gone = [one for one in result.evicted if not is_summary(one)]
            assert lost_words(markers(gone), tools.passages) == set()
        passages = markers_in(*stored_texts(tools.store, "episodic"))
        assert len(passages) == len(set(passages))
        if result.notice is None:
            again = tools.handle(result.messages)
            assert (again.evicted, again.messages) == ([], result.messages)


def check_result(result: OverflowResult, case: Case) -> None:
    """Nothing leaves that may not, and nothing at all if it is not safe; what stays keeps its order."""
    stays = [one for one in result.messages if one is not result.summary]
    order = ids(case.messages)
    assert [order.index(one.id) for one in result.messages] == sorted(order.index(one.id) for one in result.messages)
    folded = [result.summary.id] if result.summary else []
    assert {*ids(stays), *ids(result.evicted), *folded} == set(order)
    assert len(stays) + len(result.evicted) + any(is_summary(one) for one in case.messages if one.id in folded) == len(
        order
    )
    leaving = ids(may_leave(case.messages))
    assert all(one.id in leaving for one in result.evicted)
    has_summarized = case.summarizer not in ("raises", "silent")
    assert not result.evicted or has_summarized or set(case.combination) != {"S"}
    assert not case.flush_fails(result.evicted)
    assert result.evicted or result.messages == case.messages
    if result.evicted and "S" in case.combination:
        assert (result.summary is not None) == has_summarized
        assert (result.notice is None) == (result.summary is not None)


FED = st.builds(
    Case,
    messages=histories(),
    combination=st.sampled_from(["S", "F", "FS", "SF", "FT", "ST"]),
    room=ROOMS,
    number=st.integers(1, 6),
    summarizer=st.sampled_from([*SUMMARIZERS, "fine"]),
    extractor=st.sampled_from([None, *EXTRACTORS]),
    store_is_down=st.sampled_from([False, False, False, True]),
)


def agent_memory_loses_nothing(case: Case):
    """Messages are kept elsewhere, so that a store that is down is that of the blocks alone."""
    with bench(case) as tools, open_store("memory://", embeddings=None) as sessions_store:
        memory = AgentMemory(sessions_store, overflow=tools.strategies(tools.store), max_tokens=case.room, user_id=USER)
        told = [one for one in case.messages if not isinstance(one, SystemMessage)]
        for message in told:
            memory.update(SESSION, message)
            content = memory.get(SESSION)
            check_valid(content.messages)
        kept = run(read_window(scope_of(sessions_store), UserSession(USER, SESSION))).messages
        check_shown(memory.get(SESSION).messages, kept, case.room)
        tools.heal()
        gone = markers(one for one in told if not is_summary(one)) - markers(kept)
        if case.flushes:
            assert lost_words(gone, tools.passages) == set()
        elif case.combination == "S" and case.summarizer in ("raises", "silent"):
            assert gone == set()
        passages = markers_in(*stored_texts(tools.store, "episodic"))
        assert len(passages) == len(set(passages))


@dataclass(frozen=True)
class Round:
    """What happens after a message of the user: by how many words tools answer, in parallel, one time after another."""

    words: int
    calls: list[list[int]]


ROUNDS = st.lists(
    st.builds(
        Round,
        words=st.integers(0, 120),
        calls=st.lists(st.lists(st.sampled_from([0, 5, 60, 700]), min_size=1, max_size=3), max_size=3),
    ),
    min_size=1,
    max_size=6,
)
RUNS = st.builds(
    Case,
    messages=st.just([]),
    combination=st.sampled_from(["F", "FS", "SF", "S"]),
    room=st.sampled_from([60, 200, 600, 2_000]),
    number=st.integers(1, 6),
    role=st.sampled_from(["user", "system"]),
    summarizer=st.sampled_from([*SUMMARIZERS, "fine"]),
    extractor=st.sampled_from([None, *EXTRACTORS]),
    store_is_down=st.sampled_from([False, False, False, True]),
)


@tool
def find(number: int, words: int) -> str:
    """Finds ``words`` words; fails if the number is divisible by seven."""
    text = f"{marker(number)} {'word ' * words}"
    if number % 7 == 0:
        raise ToolException(text)
    return text


find.handle_tool_error = True


def scripted(rounds: Sequence[Round]) -> tuple[list[str], list[AIMessage], set[str]]:
    """What the user says, what the model answers, and all marker words of it and of the tools' results."""
    numbers = count()
    said: list[str] = []
    turns: list[AIMessage] = []
    for one in rounds:
        said.append(f"{marker(next(numbers))} {'word ' * one.words}")
        for group in one.calls:
            wanted = [(next(numbers), size) for size in group]
            turns.append(
                AIMessage(
                    "",
                    tool_calls=[
                        {"name": "find", "args": {"number": number, "words": size}, "id": f"c{number}"}
                        for number, size in wanted
                    ],
                )
            )
        turns.append(AIMessage(f"{marker(next(numbers))} {'word ' * one.words}"))
    return said, turns, {marker(number) for number in range(next(numbers))}


def check_least(request: Sequence[BaseMessage]) -> None:
    """Only what has to be there is: summaries, what the user said last, and what came back last from the tools."""
    (_, *others) = [one for one in request if not isinstance(one, ToolMessage | SystemMessage) and not is_summary(one)]
    results = [one for one in request if isinstance(one, ToolMessage)]
    assert [type(one) for one in others] == ([AIMessage] if results else [])
    assert all(len(one.text) <= SHORT for one in results)


def an_agent_loses_nothing(rounds: list[Round], case: Case):
    said, turns, words = scripted(rounds)
    model = ScriptedChatModel(turns=turns)
    with bench(case) as tools:
        middleware = ShortTermMemoryMiddleware(tools.strategies(tools.store), max_tokens=case.room, user_id=USER)
        saver = InMemorySaver()
        agent: Any = create_agent(model, [find], middleware=[middleware], checkpointer=saver)
        thread = {"configurable": {"thread_id": SESSION}}
        state: dict[str, Any] = {}
        for text in said:
            state = agent.invoke({"messages": [("user", text)]}, thread)
        room = OverflowPolicy(max_tokens=case.room).room(tools=[find])
        for request in model.requests:
            check_valid(request)
            if count_tokens(request) > room:
                check_least(request)
        tools.heal()
        gone = words - markers(state["messages"])
        if case.flushes:
            assert lost_words(gone, tools.passages) == set()
        elif case.summarizer in ("raises", "silent"):
            assert gone == set()
        passages = markers_in(*stored_texts(tools.store, "episodic"))
        assert len(passages) == len(set(passages))


def test_what_is_shown_is_valid_and_fits(full: bool):
    each(what_is_shown_is_valid_and_fits, 3_000, histories(), ROOMS, full=full)


def test_what_needs_nothing_is_not_changed(full: bool):
    each(what_needs_nothing_is_not_changed, 2_500, exchanges(), full=full)


def test_no_result_is_sent_without_its_call(full: bool):
    lost = st.sets(st.integers(0, 40), max_size=8)
    each(no_result_is_sent_without_its_call, 2_500, exchanges(), ROOMS, lost, full=full)


def test_a_policy_loses_nothing(full: bool):
    each(a_policy_loses_nothing, 3_000, CASES, full=full)


def test_agent_memory_loses_nothing(full: bool):
    each(agent_memory_loses_nothing, 1_200, FED, full=full)


def test_an_agent_loses_nothing(full: bool):
    each(an_agent_loses_nothing, 520, ROUNDS, RUNS, full=full)
