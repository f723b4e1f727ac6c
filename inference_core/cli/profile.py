"""``profile``: what agents are told about a user first, printed or edited as one text."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import typer

from inference_core.cli.options import STREAM, Target, on_store, option
from inference_core.cli.output import CommandFailed, counted, note, print_json
from inference_core.errors import InferenceCoreError
from inference_core.memory.text import harmless
from inference_core.services.operations.profile import ProfileText

_ABOUT: Final = (
    "<!-- state {} | One memory a line: change, remove or add lines. Leave this line and the headings as they are. -->"
)


@on_store("user", "agent", "url", "embeddings", "json", reads_files=True)
def profile(
    target: Target,
    edit: Annotated[bool, option("--edit", "Open it in $VISUAL or $EDITOR, and make the changes.")] = False,
    file: Annotated[
        str | None, option("--file FILE", "Make the changes that are in this file; - is standard input.")
    ] = None,
) -> None:
    """Show or edit what agents are told first.

    That is the user's rules, preferences and pinned memories, one a line. A changed line updates its memory, a removed
    line deletes it, and a new line is saved; what is the same is not written. Changes in between by others are kept.
    """
    if edit and file is not None:
        raise typer.BadParameter("--edit opens an editor, and --file takes what was edited: pass one of them")
    editor = _editor() if edit else []
    given = _read(file) if file is not None else None
    with target.open() as memory:
        found = memory.sync.get_profile(target.user)
    if given is not None:
        if _state(found) not in given.split("\n"):
            raise CommandFailed(
                "Nothing was changed: the profile has changed since this text was made, or the first line is missing; "
                "print it again, and make your changes there"
            )
        _change(target, given, found)
    elif edit:
        _edit(target, editor, found)
    elif target.json:
        print_json(asdict(found))
    else:  # elsewhere than on a terminal as it is, since an escape would count as a change
        sys.stdout.write(harmless(_told(found)) if sys.stdout.isatty() else _told(found))


def _told(found: ProfileText) -> str:
    return f"{_state(found)}\n\n{found.text}"


def _state(found: ProfileText) -> str:
    """The line that tells a text made from this profile from one made before: that would delete what is new."""
    return _ABOUT.format(sha256(found.text.encode()).hexdigest()[:12])


def _read(file: str) -> str:
    try:
        text = sys.stdin.read() if file == STREAM else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{file} is not text in UTF-8: {error}") from error
    return text.replace("\r\n", "\n")


def _editor() -> list[str]:
    """The command of the user's editor, found as git does. Raises CommandFailed if there is none."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    usual = shutil.which("vi") if sys.stdin.isatty() and sys.stdout.isatty() else None
    if not named and usual is None:
        raise CommandFailed(
            "There is no editor, or no terminal for it: set VISUAL or EDITOR. Or print the profile to a file, change "
            "that, and pass it with --file"
        )
    return shlex.split(named) if named else [str(usual)]


def _edit(target: Target, editor: list[str], found: ProfileText) -> None:
    """Opens the profile in the editor, and makes the changes; a text whose changes are refused stays where it is."""
    path = Path(tempfile.mkdtemp(prefix="profile-")) / "profile.md"
    path.write_text(_told(found), encoding="utf-8")
    try:
        code = subprocess.call([*editor, str(path)])  # noqa: S603 - the user's own editor
        if code:
            raise CommandFailed(f"Nothing was changed: the editor {editor[0]} ended with the exit code {code}")
        _change(target, _read(str(path)), found)
    except (InferenceCoreError, OSError) as error:
        if path.exists() and path.read_bytes() != _told(found).encode():
            raise CommandFailed(f"{str(error).rstrip('.')}. Your text is kept in {path}") from error
        shutil.rmtree(path.parent)
        raise
    shutil.rmtree(path.parent)


def _change(target: Target, text: str, found: ProfileText) -> None:
    """Makes the changes that lead from the profile ``found`` to ``text``, and prints them."""
    with target.open(embeds=True) as memory:
        made = memory.sync.edit_profile(target.user, text, found.text)
    if target.json:
        print_json({"changes": [asdict(one) for one in made]})
        return
    for one in made:
        note(str(one))
    note(counted(len(made), "change", "changes") if made else "Nothing was changed")
    if gone := [one.memory_id for one in made if one.after is None]:
        note(f"To bring back what was deleted: inference-core restore {' '.join(gone)}")
