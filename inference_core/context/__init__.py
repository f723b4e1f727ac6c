"""From memories to prompt text."""
