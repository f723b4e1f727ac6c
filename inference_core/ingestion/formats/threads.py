"""The messages of LangGraph threads, from a checkpointer's database, which is only read.

A database holds the threads of many users. So a thread is read if its checkpoint names the user, or if the caller names
the thread; a thread that names another user never is.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.messages import AIMessage, BaseMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from inference_core.errors import InvalidInput, MissingExtra, StoreUnavailable, without_quotes
from inference_core.ingestion.formats.chat_exports import OUTSIDE, Entry
from inference_core.memory.owners import is_owner
from inference_core.memory.secrets import quoted
from inference_core.outbox.messages import label
from inference_core.outbox.outside import is_plain

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

OTHERS: Final = "threads of other users"
NOBODYS: Final = "threads that name no user"
_THREADS: Final = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"
_USERS: Final = ("langgraph_auth_user_id", "user_id")
FRAMEWORKS: Final = "messages of a framework"
"""The role given to what a framework wrote, such as a summary, in whatever role; it is skipped."""
_KINDS: Final = {
    HumanMessage: "user",
    AIMessage: "assistant",
    ToolMessage: "tool",
    FunctionMessage: "function",
    SystemMessage: "system",
}


def thread_entries(place: str, user_id: str, threads: Iterable[str], skipped: Counter[str]) -> Iterator[Entry]:
    """The messages in the newest state of the user's threads at ``place``, a path or a ``postgresql://`` URL.

    Those of ``threads`` that name no user are read, too. A message without a time gets that of the thread's newest
    checkpoint. Raises InvalidInput if one of ``threads`` does not exist or is another user's, StoreUnavailable.
    """
    named = set(threads)
    with _opened(place) as (saver, found):
        if missing := sorted(named.difference(found)):
            raise InvalidInput(f"{'The database' if '://' in place else place} has no thread {quoted(missing[0])}")
        for thread in found:
            state = saver.get_tuple({"configurable": {"thread_id": thread}})
            if state is None:
                continue
            # LangGraph's metadata name the user, or else this package's middleware does.
            metadata, values = cast("dict[str, Any]", state.metadata), state.checkpoint.get("channel_values", {})
            found_owner = next((metadata[name] for name in _USERS if metadata.get(name)), None)
            owner: str | None = values.get("memory_owner") if found_owner is None else str(found_owner)
            is_users = owner == user_id if found_owner is not None else is_owner(owner, user_id)
            if owner is not None and not is_users and thread in named:
                raise InvalidInput(f"The thread {quoted(thread)} is another user's")
            if not is_users and thread not in named:
                skipped[OTHERS if owner else NOBODYS] += 1
                continue
            if values.get("memory_outside"):  # its message may have been trimmed or summarized since
                yield f"thread {thread[:60]}", {"role": "system", "session_id": thread, **OUTSIDE}
            messages: Any = values.get("messages")
            for at, message in enumerate(cast("list[Any]", messages) if isinstance(messages, list) else [], 1):
                if isinstance(message, BaseMessage):
                    fields = {"session_id": thread, **message_fields(message)}
                    fields["timestamp"] = fields["timestamp"] or state.checkpoint["ts"]
                    yield f"thread {thread[:60]}, message {at}", fields


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """A message of LangChain in the readers' form; a `FRAMEWORKS` message if a framework marked it as its own."""
    role = next((role for kind, role in _KINDS.items() if isinstance(message, kind)), None)
    is_harmless = isinstance(message, SystemMessage) or is_plain(message)
    return {
        "role": FRAMEWORKS if message.additional_kwargs.get("lc_source") else role or "system",
        "content": message.text,
        "id": message.id,
        "timestamp": message.additional_kwargs.get("timestamp"),
        "name": label(message.name) if isinstance(message, HumanMessage) else None,
        **({} if is_harmless else OUTSIDE),
    }


@contextmanager
def _opened(place: str) -> Generator[tuple[BaseCheckpointSaver[str], list[str]]]:
    """The checkpointer, and its threads. Restores only built-in and LangChain's types; anything else stays data."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    if "://" not in place:
        try:
            uri = f"{Path(place).absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
                saver = SqliteSaver(connection, serde=serde)
                saver.is_setup = True  # its set-up would write to the file
                yield saver, [str(thread) for (thread,) in connection.execute(_THREADS)]
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"{place} cannot be read as a LangGraph checkpointer's: {without_quotes(error)}"
            ) from error
        return
    try:
        import psycopg  # noqa: PLC0415 - an extra
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - the same extra
        from psycopg.rows import dict_row  # noqa: PLC0415 - the same extra

        from inference_core.stores.backends.sql.postgres_connections import parameters_of  # noqa: PLC0415 - the same extra
    except ImportError as error:
        raise MissingExtra("Checkpoints in PostgreSQL", "postgres") from error

    class Reader(PostgresSaver):
        @contextmanager
        def _cursor(self, *, pipeline: bool = False) -> Generator[Any]:
            with cast("Any", self.conn).transaction(), super()._cursor(pipeline=pipeline) as cursor:
                yield cursor

    try:
        with psycopg.connect(**parameters_of(place), autocommit=True) as connection:
            connection.read_only = True  # each transaction, not the session, which a pooler lends to others
            threads = [str(thread) for (thread,) in connection.execute(_THREADS)]
            connection.row_factory = cast("Any", dict_row)
            yield Reader(cast("Any", connection), serde=serde), threads
    except psycopg.Error as error:
        raise StoreUnavailable(f"PostgreSQL: {without_quotes(error)}") from error
