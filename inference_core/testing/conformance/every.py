"""All promises in one class."""

from __future__ import annotations

from inference_core.testing.conformance.contract import ItemContract, SearchContract
from inference_core.testing.conformance.strength import CompanyStrength, SearchStrength
from inference_core.testing.conformance.traces import TimeStrength, TraceStrength


class EveryPromise(ItemContract, SearchContract, SearchStrength, TraceStrength, TimeStrength, CompanyStrength):
    """What LangGraph documents, and where stores are known to come short."""
