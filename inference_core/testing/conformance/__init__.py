"""A conformance suite for LangGraph's `BaseStore`.

Use it as a pytest class, `inference_core.testing.StoreConformance`, or as a command that prints which promises a store
keeps, ``python -m inference_core.testing.conformance module:factory``. docs/conformance.md shows both.
"""
