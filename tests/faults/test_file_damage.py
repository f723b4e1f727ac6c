"""Files that were cut, damaged or tampered with, processes that died and disks that failed: nothing is lost unseen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count as steps
from pathlib import Path
from typing import Any

import pytest
from file_support import WAYS, Opener, content_of, done, keys, lines_of, put
from processes import Forked
from support import GOLDEN

from inference_core.errors import StoreError, StoreUnavailable, WriteUnknown
from inference_core.stores.backend import Unreadable
from inference_core.stores.backends.file import FileBackend, FileFormat

MANY = [put(f"k{number:03}", text="tea") for number in range(150)]
"""Rows that fill several lines, however they are written."""


@pytest.fixture(params=WAYS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "memories", WAYS[request.param])
    with opener.opened:
        yield opener


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "memories", {})
    with opener.opened:
        yield opener


class TestDamage:
    def test_any_damage_is_named_and_nothing_is_overwritten(self, opener: Opener):
        with opener.opened:
            done(opener().apply([MANY[:2], [put("x", user="bob")]]))
        path = opener()._path("ada")
        whole = path.read_bytes()
        flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 5)]
        for damaged in [*flipped, *(whole[:end] for end in range(0, len(whole), 7)), whole[:-1], whole[:-1] + b"\x0b"]:
            path.write_bytes(damaged)
            same = next(
                (at for at, pair in enumerate(zip(damaged, whole, strict=False)) if len(set(pair)) > 1), len(damaged)
            )
            with closing(FileBackend(opener.folder, **opener.options)) as backend:
                with pytest.raises(StoreError, match=rf"{path.name}, line {whole[:same].count(10) + 1} is damaged"):
                    keys(backend)
                outcomes = backend.apply([[put("c")], [put("y", user="bob")]])
                assert isinstance(outcomes[0], StoreError)
                assert isinstance(outcomes[1], list)
                assert "y" in keys(backend, "bob")
                assert {namespace[0] for namespace in backend.namespaces()} == {"bob"}
                assert (backend.pending("m", 9), backend.expired(9)) == ([], [])
            assert path.read_bytes() == damaged

    def test_damage_while_it_is_open_is_noticed(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a")]]))
        assert keys(backend) == ["a"]
        with opener.file().open("ab") as file:
            file.write(b"{}\n")
        for _ in range(2):
            with pytest.raises(StoreError, match="line 3 is damaged"):
                keys(backend)

    def test_a_file_that_was_set_back_is_read_anew(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a")]]))
        older = opener.file().read_bytes()
        done(backend.apply([[put("b")]]))
        assert keys(backend) == ["a", "b"]
        opener.file().write_bytes(older)
        assert keys(backend) == ["a"]
        opener.file().unlink()
        assert keys(backend) == []

    def test_a_line_that_no_file_has(self, plain: Opener):
        backend = plain()
        for body in (b"{}", b"[1]", b'{"entries":[{}]}', b'{"entries":[{"namespace":["bob"],"key":"k"}]}'):
            done(backend.apply([[put("a")]]))
            path = plain.file()
            header = json.loads(lines_of(path)[0])
            place = f"{path.name}\n{header['generation']}\n{len(lines_of(path))}".encode()
            with path.open("ab") as file:
                file.write(FileFormat().encode_line(body, place) + b"\n")
            with pytest.raises(StoreError, match="is damaged"):
                keys(backend)
            path.unlink()

    @pytest.mark.parametrize("line", [0, 1])
    def test_repair_keeps_the_lines_that_can_be_read(self, opener: Opener, line: int):
        backend = opener()
        done(backend.apply([MANY]))
        lines = lines_of(opener.file())
        lines[line] = b"x" + lines[line]
        opener.file().write_bytes(b"".join(lines))
        found = [one for one in backend.inspect() if isinstance(one, Unreadable)]
        assert [(one.root, one.key) for one in found] == [("ada" if line else None, opener.file().name)]
        assert backend.discard(found) == 1
        assert backend.count([("ada", "semantic")]) == (0 if line == 0 else 149 if opener.options == {} else 150 - 64)
        assert backend.apply([[put("new")]]) == [[1]]
        assert keys(opener()) == keys(backend)


class TestJournalsOfEarlierVersions:
    @pytest.fixture
    def bob(self, tmp_path: Path) -> Opener:
        return Opener(shutil.copytree(GOLDEN / "file-1", tmp_path / "memories"), {})

    @pytest.mark.parametrize("torn", [b"", b'{"entries":[{"name', bytes(500)], ids=["whole", "torn", "zeros"])
    def test_the_last_line_of_a_row_counts_and_one_without_its_end_is_not_there(self, bob: Opener, torn: bytes):
        path = bob.folder / "users" / "bob.jsonl"
        with path.open("ab") as file:
            file.write(torn)
        with bob.opened:
            backend = bob()
            (row,) = backend.get([(("bob", "semantic"), "coffee")])
            assert row is not None
            assert (row.version, row.value["content"]) == (2, "Likes black coffee")
            done(backend.apply([[put("new", "bob")]]))
            assert sorted(keys(bob(), "bob")) == ["coffee", "new"]
        assert [b"Likes coffee" in line for line in lines_of(path)] == [False] * 3

    def test_damage_is_named_and_what_was_before_it_can_be_kept(self, bob: Opener):
        path = bob.folder / "users" / "bob.jsonl"
        header, first, second = lines_of(path)
        path.write_bytes(header + first + second.replace(b"black", b"brown"))
        with bob.opened:
            backend = bob()
            with pytest.raises(StoreError, match=r"bob\.jsonl, line 3 is damaged"):
                keys(backend, "bob")
            assert backend.discard([one for one in backend.inspect("bob") if isinstance(one, Unreadable)]) == 1
            (row,) = backend.get([(("bob", "semantic"), "coffee")])
            assert row is not None
            assert row.value["content"] == "Likes coffee"


TAMPERING: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "left out": lambda lines: [lines[0], *lines[2:]],
    "last left out": lambda lines: lines[:-1],
    "twice": lambda lines: [*lines, lines[-1]],
    "no head": lambda lines: lines[1:],
    "head twice": lambda lines: [lines[0], *lines],
}


class TestTampering:
    @pytest.mark.parametrize("name", TAMPERING)
    def test_lines_stay_where_they_were_written(self, opener: Opener, name: str):
        with opener.opened:
            done(opener().apply([MANY]))
        opener.file().write_bytes(b"".join(TAMPERING[name](lines_of(opener.file()))))
        with pytest.raises(StoreError, match="is damaged"):
            keys(opener())

    def test_lines_stay_with_their_user(self, opener: Opener):
        done(opener().apply([[put("a")], [put("secret", "bob")]]))
        first, second = opener.files()
        for moved in (lines_of(first)[:1] + lines_of(second)[1:], lines_of(second)):
            first.write_bytes(b"".join(moved))
            with pytest.raises(StoreError, match="is damaged"):
                [keys(opener(), user) for user in ("ada", "bob")]

    def test_lines_of_an_earlier_state_do_not_fit_in(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a", n=1)]]))
        before = lines_of(opener.file())
        done(backend.apply([[put("a", n=2)]]))
        after = lines_of(opener.file())
        for mixed in ([after[0], before[1]], [before[0], after[1]]):
            opener.file().write_bytes(b"".join(mixed))
            with pytest.raises(StoreError, match="line 2 is damaged"):
                keys(backend)


class Died(BaseException):
    """The process ended here."""


def failing(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException, *, does: bool) -> list[int]:
    """From now on the fsync or rename number ``step`` raises ``error``, after it was done if it ``does`` it."""
    count = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            count[0] += 1
            if count[0] == step:
                if does:
                    real(*arguments)
                raise error
            return real(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return count


def write_for_ever(folder: str) -> None:
    """Writes the same number for three users, until it is killed."""
    backend = FileBackend(Path(folder))
    for number in steps():
        done(backend.apply([[put("k", user, n=number) for user in ("ada", "bob", "cyd")]]))
        os.write(1, f"{number}\n".encode())


class TestWritesOfSeveralUsers:
    BATCH = (put("new", "ada"), put("new", "bob"), put("new", "cyd"))

    def states(self, backend: FileBackend) -> list[list[str]]:
        return [keys(backend, user) for user in ("ada", "bob", "cyd")]

    def test_a_killed_process_leaves_all_or_nothing(self, plain: Opener):
        last = -1
        for _ in range(4):
            process = Forked(write_for_ever, str(plain.folder))
            said = [process.said.readline() for _ in range(5)]
            process.kill()
            last = int([*said, *(line for line in process.end()[1] if line)][-1])
            rows = plain().get([((user, "semantic"), "k") for user in ("ada", "bob", "cyd")])
            assert len({row.value["n"] for row in rows if row}) == 1
            assert all(row and row.value["n"] in (last, last + 1) for row in rows)
        assert [path.suffix for path in plain.files()] == [".jsonl"] * 3

    @pytest.mark.parametrize("does", [False, True])
    def test_a_process_that_dies_at_any_step_leaves_all_or_nothing(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch, does: bool
    ):
        seen: set[int] = set()
        for step in steps(1):
            opener.folder = opener.folder.with_name(f"step {step}")
            backend, reader = opener(), opener()
            done(backend.apply([[put("old", "ada"), put("old", "bob")]]))
            with monkeypatch.context() as patched:
                count = failing(patched, step, Died(), does=does)
                try:
                    backend.apply([self.BATCH, [put("other", "ada")]])
                except Died:
                    backend.close()
            found = self.states(reader)
            assert found in ([["old"], ["old"], []], [["new", "old", "other"], ["new", "old"], ["new"]])
            seen.add(len(found[2]))
            assert self.states(opener()) == found
            done(opener().apply([self.BATCH]))
            assert [len(state) for state in self.states(reader)] in ([2, 2, 1], [3, 2, 1])
            assert not (opener.folder / "intent.json").exists()
            assert len(opener.files()) == 3
            if count[0] < step:
                assert step > 10
                break
        assert seen == {0, 1}

    @pytest.mark.parametrize("does", [False, True])
    @pytest.mark.parametrize("users", [1, 3])
    def test_a_disk_that_fails_at_any_step_leaves_nothing_or_says_that_it_is_unknown(
        self, plain: Opener, monkeypatch: pytest.MonkeyPatch, does: bool, users: int
    ):
        old: list[list[str]] = [["old"], ["old"], []]
        batch = self.BATCH[:users]
        new = [["new", *state] if at < users else state for at, state in enumerate(old)]
        for step in steps(1):
            plain.folder = plain.folder.with_name(f"step {step}")
            backend, other = plain(), plain()
            done(backend.apply([[put("old", "ada"), put("old", "bob")]]))
            assert self.states(other) == old
            raised: StoreError | None = None
            with monkeypatch.context() as patched:
                count = failing(patched, step, OSError(28, "No space left"), does=does)
                try:
                    backend.apply([batch])
                except StoreError as error:
                    raised = error
            if count[0] < step:
                assert raised is None
                break
            assert type(raised) in (StoreUnavailable, WriteUnknown)
            if type(raised) is StoreUnavailable and not does:
                assert self.states(other) == self.states(backend) == old
            assert self.states(other) == self.states(backend)
            assert self.states(backend) in (old, new)
            assert does or len(list((plain.folder / "users").glob("*.tmp"))) == 0
            done(backend.apply([batch]))
            assert self.states(other) == self.states(backend) == new

    def test_batches_that_share_a_transaction_make_nobody_wait(self, plain: Opener, monkeypatch: pytest.MonkeyPatch):
        """The cause: readers wait for an intent, and one was written for every group of users who saved together."""
        backend = plain()
        renamed: list[str] = []
        real = os.replace

        def replace(old: Path, new: Path) -> None:
            renamed.append(new.name)
            real(old, new)

        monkeypatch.setattr(os, "replace", replace)
        done(backend.apply([[put("a", "ada")], [put("b", "bob")]]))
        assert renamed == ["ada.jsonl", "bob.jsonl"]
        done(backend.apply([[put("a", "ada"), put("b", "bob")]]))
        assert renamed[2:] == ["intent.json", "ada.jsonl", "bob.jsonl"]

    @pytest.mark.parametrize("name", ["../../store.json.0.tmp", "/tmp/passwd.tmp", "ada.jsonl", "..", ""])
    def test_an_intent_names_files_of_users_only(self, plain: Opener, name: str):
        backend = plain()
        (plain.folder / "intent.json").write_text(json.dumps({"temporaries": [name]}))
        before = content_of(plain.folder)
        with pytest.raises(StoreError, match=r"intent\.json is damaged"):
            keys(backend)
        assert content_of(plain.folder) == before

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"temporaries":5}', '{"files":[],"sum":"0"}'])
    def test_a_damaged_intent_and_one_of_an_earlier_version_are_named(self, plain: Opener, text: str):
        backend = plain()
        (plain.folder / "intent.json").write_text(text)
        for call in (lambda: backend.apply([[put("a")]]), plain):
            with pytest.raises(StoreError, match=r"intent\.json is damaged, or an earlier version"):
                call()
