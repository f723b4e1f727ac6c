"""Hand over messages and answers from which a worker makes memories, and read the newest ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Self

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    ToolMessage,
    convert_to_messages,
)

from inference_core.clock import aware
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.memory.namespaces import encode_label
from inference_core.memory.text import id_text, new_id
from inference_core.outbox.media import may_wait, media_in
from inference_core.outbox.messages import (
    EMPTY,
    FRAMEWORKS,
    NO_THREAD,
    OTHER_PARTS,
    ConversationMessage,
    Role,
    author_of,
    brings_outside,
    has_calls,
    is_of_another,
    is_plain,
    label,
    noted_outside,
)
from inference_core.outbox.outbox import Outbox, Partition, Waiting, check_outbox
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, check_same, request_of
from inference_core.stores.backend import Remove

TIMESTAMP: Final = "timestamp"
"""The key in a message's ``additional_kwargs`` for the time at which it was said, in ISO 8601."""
MAX_KEPT: Final = 100
"""How many of the newest messages of a user with an agent are kept for prompts."""


class Added(int):
    """How many messages were new. ``skipped`` counts by reason what was left out, such as pictures without a model."""

    skipped: Mapping[str, int]

    def __new__(cls, count: int, skipped: Mapping[str, int] | None = None) -> Self:
        """The number ``count``."""
        made = super().__new__(cls, count)
        made.skipped = dict(skipped or {})
        return made


_ROLES: Final = {HumanMessage: Role.USER, AIMessage: Role.ASSISTANT, ToolMessage: Role.TOOL}


@operation("add_messages", needs=None)
async def add_messages(  # noqa: D417 - callers of the service pass no scope
    scope: MemoryScope,
    user_id: UserId,
    messages: Sequence[MessageLikeRepresentation],
    *,
    session_id: str | None = None,
) -> Added:
    """Puts messages into the outbox, durably, in one commit; a worker extracts memories from them.

    The user's newest 100 messages with this agent are also kept word for word, without secrets, so that
    `ContextBuilder` can show them. Messages of the system or of a framework, such as summaries, and messages without
    text are skipped. A message with an id is added only once, however often you pass it; a message without an id is new
    each time. The time of a message is ``additional_kwargs["timestamp"]`` (ISO 8601), by default now. A user message
    with a ``name`` is another person's, unless it is the user id; an answer with a ``name`` is another agent's, unless
    it is this agent's.

    A message with anything but text, such as a picture, a citation, a tool's result or a system message, marks its
    session for good, even if it is skipped: what is said there may come from it, and is trusted less.

    With a ``media_model``, pictures and recordings wait with their message until a worker has put them into words,
    which count as a document's. Only the words are kept, with a reference to what they tell of.

    Args:
        user_id: The user.
        messages: In order, in any form that LangChain accepts: messages, ("user", "text"), {"role": …}, texts.
        session_id: The conversation. Its messages are processed together and can be undone together.

    Returns:
        How many were new. ``skipped`` of this number counts by reason what was left out, such as "parts without text".

    Raises:
        InvalidInput: An argument is invalid; nothing was added.
        ConfigurationError: The store cannot hold an outbox.
        StoreUnavailable: The database did not answer in time.
    """
    encode_label(user_id)
    check_outbox(scope.engine, "Use a store that open_store made")
    now = scope.clock.now()
    session = NO_THREAD if session_id is None else id_text(session_id)
    new: list[ConversationMessage] = []
    skipped = Counter[str]()
    is_outside = False
    for at, (one, role, is_proven) in enumerate(judged(messages)):
        author = author_of(label(one.name), user_id) if role is Role.USER else None
        found = media_in(one) if role else ()
        media = found if scope.media_model is not None and may_wait(found) else ()
        message = ConversationMessage(
            session_id=session,
            role=role or Role.TOOL,
            text=one.text,
            id=one.id or new_id(),
            position=at,
            author=author,
            at=said_at(one) or now,
            is_proven=is_proven and not is_of_another(one, scope.namespaces.agent_name),
            media=media,
        )
        is_outside = is_outside or brings_outside(message)
        if role and (one.text.strip() or media):
            new.append(message)
        elif not found:
            skipped[EMPTY if role else FRAMEWORKS] += 1
        skipped[OTHER_PARTS] += len(found) - len(media)
    # What brought text from outside may have no text itself, so all that came with it is marked.
    was_outside = await noted_outside(scope.engine, scope.clock, user_id, session, is_outside)
    new = [replace(message, is_marked=is_outside or was_outside) for message in new]
    partition = Partition.of(user_id, scope.namespaces)
    count = await Outbox(scope.engine, scope.clock).put(partition, new, str(scope.zone), keeps=True)
    old = await scope.engine.page([partition.kept], limit=MAX_KEPT, offset=MAX_KEPT)
    if old:
        await scope.engine.write([Remove(namespace=row.namespace, key=row.key) for row in old])
    return Added(count, +skipped)


