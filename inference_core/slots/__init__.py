"""Plain statements read without a model: who has what attribute, and what a newer statement does to an older one."""

from __future__ import annotations

from inference_core.slots.comparing import relation
from inference_core.slots.reading import slot_of, slots_of
from inference_core.slots.slot import ANY, USER, Holds, Relation, Slot

__all__ = ["ANY", "USER", "Holds", "Relation", "Slot", "relation", "slot_of", "slots_of"]
