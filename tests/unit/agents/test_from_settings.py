"""The chat model by its name, and what each failure of one says."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from langchain.agents.middleware import ModelFallbackMiddleware
from langchain.agents.middleware.types import ModelRequest
from langchain_core.language_models import BaseChatModel
from langgraph.errors import GraphBubbleUp

from inference_core.agents.from_settings import FailedModels, ModelErrors, explain, guards, make_chat_model
from inference_core.errors import ConfigurationError, MissingExtra, ModelError, StoreError
from inference_core.settings import AgentSettings
from inference_core.testing import ScriptedChatModel

SCRIPTED = ScriptedChatModel(turns=["Hello"])


class NamedModel(ScriptedChatModel):
    """A model with a name and a key, as providers' are."""

    model_name: str = "gpt-5-mini"

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"openai_api_key": "OPENAI_API_KEY"}


NAMED = NamedModel(turns=["Hello"])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def settings(**given: Any) -> AgentSettings:
    return AgentSettings(**given)


def test_the_settings_name_the_model() -> None:
    assert getattr(make_chat_model(settings(model="openai:gpt-5-mini")), "model_name", "") == "gpt-5-mini"


def test_a_name_or_a_model_goes_before_the_settings() -> None:
    chosen = settings(model="openai:gpt-5-mini")
    assert getattr(make_chat_model(chosen, "openai:other"), "model_name", "") == "other"
    assert make_chat_model(chosen, SCRIPTED) is SCRIPTED


@pytest.mark.parametrize("name", [None, ""])
def test_without_a_model_it_says_how_to_set_one(name: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"set AGENT_MODEL, for example openai:gpt-5-mini"):
        make_chat_model(settings(model=name))


@pytest.mark.parametrize("name", ["nonsense:x", "gpt-5-mini", "openai:", ":x", "openai:a b", "\n:x"])
def test_an_unknown_model_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use provider:model, for example openai:gpt-5-mini") as caught:
        make_chat_model(settings(), name)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigurationError, match=r"set OPENAI_API_KEY.*OPENAI_BASE_URL"):
        make_chat_model(settings(), "openai:gpt-5-mini")


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_a_missing_package_is_an_extra(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"langchain_{provider}", None)
    _forget_providers()
    with pytest.raises(MissingExtra, match=rf"pip install 'inference-core-memory\[{provider}\]'"):
        make_chat_model(settings(), f"{provider}:x")
    _forget_providers()


def test_a_missing_package_of_another_provider_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_mistralai", None)
    with pytest.raises(ConfigurationError, match="langchain-mistralai"):
        make_chat_model(settings(), "mistralai:x")


def test_a_model_that_cannot_be_made_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_PROXY", "nonsense\nproxy")
    with pytest.raises(ConfigurationError, match=r"'openai:x' cannot be made: .*") as caught:
        make_chat_model(settings(), "openai:x")
    assert "\n" not in str(caught.value)


def _forget_providers() -> None:
    """LangChain remembers the classes that it has imported."""
    from langchain.chat_models import base

    for cached in vars(base).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def test_fallbacks_stand_before_the_errors() -> None:
    (only,) = guards(settings())
    fallbacks, errors = guards(settings(model_fallbacks="openai:a, openai:b"))
    assert isinstance(only, FailedModels)
    assert isinstance(errors, FailedModels)
    assert isinstance(fallbacks, ModelFallbackMiddleware)
    assert [getattr(model, "model_name", "") for model in fallbacks.models] == ["a", "b"]
    assert fallbacks.name != ModelFallbackMiddleware.__name__


def test_a_wrong_fallback_is_found_at_once() -> None:
    with pytest.raises(ConfigurationError, match="Unknown chat model 'nonsense:x'"):
        guards(settings(model_fallbacks="nonsense:x"))


class Refused(Exception):
    def __init__(self, status: object = None, *, response: object = None) -> None:
        super().__init__("No\nsuch " + "x" * 300)
        self.status_code = status
        self.response = response


def behind(cause: Exception) -> Exception:
    error = Refused()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Refused(401), "refused the key (401): check OPENAI_API_KEY"),
        (Refused(403), "refused the key (403): check OPENAI_API_KEY"),
        (Refused(404), "is not known there: check AGENT_MODEL (404)"),
        (Refused(429), "is busy or its quota is used up: wait, or set AGENT_MODEL_FALLBACKS (429)"),
        (Refused(503), "failed at its server: try again, or set AGENT_MODEL_FALLBACKS (503)"),
        (Refused(400), "refused the request (400): No such " + "x" * 192),
        (Refused(response=Refused(401)), "refused the key (401): check OPENAI_API_KEY"),
        (Refused(200), "failed or answered nonsense; is that the right server? (Refused: No such " + "x" * 192 + ")"),
        (ConnectionError(), "cannot be reached: is its server running, and OPENAI_BASE_URL right?"),
        (behind(TimeoutError()), "cannot be reached: is its server running, and OPENAI_BASE_URL right?"),
        (TypeError("no\nchoices"), "failed or answered nonsense; is that the right server? (TypeError: no choices)"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_each_failure_says_what_to_do(error: Exception, said: str) -> None:
    assert explain(NAMED, error) == f"The chat model gpt-5-mini {said}"


def test_a_model_without_a_name_and_a_key_is_named_by_its_kind() -> None:
    assert explain(SCRIPTED, Refused(401)) == (
        "The chat model ScriptedChatModel refused the key (401): check that of its provider"
    )
    assert explain(SCRIPTED, ConnectionError()).endswith("is its server running, and its address right?")


def asked(model: BaseChatModel = NAMED) -> ModelRequest[Any]:
    return ModelRequest(model=model, messages=[])


def failing(error: Exception) -> Any:
    def handler(request: Any) -> Any:
        raise error

    return handler


def guarded(error: Exception, *, are_logged: bool = False) -> None:
    def inner(request: Any) -> Any:
        return FailedModels(are_logged=are_logged).wrap_model_call(request, failing(error))

    ModelErrors().wrap_model_call(asked(), inner)


@pytest.mark.parametrize("error", [GraphBubbleUp(), StoreError("down")])
def test_interrupts_and_own_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        guarded(error)
    assert caught.value is error


@pytest.mark.parametrize("are_logged", [True, False])
def test_a_failure_keeps_its_cause_and_is_logged_for_fallbacks(
    are_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    error = Refused(401)
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="check OPENAI_API_KEY") as caught:
        guarded(error, are_logged=are_logged)
    assert caught.value.__cause__ is error
    assert ("check OPENAI_API_KEY" in caplog.text) is are_logged
