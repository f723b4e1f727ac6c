"""The HR policy chatbot: both scenarios of both proposals, message by message against what the proposals list.

A listing is written as it stands there; "..." at the end of a message stands for the rest of it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agent_support import FACES, ask, system_text
from example_support import EXAMPLES, environment, load
from langchain_core.messages import HumanMessage

from inference_core import AgentMemory, MemoryContext, MemoryStore, open_store
from inference_core.testing import ScriptedChatModel

BEFORE = [
    ("user", "Hi, I'm Sarah from the Marketing team..."),
    ("assistant", "Hello Sarah! I'm here to help..."),
    ("user", "What are the eligibility criteria?"),
    ("assistant", "For remote work eligibility, you need to..."),
    ("user", "Yes, I've been here for 2 years..."),
    ("assistant", "Great! Since you meet the criteria..."),
    ("user", "What if my manager initially says no?"),
    ("assistant", "If your manager declines your request, you have options..."),
]
LAST_SEVEN = [
    ("user", "What if my manager initially says no?"),
    ("assistant", "If your manager declines your request, you have options..."),
    ("user", "No, just want to be prepared. What about equipment..."),
    ("assistant", "Yes, the company provides essential equipment..."),
    ("user", "Perfect! One more question - can I work from abroad occasionally?"),
    ("assistant", "Working from abroad has additional restrictions..."),
    ("user", "That's very helpful! I think I have everything I need for now."),
]
FAREWELL = ("assistant", "Excellent! I'm glad I could help you understand our remote work policy, Sarah...")
SUMMARY = (
    "CONVERSATION SUMMARY: Sarah from Marketing team inquired about remote work policy. Key discussion points: Remote "
    "work allows 3 days/week with approval. Sarah meets eligibility criteria (2+ years experience, good performance). "
    "Discussed application process using Form HR-101, manager approval requirement, and options if manager declines "
    "(feedback, trial periods, HR mediation)."
)
SUMMARIZED = {
    "SEPTEMBER_17": [
        ("system", f"{SUMMARY} All processes and requirements explained comprehensively."),
        *LAST_SEVEN[2:],
        FAREWELL,
    ],
    "SEPTEMBER_18": [("user", SUMMARY), *LAST_SEVEN],
}
FLUSHED = {"SEPTEMBER_17": [*LAST_SEVEN[4:], FAREWELL], "SEPTEMBER_18": [*LAST_SEVEN, FAREWELL]}
KNOWN = {
    "SEPTEMBER_17": {
        "static_memory": [
            "Remote work available up to 3 days per week with manager approval",
            "International work: max 2 weeks/year, 30-day advance approval, approved countries only",
            "Application form: HR-101 available on employee portal",
        ],
        "extractive_memory": [
            "Sarah (Marketing Team)",
            "Tenure: 2 years with company",
            "Performance: Good performance reviews (meets remote work eligibility)",
            "Department: Marketing team",
            "Interest: Remote work application, understanding policies and procedures",
        ],
    },
    "SEPTEMBER_18": {
        "static_memory": [
            "Remote work: 3 days/week with approval.",
            "International work: max 2 weeks/year, 30-day advance approval.",
        ],
        "extractive_memory": [
            "User: Sarah",
            "Department: Marketing",
            "Status: Eligible for remote work (2 years tenure, good performance).",
        ],
    },
}
ANSWERS = {
    "SEPTEMBER_17": "Yes, you are. I remember: Performance: Good performance reviews (meets remote work eligibility)",
    "SEPTEMBER_18": "Yes, you are. I remember: Status: Eligible for remote work (2 years tenure, good performance).",
}
LISTINGS = pytest.mark.parametrize("listing", SUMMARIZED)
BOTH_FACES = pytest.mark.parametrize("face", FACES)


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_MODEL", raising=False)


@pytest.fixture
def models() -> list[ScriptedChatModel]:
    """The models that the example has made, in this order."""
    return []


@pytest.fixture
def hr(monkeypatch: pytest.MonkeyPatch, models: list[ScriptedChatModel]) -> ModuleType:
    module = load("hr_policy_chatbot", EXAMPLES, monkeypatch)
    make = module.chat_model

    def noted(turns: Sequence[Any]) -> Any:
        models.append(make(turns))
        return models[-1]

    monkeypatch.setattr(module, "chat_model", noted)
    return module


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with open_store("memory://", embeddings=None) as opened:
        yield opened


def is_listed(entries: Sequence[Mapping[str, Any]], listing: Sequence[tuple[str, str]]) -> bool:
    """Whether ``entries`` are the messages of ``listing``, all of them and in its order."""
    same = [
        entry["role"] == role and (entry["content"] + "...").startswith(text.removesuffix("..."))
        for entry, (role, text) in zip(entries, listing, strict=False)
    ]
    return len(entries) == len(listing) and all(same)


async def update(memory: AgentMemory, face: str, message: Any) -> None:
    if face == "sync":
        memory.update("monday", message)
    else:
        await memory.aupdate("monday", message)


async def history(hr: ModuleType, memory: AgentMemory, face: str) -> list[dict[str, Any]]:
    """The session as the example prints it."""
    content = memory.get("monday") if face == "sync" else await memory.aget("monday")
    return [hr.listed(message) for message in content.messages]


@BOTH_FACES
@LISTINGS
async def test_a_summary_takes_the_place_of_what_was_said_first(
    listing: str, face: str, hr: ModuleType, models: list[ScriptedChatModel]
) -> None:
    proposal, expected = getattr(hr, listing), SUMMARIZED[listing]
    memory = hr.summarizing_memory(proposal)
    await update(memory, face, ("system", "\n- ".join([hr.PROMPT, *proposal.policy])))
    said = [entry for turn in hr.CONVERSATION for entry in zip(("user", "assistant"), turn, strict=True)]
    needed = said[: len(said) - (expected[-1] != FAREWELL)]
    for message in needed[:-1]:
        await update(memory, face, message)
    _, *before = await history(hr, memory, face)
    assert [(entry["role"], entry["content"]) for entry in before] == needed[:-1]
    assert is_listed(before[:8], BEFORE)
    await update(memory, face, needed[-1])
    _, *after = await history(hr, memory, face)
    assert is_listed(after, expected)
    assert after[0]["content"] == expected[0][1]
    assert all(entry["timestamp"] for entry in after)
    assert after[1:-1] == before[len(before) - len(after) + 2 :]
    (request,) = models[0].requests
    summed_up = [content in request[-1].text for _, content in said]
    assert summed_up == [at < len(needed) - len(after) + 1 for at in range(len(said))]


async def talk(hr: ModuleType, agent: Any, face: str) -> list[dict[str, Any]]:
    """Sarah's whole conversation; what is left of it."""
    monday = {"configurable": {"thread_id": "monday"}}
    for question, _ in hr.CONVERSATION:
        await ask(agent, face, question, monday, context=MemoryContext(user_id=hr.SARAH))
    return [hr.listed(message) for message in agent.get_state(monday).values["messages"]]


