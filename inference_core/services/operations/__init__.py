"""What the memory service does, one file a verb. Each operation is a generator that decides; what it yields waits."""
