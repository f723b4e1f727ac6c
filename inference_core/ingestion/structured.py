"""Asking chat models for an answer in a given form, with patience: one repair, then the next model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel

from inference_core.asking import ask
from inference_core.context.render import neutral_line
from inference_core.drivers import Plan
from inference_core.errors import ModelError
from inference_core.memory.text import text_tokens

T = TypeVar("T")
Read = Callable[[Any], tuple[T, str]]
"""What can be used of an answer, and what is wrong with one that cannot be used."""
_MAX_PROBLEMS: Final = 50
_MAX_PROBLEM: Final = 300
_MAX_SHOWN_ANSWER: Final = 4_000


@dataclass(slots=True)
class Asking:
    """Asks ``models`` in turn, each call for at most ``timeout`` seconds, and counts what that costs.

    ``repair`` is what a model is told, once in all, whose answer cannot be used; it names the problem as {problem}.
    """

    models: Sequence[Runnable[Any, Any]]
    timeout: float | None
    repair: str
    problems: list[str] = field(default_factory=list[str])
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def answered(self, request: Sequence[BaseMessage], read: Read[T], what: str) -> Plan[T]:
        """Plan: what ``read`` can use of the first usable answer. Raises ModelError if no model gave ``what``."""
        is_repaired = False
        for model in self.models:
            try:
                answer = yield from self._asked(model, request)
                result, problem = read(answer)
                if problem and not is_repaired:
                    is_repaired = True
                    self._note(problem)
                    answer = yield from self._asked(model, self._repair_of(request, answer, problem))
                    result, problem = read(answer)
            except ModelError as error:
                self.problems.append(str(error))
                continue
            if not problem:
                return result
            self._note(problem)
        raise ModelError(f"No chat model gave {what}: {'; '.join(shown(self.problems))}")

    def _note(self, problem: str) -> None:
        self.problems.append(f"The answer could not be used: {problem}")

    def _asked(self, model: Runnable[Any, Any], request: Sequence[BaseMessage]) -> Plan[Any]:
        self.model_calls += 1
        given: Any = yield from ask(model, request, self.timeout)
        answer: Any = cast("dict[str, Any]", given).get("raw") if isinstance(given, dict) else given
        usage: Any = getattr(answer, "usage_metadata", None) or {}
        self.input_tokens += usage.get("input_tokens") or sum(text_tokens(message.text) for message in request)
        self.output_tokens += usage.get("output_tokens") or text_tokens(_text_of(answer))
        return answer

    def _repair_of(self, request: Sequence[BaseMessage], answer: Any, problem: str) -> list[BaseMessage]:
        """``request`` again, with the answer that it got and what is wrong with that."""
        given = neutral_line(_text_of(answer), _MAX_SHOWN_ANSWER) or "(nothing)"
        return [*request, AIMessage(given), HumanMessage(self.repair.format(problem=problem))]


def structured(model: BaseChatModel, form: type[BaseModel]) -> Runnable[Any, Any]:
    """``model`` with the answer's tool, giving its message as it is; or ``model`` alone if it takes no tools."""
    try:
        return model.with_structured_output(form, method="function_calling", include_raw=True)  # pyright: ignore[reportUnknownMemberType]
    except (AttributeError, NotImplementedError):
        return model


def shown(problems: Sequence[str]) -> list[str]:
    """``problems`` in harmless lines, no more than anybody reads."""
    lines = [neutral_line(problem, _MAX_PROBLEM) for problem in problems[:_MAX_PROBLEMS]]
    more = len(problems) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def _text_of(answer: Any) -> str:
    """The text of an answer and the arguments of its calls, as far as it has them."""
    if not isinstance(answer, AIMessage):
        return ""
    try:
        calls = [json.dumps(call["args"], ensure_ascii=False, default=str) for call in answer.tool_calls]
    except (TypeError, ValueError, RecursionError):
        calls = []
    return "\n".join([answer.text, *calls, *(call["args"] or "" for call in answer.invalid_tool_calls)]).strip()