async def asked(hr: ModuleType, agent: Any, face: str, user: str) -> str:
    """What a new session of ``user`` is answered."""
    tuesday = {"configurable": {"thread_id": f"tuesday of {user}"}}
    result = await ask(agent, face, hr.QUESTION, tuesday, context=MemoryContext(user_id=user))
    return result["messages"][-1].text


def sections(block: str) -> dict[str, list[str]]:
    """The lines of each element of a memory block; none of another form."""
    first, *lines, last = block.splitlines()
    assert (first, last) == ("<memory>", "</memory>")
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("  <"):
            found.setdefault(line.strip(" <>/"), [])
        else:
            assert line.startswith("    - ")
            list(found.values())[-1].append(line.removeprefix("    - "))
    return found


@BOTH_FACES
@LISTINGS
async def test_what_leaves_is_filed_in_the_blocks_and_the_rest_stays(
    listing: str, face: str, hr: ModuleType, store: MemoryStore
) -> None:
    proposal = getattr(hr, listing)
    left = await talk(hr, hr.flushing_agent(proposal, store), face)
    assert is_listed(left, FLUSHED[listing])
    recalling = AgentMemory(store, overflow=hr.long_term(proposal), user_id=hr.SARAH)
    question = ("user", hr.QUESTION)
    content = recalling.get("x", question) if face == "sync" else await recalling.aget("x", question)
    found = sections(content.render())
    assert list(found) == ["static_memory", "extractive_memory", "vector_memory"]
    assert found["static_memory"] == KNOWN[listing]["static_memory"]
    assert sorted(found["extractive_memory"]) == sorted(KNOWN[listing]["extractive_memory"])
    said = [text for turn in hr.CONVERSATION for text in turn]
    gone = said[: len(said) - len(left)]
    assert set(found["vector_memory"]) <= set(gone)
    assert said[3] in found["vector_memory"]  # the criteria
    everything = recalling.get("x", ("user", "remote work equipment abroad manager apply criteria"))
    assert all(match.content in gone for match in everything.vector_matches)


