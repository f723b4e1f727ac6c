"""The demonstration: an agent that remembers, in two processes; then recall from a conversation of several months."""
