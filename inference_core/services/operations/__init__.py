"""What the memory service does, one file a verb. Each operation is a plan: it decides, a driver waits."""
