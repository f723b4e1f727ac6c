"""Long-term memory for LangGraph agents.

Each public name is imported on first use, so that importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_core.lazy import lazy_exports

if TYPE_CHECKING:
    from inference_core.agents.identity import MemoryContext, resolve_user
    from inference_core.agents.middleware.calls import MemoryState, MemoryStatus
    from inference_core.agents.middleware.capture import CaptureMiddleware
    from inference_core.agents.middleware.memory import (
        MemoryMiddleware,
        create_memory_middleware,
    )
    from inference_core.agents.middleware.review import MemoryReviewMiddleware, is_procedural
    from inference_core.agents.middleware.short_term import ShortTermMemoryEvent, ShortTermMemoryMiddleware
    from inference_core.agents.service import AgentService
    from inference_core.agents.streams import MEMORY_STATE_KEYS, without_memory
    from inference_core.agents.tools import generate_memory_tools_system_instructions, get_memory_tools
    from inference_core.context.engineer import ContextEngineer, Pruning
    from inference_core.context.items import AssembledContext, ContextItem
    from inference_core.embeddings.embedder import Embedder
    from inference_core.errors import InferenceCoreError
    from inference_core.ingestion.extraction.extractor import ModelExtractor
    from inference_core.ingestion.extraction.rules import RuleExtractor
    from inference_core.ingestion.worker import Worker
    from inference_core.lifecycle.forgetting import ForgettingPolicy, MemoryLifecycle
    from inference_core.memory.namespaces import MemoryNamespaceBuilder, Space
    from inference_core.memory.quota import Quota
    from inference_core.memory.record import MemoryRecord, MemoryStoreDocument, PendingMemory
    from inference_core.memory.redaction import Guard, Redactor
    from inference_core.memory.spaces import SpaceRole, Spaces
    from inference_core.memory.trust import MemorySource, Origin, Trust
    from inference_core.memory.types import MemoryCategory, MemoryType
    from inference_core.services.agent_memory_service import AgentMemoryStoreService, UserMemory
    from inference_core.services.context_builder import ContextBuilder, ContextRequest, ContextSource, OwnSource
    from inference_core.settings import AgentSettings, MemorySettings, load_env_file
    from inference_core.short_term.agent_memory import AgentMemory, MemoryContent
    from inference_core.short_term.blocks.extractive import ExtractiveMemory
    from inference_core.short_term.blocks.memory import Memory
    from inference_core.short_term.blocks.static import StaticMemory
    from inference_core.short_term.blocks.vector import VectorMemory
    from inference_core.short_term.strategies import Delete, FlushToLongTerm, Summarize, Trim
    from inference_core.stores.factory import open_configured_store, open_store
    from inference_core.stores.store import MemoryStore
    from inference_core.transfer.migrate import migrate_memories

__version__ = "1.0.0"
_NAMES = {
    "inference_core.agents.identity": ["MemoryContext", "resolve_user"],
    "inference_core.agents.middleware.calls": ["MemoryState", "MemoryStatus"],
    "inference_core.agents.middleware.capture": ["CaptureMiddleware"],
    "inference_core.agents.middleware.memory": ["MemoryMiddleware", "create_memory_middleware"],
    "inference_core.agents.middleware.review": ["MemoryReviewMiddleware", "is_procedural"],
    "inference_core.agents.middleware.short_term": ["ShortTermMemoryEvent", "ShortTermMemoryMiddleware"],
    "inference_core.agents.service": ["AgentService"],
    "inference_core.agents.streams": ["MEMORY_STATE_KEYS", "without_memory"],
    "inference_core.agents.tools": ["generate_memory_tools_system_instructions", "get_memory_tools"],
    "inference_core.context.engineer": ["ContextEngineer", "Pruning"],
    "inference_core.context.items": ["AssembledContext", "ContextItem"],
    "inference_core.embeddings.embedder": ["Embedder"],
    "inference_core.errors": ["InferenceCoreError"],
    "inference_core.ingestion.extraction.extractor": ["ModelExtractor"],
    "inference_core.ingestion.extraction.rules": ["RuleExtractor"],
    "inference_core.ingestion.worker": ["Worker"],
    "inference_core.lifecycle.forgetting": ["ForgettingPolicy", "MemoryLifecycle"],
    "inference_core.memory.namespaces": ["MemoryNamespaceBuilder", "Space"],
    "inference_core.memory.quota": ["Quota"],
    "inference_core.memory.record": ["MemoryRecord", "MemoryStoreDocument", "PendingMemory"],
    "inference_core.memory.redaction": ["Guard", "Redactor"],
    "inference_core.memory.spaces": ["SpaceRole", "Spaces"],
    "inference_core.memory.trust": ["MemorySource", "Origin", "Trust"],
    "inference_core.memory.types": ["MemoryCategory", "MemoryType"],
    "inference_core.services.agent_memory_service": ["AgentMemoryStoreService", "UserMemory"],
    "inference_core.services.context_builder": ["ContextBuilder", "ContextRequest", "ContextSource", "OwnSource"],
    "inference_core.settings": ["AgentSettings", "MemorySettings", "load_env_file"],
    "inference_core.short_term.agent_memory": ["AgentMemory", "MemoryContent"],
    "inference_core.short_term.blocks.extractive": ["ExtractiveMemory"],
    "inference_core.short_term.blocks.memory": ["Memory"],
    "inference_core.short_term.blocks.static": ["StaticMemory"],
    "inference_core.short_term.blocks.vector": ["VectorMemory"],
    "inference_core.short_term.strategies": ["Delete", "FlushToLongTerm", "Summarize", "Trim"],
    "inference_core.stores.factory": ["open_configured_store", "open_store"],
    "inference_core.stores.store": ["MemoryStore"],
    "inference_core.transfer.migrate": ["migrate_memories"],
}
__all__ = [
    "MEMORY_STATE_KEYS",
    "AgentMemory",
    "AgentMemoryStoreService",
    "AgentService",
    "AgentSettings",
    "AssembledContext",
    "CaptureMiddleware",
    "ContextBuilder",
    "ContextEngineer",
    "ContextItem",
    "ContextRequest",
    "ContextSource",
    "Delete",
    "Embedder",
    "ExtractiveMemory",
    "FlushToLongTerm",
    "ForgettingPolicy",
    "Guard",
    "InferenceCoreError",
    "Memory",
    "MemoryCategory",
    "MemoryContent",
    "MemoryContext",
    "MemoryLifecycle",
    "MemoryMiddleware",
    "MemoryNamespaceBuilder",
    "MemoryRecord",
    "MemoryReviewMiddleware",
    "MemorySettings",
    "MemorySource",
    "MemoryState",
    "MemoryStatus",
    "MemoryStore",
    "MemoryStoreDocument",
    "MemoryType",
    "ModelExtractor",
    "Origin",
    "OwnSource",
    "PendingMemory",
    "Pruning",
    "Quota",
    "Redactor",
    "RuleExtractor",
    "ShortTermMemoryEvent",
    "ShortTermMemoryMiddleware",
    "Space",
    "SpaceRole",
    "Spaces",
    "StaticMemory",
    "Summarize",
    "Trim",
    "Trust",
    "UserMemory",
    "VectorMemory",
    "Worker",
    "create_memory_middleware",
    "generate_memory_tools_system_instructions",
    "get_memory_tools",
    "is_procedural",
    "load_env_file",
    "migrate_memories",
    "open_configured_store",
    "open_store",
    "resolve_user",
    "without_memory",
]


__getattr__ = lazy_exports(__name__, {name: home for home, names in _NAMES.items() for name in names})


def __dir__() -> list[str]:
    return __all__
