"""New memory ids."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from inference_core.memory import text as ids
from inference_core.memory.text import canonical_id

FORK = """
import os
from inference_core.memory.text import new_id
new_id()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, ",".join(new_id() for _ in range(300)).encode())
    os._exit(0)
os.wait()
mine = {new_id() for _ in range(300)}
yours = set(os.read(reader, 100_000).decode().split(","))
print(len(mine), len(yours), len(mine & yours))
"""


def test_an_id_is_128_bits_in_hex_and_may_be_stored():
    drawn = ids.new_id()
    assert len(bytes.fromhex(drawn)) == 16
    assert canonical_id(drawn) == drawn


def test_no_id_is_drawn_twice_by_any_thread():
    with ThreadPoolExecutor(8) as threads:
        drawing = [threads.submit(lambda: [ids.new_id() for _ in range(1_000)]) for _ in range(16)]
        drawn = [some.result() for some in drawing]
    assert len({one for some in drawn for one in some}) == 16_000


def test_a_forked_process_draws_other_ids():
    found = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["300", "300", "0"]


def test_what_was_drawn_before_a_fork_is_forgotten_even_if_the_lock_was_held():
    first = ids.new_id()
    ids._lock.acquire()
    ids._forget()
    assert ids._waiting == []
    assert ids.new_id() != first


def test_ids_are_drawn_where_there_is_no_fork(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "register_at_fork")
    assert len(runpy.run_path(ids.__file__)["new_id"]()) == 32