def judged(messages: Sequence[MessageLikeRepresentation]) -> Iterator[tuple[BaseMessage, Role | None, bool]]:
    """The messages as LangChain's, each with its role and whether nothing but its text is in it.

    Without a role it is not to be added, but its session held it. Raises InvalidInput.
    """
    if isinstance(messages, str | BaseMessage):
        raise InvalidInput("messages must be a list of messages; put a single one into a list")
    try:
        given = convert_to_messages(messages)
    except (ValueError, TypeError, LookupError, AttributeError, NotImplementedError) as error:
        raise InvalidInput(f"messages contains something that is not a message: {error}") from error
    for message in given:
        is_frameworks = bool(message.additional_kwargs.get("lc_source"))
        role = next((role for kind, role in _ROLES.items() if isinstance(message, kind)), None)
        yield message, None if is_frameworks else role, is_plain(message) and not has_calls(message)


@operation("add_messages", needs=None)
async def add_messages_once(
    scope: MemoryScope,
    user_id: UserId,
    request_key: str,
    messages: Sequence[BaseMessage],
    *,
    session_id: str | None = None,
) -> Added:
    """Like `add_messages`, but once for each ``request_key`` of the user, even for messages without an id.

    Raises InvalidInput if the key was used for other messages.
    """
    told = {"messages": [message.model_dump_json() for message in messages], "session_id": session_id}
    request = await request_of(scope, user_id, request_key, told)
    try:
        await scope.engine.write([request.mark], is_clean=True)
    except VersionConflict:
        await check_same(scope, request)
    # The mark alone does not prove that the messages are in: the process may have died in between. So they are put in
    # again, under ids that follow from the key, which adds none twice.
    named = [
        message.model_copy(update={"id": message.id or f"{request_key}-{at}"}) for at, message in enumerate(messages)
    ]
    return await add_messages(scope, user_id, named, session_id=session_id)


@operation("add_completion", needs=None)
async def add_completion(
    scope: MemoryScope, user_id: UserId, completion: str | AIMessage, *, session_id: str | None = None
) -> Added:
    """Like `add_messages`, for one answer of the model, a message or text. Returns 1 if it was new, else 0."""
    message = AIMessage(completion) if isinstance(completion, str) else completion
    if not isinstance(message, AIMessage):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidInput(f"completion must be a text or an AIMessage, not {type(completion).__name__}")
    return await add_messages(scope, user_id, [message], session_id=session_id)


async def kept_messages(
    scope: MemoryScope, user_id: UserId, limit: int, session_id: str | None = None
) -> list[BaseMessage]:
    """The newest ``limit`` messages that `add_messages` kept, in their order, with their times.

    With a ``session_id``, those of them that belong to it. Raises StoreError.
    """
    rows = await scope.engine.page([Partition.of(user_id, scope.namespaces).kept], limit=limit)
    found: list[BaseMessage] = []
    for message in (Waiting.of(row).message for row in reversed(rows)):
        if session_id not in (None, message.session_id):
            continue
        said = {TIMESTAMP: message.at.isoformat()} if message.at else {}
        if message.role is Role.TOOL:
            found.append(ToolMessage(message.text, tool_call_id="", id=message.id, additional_kwargs=said))
        else:
            kind = HumanMessage if message.role is Role.USER else AIMessage
            found.append(kind(message.text, id=message.id, name=message.author, additional_kwargs=said))
    return found


def said_at(message: BaseMessage) -> datetime | None:
    """When ``message`` was said, aware and in UTC; None if it has no valid time."""
    try:
        return aware(datetime.fromisoformat(message.additional_kwargs[TIMESTAMP]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
