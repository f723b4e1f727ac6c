"""Files of conversations, whichever program wrote them, read as messages in one form."""