@BOTH_FACES
@LISTINGS
async def test_a_new_session_is_answered_from_the_blocks_and_another_user_learns_nothing(
    listing: str, face: str, hr: ModuleType, store: MemoryStore, models: list[ScriptedChatModel]
) -> None:
    agent = hr.flushing_agent(getattr(hr, listing), store)
    await talk(hr, agent, face)
    assert await asked(hr, agent, face, hr.SARAH) == ANSWERS[listing]
    assert await asked(hr, agent, face, hr.BEN) == "I cannot tell: how long have you been with us?"
    assistant, _ = models
    (_, *of_sarah), (_, *of_ben) = (request for request in assistant.requests[-2:])
    assert [message.text for message in (*of_sarah, *of_ben)] == [hr.QUESTION, hr.QUESTION]
    prompt = system_text(assistant.requests[-1])
    block = prompt[prompt.index("<memory>") : prompt.index("</memory>") + len("</memory>")]
    assert sections(block) == {"static_memory": KNOWN[listing]["static_memory"]}
    assert "Sarah" not in prompt


@LISTINGS
def test_the_scripts_know_nothing_of_themselves(
    listing: str, hr: ModuleType, store: MemoryStore, models: list[ScriptedChatModel]
) -> None:
    hr.flushing_agent(getattr(hr, listing), store)
    assistant, extractor = models
    given = [HumanMessage("I keep falcons")]
    assert (
        ScriptedChatModel(turns=[assistant.turns[-1]]).invoke(given).text
        == "I cannot tell: how long have you been with us?"
    )
    assert ScriptedChatModel(turns=[extractor.turns[0]]).invoke(given).tool_calls[0]["args"] == {"facts": []}


PATIENTLY = """
import functools, runpy, sys
import inference_core
from inference_core.agents.middleware import short_term
short_term.RECALL_TIMEOUT_S = 60  # a busy machine must not change what is printed, nor a model that loads meanwhile
inference_core.open_store = functools.partial(inference_core.open_store, embeddings=None)
runpy.run_path(sys.argv.pop(), run_name="__main__")
"""


def test_it_runs_as_it_stands_without_a_key(tmp_path: Path, quick_python: str) -> None:
    done = subprocess.run(
        [quick_python, "-c", PATIENTLY, str(EXAMPLES / "hr_policy_chatbot.py")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Model: none (AGENT_MODEL). A script replies; the memory is real.\n")
    assert done.stdout.count("Chat history before:") == 2
    assert done.stdout.count("Chat history after:") == 4
    assert done.stdout.count("'evicted': ") == 3
    assert done.stdout.count("<extractive_memory>") == 2
    assert [answer in done.stdout for answer in ANSWERS.values()] == [True, True]
    assert list(tmp_path.iterdir()) == []
