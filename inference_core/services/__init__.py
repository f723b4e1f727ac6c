"""The memory service: operations as generators of effects, and their async and sync forms."""
