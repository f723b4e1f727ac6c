"""A process that migrates a store and says on standard output how far it is; at the end, how many it wrote."""

from __future__ import annotations

import os

from inference_core.transfer import migrate


def say(done: int, total: int) -> None:
    os.write(1, f"{done} of {total}\n".encode())


def migrate_and_tell(url: str, batch: int) -> None:
    migrate.BATCH = batch  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
    say(0, 1)
    report = migrate.migrate_memories(url, progress=say)
    os.write(1, f"written {report.written}\n".encode())
