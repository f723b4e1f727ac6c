"""The domain: memory types, records, namespaces, time and trust. Pure, without input or output."""
