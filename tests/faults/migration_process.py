"""A process that migrates a store and says on standard output how far it is; at the end, how many it wrote."""

from __future__ import annotations

import os
import sys

from inference_core.migration import migrate


def say(done: int, total: int) -> None:
    os.write(1, f"{done} of {total}\n".encode())


if __name__ == "__main__":
    migrate.BATCH = int(sys.argv[2])  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
    say(0, 1)
    report = migrate.migrate_flat(sys.argv[1], progress=say)
    os.write(1, f"written {report.written}\n".encode())
