"""Messages that wait to become memories, in the memories' own database, and what an extractor makes of them."""
