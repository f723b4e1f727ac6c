"""Whose conversation it is: the documents' blocks know a session, memories belong to a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from inference_core.errors import ConfigurationError, IdentityError
from inference_core.memory.namespaces import encode_label

Owner = Callable[[str], str | UUID | None]
"""Gives the user of a session; may raise, or give None for a session of nobody."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session of a user. Raises InvalidId for ids that cannot be ones."""

    user_id: str
    session_id: str

    def __post_init__(self) -> None:
        encode_label(self.user_id)
        encode_label(self.session_id, what="session_id")


class Owners:
    """Finds the user of a session: always ``user_id``, or whom ``owner`` names.

    Raises ConfigurationError if both are given.
    """

    def __init__(self, user_id: str | UUID | None = None, owner: Owner | None = None) -> None:
        if user_id is not None and owner is not None:
            raise ConfigurationError("Give user_id= or owner=, not both")
        if user_id is not None:
            encode_label(user_id)
        self._user_id = user_id
        self._owner = owner

    def conversation(self, session_id: str | UUID) -> Conversation:
        """The conversation of this session. Raises ConfigurationError, IdentityError, InvalidId."""
        session = str(session_id) if isinstance(session_id, UUID) else session_id
        user = self._user_id
        if user is None:
            if self._owner is None:
                raise ConfigurationError("Whose memory is it? Pass user_id=, or owner=, a function of the session id")
            user = self._owner(session)
            if not user:
                raise IdentityError(f"owner gives no user for session {session[:80]!r}")
        return Conversation(str(user) if isinstance(user, UUID) else user, session)
