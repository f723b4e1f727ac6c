"""Plain statements, read without a model: whose attribute has which value, and whether a newer one supersedes it."""

from __future__ import annotations

from inference_core.slots.reading import compare, slots_of
from inference_core.slots.slot import ANY, USER, Comparison, Holds, Slot

__all__ = ["ANY", "USER", "Comparison", "Holds", "Slot", "compare", "slots_of"]
