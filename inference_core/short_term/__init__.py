"""Short-term memory: the window of messages that the model sees, and what happens to those that leave it."""
