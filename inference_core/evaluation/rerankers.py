"""Re-rankers by name: ``module:attribute`` of your own, or ``provider:model`` of a LangChain package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from langchain_core.documents import BaseDocumentCompressor

from inference_core.errors import ConfigurationError, raised_as
from inference_core.stores.search import Reranker
from inference_core.stores.snapshot import RERANKED

_COMMUNITY: Final = "langchain_community.document_compressors"
_PROVIDERS: Final = {
    "cohere": ("langchain_cohere", "CohereRerank", "top_n", "langchain-cohere"),
    "voyageai": ("langchain_voyageai", "VoyageAIRerank", "top_k", "langchain-voyageai"),
    "flashrank": (_COMMUNITY, "FlashrankRerank", "top_n", "langchain-community flashrank"),
    "jina": (_COMMUNITY, "JinaRerank", "top_n", "langchain-community"),
}
"""The module and class of each provider's compressor, its option for how many texts it keeps, and its packages."""


def make_reranker(name: str) -> Reranker | BaseDocumentCompressor:
    """The re-ranker that ``name`` stands for. A class or function of yours is called without arguments.

    Raises ConfigurationError, which says what to install or to write.
    """
    home, _, wanted = name.partition(":")
    module, attribute, kept, packages = _PROVIDERS.get(home, (home, wanted, "", ""))
    if not attribute:
        known = ", ".join(_PROVIDERS)
        raise ConfigurationError(f"Unknown re-ranker {name!r}; write module:name, or provider:model ({known})")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        advice = f"; pip install {packages}" if packages else ""
        raise ConfigurationError(f"The re-ranker {name!r} cannot be imported: {error}{advice}") from error
    options: dict[str, Any] = {kept: RERANKED} if kept else {}
    options |= {"model": wanted} if kept and wanted else {}
    made = found
    if isinstance(found, type) or (callable(found) and not isinstance(found, BaseDocumentCompressor | Reranker)):
        with raised_as(lambda error: ConfigurationError(f"The re-ranker {name!r} cannot be made: {error}")):
            made = cast("Callable[..., Any]", found)(**options)
    if isinstance(made, BaseDocumentCompressor | Reranker):
        return made
    raise ConfigurationError(
        f"{name!r} is no re-ranker: {type(made).__name__} is no BaseDocumentCompressor and has no rerank(query, texts)"
    )
