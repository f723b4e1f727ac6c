"""All promises in one class."""

from __future__ import annotations

from inference_core.testing.conformance.contract_items import ItemContract
from inference_core.testing.conformance.contract_search import SearchContract
from inference_core.testing.conformance.strength_company import CompanyStrength
from inference_core.testing.conformance.strength_search import SearchStrength
from inference_core.testing.conformance.strength_time import TimeStrength
from inference_core.testing.conformance.strength_traces import TraceStrength


class EveryPromise(ItemContract, SearchContract, SearchStrength, TraceStrength, TimeStrength, CompanyStrength):
    """What LangGraph documents, and where stores are known to come short."""
