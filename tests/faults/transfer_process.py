"""A process that copies a store or embeds it anew, and says on standard output how far it is."""

from __future__ import annotations

import os
from contextlib import closing

from support import HashingEmbeddings

from inference_core.stores.factory import open_backend
from inference_core.transfer.copying import copy_store, reembed


class Other(HashingEmbeddings):
    """Another model than the one that the store was filled with."""

    dimensions = 32


def say(done: int, total: int) -> None:
    os.write(1, f"{done} of {total}\n".encode())


def copy(source: str, target: str) -> None:
    with closing(open_backend(source)) as read, closing(open_backend(target)) as written:
        copy_store(read, written, progress=say)
    say(1, 1)


def embed_anew(url: str) -> None:
    reembed(url, Other(), say)
