"""A conformance suite for LangGraph's `BaseStore`.

As a pytest class, `inference_core.testing.StoreConformance`, and as a command that prints what a store keeps, ``python
-m inference_core.testing.conformance module:factory``. docs/conformance.md shows both.
"""
