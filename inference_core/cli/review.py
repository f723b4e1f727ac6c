"""``review``: the memories that wait for the user's confirmation, approved or rejected one by one or at once."""

from __future__ import annotations

import getpass
import sys
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inference_core.cli.options import Opened, Target, on_store
from inference_core.cli.output import as_json, counted, note, one_line, print_numbered, stamp
from inference_core.errors import InvalidInput

if TYPE_CHECKING:
    from inference_core.services.operations.review import PendingMemory

_ALL: Final = "all"


@on_store("user", "agent", "url", "embeddings", "json")
def review(
    target: Target,
    approve: Annotated[
        list[str] | None, typer.Option("--approve", metavar="ID", help="Approve it, or with all those of --session.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="The new text of the one that you approve.")] = None,
    reject: Annotated[
        list[str] | None, typer.Option("--reject", metavar="ID", help="Reject it, or with all those of --session.")
    ] = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="Why you reject.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only those of this session.")] = None,
) -> None:
    """Approve or reject the memories of all agents that wait for the user's confirmation.

    In a terminal, asks about one after the other; elsewhere, and with --json, lists them. --approve and --reject may be
    given several times.
    """
    given = [*(approve or ()), *(reject or ())]
    if text is not None and (len(approve or ()) != 1 or _ALL in given):
        raise typer.BadParameter("--text is the text of one memory: give one --approve")
    if len(set(given)) < len(given) or (_ALL in given and (session is None or len(given) > 1)):
        raise typer.BadParameter("Decide each once; all decides about one --session, without others")
    is_asked = not (given or target.json) and sys.stdin.isatty() and sys.stderr.isatty()
    with target.open(embeds=bool(given) or is_asked) as memory:
        reviewer = _Reviewer(memory, target.user, f"admin:{getpass.getuser()}")
        for key in approve or ():
            reviewer.approve(text, **({"session_id": session} if key == _ALL else {"pending_id": key}))
        for key in reject or ():
            reviewer.reject(why, **({"session_id": session} if key == _ALL else {"pending_id": key}))
        left = memory.sync.list_pending(target.user, session_id=session)
        if is_asked:
            for number, pending in enumerate(left, 1):
                _show([pending], memory.zone, number)
                if not reviewer.asks(pending.id):
                    break
        elif not (given or target.json):
            _show(left, memory.zone)
    done = f"{len(reviewer.approved)} approved, {len(reviewer.rejected)} rejected"
    waiting = f"{counted(len(left), 'memory waits', 'memories wait')} for confirmation"
    document = {"approved": reviewer.approved, "rejected": reviewer.rejected, "pending": list(map(_as_json, left))}
    target.print(document, done if given or is_asked else waiting)
    for key in set(given) - {*reviewer.approved, *reviewer.rejected, _ALL}:
        raise InvalidInput(f"{key!r} was decided otherwise before, or does not wait any more; nothing was changed")


class _Reviewer:
    """What ``by`` decides about what waits for ``user``."""

    def __init__(self, memory: Opened, user: str, by: str) -> None:
        self._sync, self._user, self._by = memory.sync, user, by
        self.approved: list[str] = []
        self.rejected: list[str] = []

    def approve(self, text: str | None, **which: str | None) -> None:
        self.approved += self._sync.approve_pending(self._user, edit=text, by=self._by, **which)

    def reject(self, why: str | None, **which: str | None) -> None:
        self.rejected += self._sync.reject_pending(self._user, why=why, by=self._by, **which)

    def asks(self, key: str) -> bool:
        """Asks what becomes of the pending memory ``key``, and does it; False to end."""
        while True:
            try:
                match _answer("[a]pprove, [e]dit and approve, [r]eject, [s]kip or [q]uit? "):
                    case "a":
                        self.approve(None, pending_id=key)
                    case "e":
                        self.approve(_answer("New text: "), pending_id=key)
                    case "r":
                        self.reject(_answer("Why? ") or None, pending_id=key)
                    case "s":
                        pass
                    case "q":
                        return False
                    case _:
                        continue
            except EOFError:
                return False
            except InvalidInput as error:  # a text that cannot be stored: ask again
                note(str(error), "red")
                continue
            return True


def _answer(question: str) -> str:
    """A line of the terminal; a single letter in lower case. Raises EOFError."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    given = line.strip()
    return given.lower() if len(given) == 1 else given


def _show(found: list[PendingMemory], zone: tzinfo, first: int = 1) -> None:
    rows: list[tuple[str, list[str]]] = []
    for one in found:
        source = one.document.value["source"]
        made = [f"{name} {source[key]}" for key, name in (("tool", "tool"), ("thread_id", "thread")) if key in source]
        until = f"waits until {stamp(one.expires_at, zone)}"
        facts = [" · ".join([one.document.memory_type or "", f"from {source['origin']}", *made, until])]
        ends = [f"replaces: {one_line(old.content)}" for old in one.ends]
        rows.append((one.document.content, [*facts, one.why, *ends, f"id {one.id}"]))
    print_numbered(rows, first)


def _as_json(pending: PendingMemory) -> dict[str, Any]:
    document = as_json(pending.document)
    return document | {
        "source": pending.document.value["source"],
        "why": pending.why,
        "proposed_at": pending.proposed_at,
        "expires_at": pending.expires_at,
        "ends": [as_json(one) for one in pending.ends],
    }
