"""What becomes of memories with time: forgetting and restoring them, and which of them are used."""
