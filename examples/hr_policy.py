"""The data of the HR policy chatbot: Sarah's conversation, scripted replies, and what the proposals list.

The texts are those of the two proposals for memory in Ballerina's agents, of 17 and 18 September 2025, including "…".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage
from stand_in import prompt_of

from inference_core.testing import call_tool

CONVERSATION = [
    (
        "Hi, I'm Sarah from the Marketing team. I need to understand our remote work policy.",
        (
            "Hello Sarah! I'm here to help you with HR policies. Our remote work policy allows eligible employees to "
            "work remotely up to 3 days per week with manager approval. Would you like me to explain the eligibility "
            "criteria or application process?"
        ),
    ),
    (
        "What are the eligibility criteria?",
        (
            "For remote work eligibility, you need to: 1. Have completed at least 6 months with the company 2. Have "
            "satisfactory performance ratings 3. Hold a role suitable for remote work (as determined by your manager) "
            "4. Have necessary equipment and reliable internet connection. Are you meeting these criteria, Sarah?"
        ),
    ),
    (
        "Yes, I've been here for 2 years and have good performance reviews. How do I apply?",
        (
            "Great! Since you meet the criteria, here's the application process: 1. Submit Form HR-101 (Remote Work "
            "Application) 2. Get manager approval and signature... The form is available on the employee portal under "
            '"HR Forms".'
        ),
    ),
    (
        "What if my manager initially says no?",
        (
            "If your manager declines your request, you have options: 1. Ask for specific feedback... 2. Propose a "
            "trial period... 3. Request mediation through HR..."
        ),
    ),
    (
        "No, just want to be prepared. What about equipment - does the company provide anything?",
        (
            "Yes, the company provides essential equipment for remote work: - Laptop/desktop computer... - Ergonomic "
            "chair allowance up to $300..."
        ),
    ),
    (
        "Perfect! One more question - can I work from abroad occasionally?",
        (
            "Working from abroad has additional restrictions: - Maximum 2 weeks per year... - Must be approved 30 days "
            "in advance..."
        ),
    ),
    (
        "That's very helpful! I think I have everything I need for now.",
        (
            "Excellent! I'm glad I could help you understand our remote work policy, Sarah. Remember to submit Form "
            "HR-101 when you're ready to apply."
        ),
    ),
]


@dataclass(frozen=True)
class Proposal:
    """What one of the proposals lists, and the limits at which our memory does the same with its conversation.

    ``facts`` says for each fact about Sarah what of the conversation it is taken from.
    """

    date: str
    role: Literal["user", "system"]
    summary: str
    summarizes_at: int
    stays_after_summary: int
    policy: Sequence[str]
    facts: Mapping[str, str]
    flushes_at: int


_SUMMARY = (
    "Sarah from Marketing team inquired about remote work policy. Key discussion points: Remote work allows 3 "
    "days/week with approval. Sarah meets eligibility criteria (2+ years experience, good performance). Discussed "
    "application process using Form HR-101, manager approval requirement, and options if manager declines (feedback, "
    "trial periods, HR mediation)."
)
SEPTEMBER_17 = Proposal(
    date="17 September",
    role="system",
    summary=f"{_SUMMARY} All processes and requirements explained comprehensively.",
    summarizes_at=550,
    stays_after_summary=6,
    policy=[
        "Remote work available up to 3 days per week with manager approval",
        "International work: max 2 weeks/year, 30-day advance approval, approved countries only",
        "Application form: HR-101 available on employee portal",
    ],
    facts={
        "I'm Sarah": "Sarah (Marketing Team)",
        "2 years": "Tenure: 2 years with company",
        "good performance": "Performance: Good performance reviews (meets remote work eligibility)",
        "Marketing team": "Department: Marketing team",
        "How do I apply": "Interest: Remote work application, understanding policies and procedures",
    },
    flushes_at=680,
)
SEPTEMBER_18 = Proposal(
    date="18 September",
    role="user",
    summary=_SUMMARY,
    summarizes_at=500,
    stays_after_summary=7,
    policy=[
        "Remote work: 3 days/week with approval.",
        "International work: max 2 weeks/year, 30-day advance approval.",
    ],
    facts={
        "I'm Sarah": "User: Sarah",
        "Marketing team": "Department: Marketing",
        "good performance": "Status: Eligible for remote work (2 years tenure, good performance).",
    },
    flushes_at=1000,
)


def replies() -> list[str]:
    """The assistant's turns of the conversation."""
    return [reply for _, reply in CONVERSATION]


def extracted(proposal: Proposal) -> Any:
    """A scripted reply of the extracting model: the facts of which something stands in what it was given."""

    def facts_of(messages: list[BaseMessage]) -> AIMessage:
        given = messages[-1].text
        found = [fact for words, fact in proposal.facts.items() if words in given]
        return call_tool("ExtractedFacts", facts=[{"content": fact} for fact in found])

    return facts_of


def from_memory(messages: list[BaseMessage]) -> str:
    """A scripted reply to "Am I eligible?": it knows no more than what stands in its prompt."""
    _, _, known = prompt_of(messages).partition("<extractive_memory>")
    facts = [line.strip(" -") for line in known.partition("</extractive_memory>")[0].splitlines()]
    status = next((fact for fact in facts if "eligib" in fact.lower()), None)
    return f"Yes, you are. I remember: {status}" if status else "I cannot tell: how long have you been with us?"
