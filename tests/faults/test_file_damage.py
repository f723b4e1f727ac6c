"""Files that were torn, damaged or tampered with, processes that died and disks that failed: nothing is lost unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count as steps
from pathlib import Path
from typing import Any

import pytest
from file_support import WAYS, Opener, content_of, done, full_disk, keys, lines_of, put

from inference_core.errors import StoreError, StoreUnavailable, WriteUnknown
from inference_core.stores.backends import file_journal
from inference_core.stores.backends.file import FileBackend
from inference_core.stores.backends.file_lines import ReadableLines


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
    def test_a_torn_line_is_not_there_and_is_cut_by_the_next_writer(self, opener: Opener):
        with opener.opened:
            done(opener().apply([[put("a")], [put("b")]]))
        whole = opener.journal().read_bytes()
        start = len(whole) - len(lines_of(opener.journal())[-1])
        for end in {*range(start, len(whole), 7), len(whole) - 1}:
            opener.journal().write_bytes(whole[:end])
            with closing(FileBackend(opener.folder, **opener.options)) as backend:
                assert keys(backend) == ["a"]
                done(backend.apply([[put("c")]]))
                assert keys(backend) == ["a", "c"]
            assert len(lines_of(opener.journal())) == 3

    def test_the_first_line_may_be_torn(self, opener: Opener):
        with opener.opened:
            done(opener().apply([[put("a")]]))
        opener.journal().write_bytes(opener.journal().read_bytes()[:20])
        backend = opener()
        assert (keys(backend), backend.namespaces()) == ([], [])
        done(backend.apply([[put("b")]]))
        assert keys(opener()) == ["b"]

    def test_zeros_after_a_power_loss_are_a_torn_line(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a")]]))
        with opener.journal().open("ab") as file:
            file.write(bytes(500))
        assert keys(opener()) == ["a"]
        done(backend.apply([[put("b")]]))
        assert keys(opener()) == ["a", "b"]

    def test_any_other_damage_is_named_and_nothing_is_overwritten(self, opener: Opener):
        with opener.opened:
            done(opener().apply([[put("a", text="tea")], [put("b")], [put("x", user="bob")]]))
        path = next(path for path in opener.journals() if len(lines_of(path)) == 3)
        whole = path.read_bytes()
        for at in range(0, len(whole), 5):
            damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            path.write_bytes(damaged)
            number = whole[:at].count(b"\n") + 1
            with closing(FileBackend(opener.folder, **opener.options)) as backend:
                with pytest.raises(StoreError, match=rf"{path.name}, line {number} is damaged"):
                    keys(backend)
                outcomes = backend.apply([[put("c")], [put("y", user="bob")]])
                assert isinstance(outcomes[0], StoreError)
                assert isinstance(outcomes[1], list)
                assert "y" in keys(backend, "bob")
                assert {namespace[0] for namespace in backend.namespaces()} == {"bob"}
                assert (backend.pending("m", 9), backend.expired(9)) == ([], [])
            assert path.read_bytes() == damaged

    def test_a_damaged_last_line_end_is_no_torn_line(self, opener: Opener):
        with opener.opened:
            done(opener().apply([[put("a")]]))
        whole = opener.journal().read_bytes()
        opener.journal().write_bytes(whole[:-1] + b"\x0b")
        with pytest.raises(StoreError, match="line 2 is damaged: its end is missing"):
            keys(opener())

    def test_damage_while_it_is_open_is_noticed(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a")]]))
        assert keys(backend) == ["a"]
        with opener.journal().open("ab") as file:
            file.write(b"{}\n")
        for _ in range(2):
            with pytest.raises(StoreError, match="line 3 is damaged"):
                keys(backend)

    def test_a_file_that_was_set_back_is_read_anew(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a")]]))
        older = opener.journal().read_bytes()
        done(backend.apply([[put("b")]]))
        assert keys(backend) == ["a", "b"]
        opener.journal().write_bytes(older)
        assert keys(backend) == ["a"]
        opener.journal().unlink()
        assert keys(backend) == []

    def test_a_line_that_no_journal_has(self, plain: Opener):
        backend = plain()
        for body in (b"{}", b"[1]", b'{"entries":[{}]}', b'{"entries":[{"namespace":["bob"],"key":"k"}]}'):
            done(backend.apply([[put("a")]]))
            path = plain.journal()
            header = json.loads(lines_of(path)[0])
            place = f"{path.name}\n{header['generation']}\n{len(lines_of(path))}".encode()
            with path.open("ab") as file:
                file.write(ReadableLines().seal(body, place) + b"\n")
            with pytest.raises(StoreError, match="is damaged"):
                keys(backend)
            path.unlink()


TAMPERING: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "left out": lambda lines: [lines[0], *lines[2:]],
    "twice": lambda lines: [*lines, lines[-1]],
    "no head": lambda lines: lines[1:],
    "head twice": lambda lines: [lines[0], *lines],
}


class TestTampering:
    @pytest.mark.parametrize("name", TAMPERING)
    def test_lines_stay_where_they_were_written(self, opener: Opener, name: str):
        with opener.opened:
            done(opener().apply([[put("a")], [put("b")], [put("a", n=2)]]))
        opener.journal().write_bytes(b"".join(TAMPERING[name](lines_of(opener.journal()))))
        with pytest.raises(StoreError, match="is damaged"):
            keys(opener())

    def test_lines_stay_with_their_user(self, opener: Opener):
        done(opener().apply([[put("a")], [put("secret", "bob")]]))
        first, second = opener.journals()
        for moved in (lines_of(first)[:1] + lines_of(second)[1:], lines_of(second)):
            first.write_bytes(b"".join(moved))
            with pytest.raises(StoreError, match="is damaged"):
                [keys(opener(), user) for user in ("ada", "bob")]

    def test_lines_of_before_a_compaction_do_not_come_back(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a", n=1)], [put("b")]]))
        before = lines_of(opener.journal())
        with backend._journals.use("ada") as journal:
            journal.compact()
        after = lines_of(opener.journal())
        assert keys(backend) == ["a", "b"]
        opener.journal().write_bytes(b"".join([*after, before[1]]))
        with pytest.raises(StoreError, match="line 4 is damaged"):
            keys(backend)


class Died(BaseException):
    """The process ended here."""


def failing(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException, *, writes: bool) -> list[int]:
    """From now on the file operation number ``step`` raises ``error``, before or after it was done."""
    count = [0]
    real = file_journal.os.fsync

    def fsync(descriptor: int) -> None:
        count[0] += 1
        if writes:
            real(descriptor)
        if count[0] == step:
            raise error
        if not writes:
            real(descriptor)

    monkeypatch.setattr(file_journal.os, "fsync", fsync)
    return count


class TestWritesOfSeveralUsers:
    BATCH = (put("new", "ada"), put("new", "bob"), put("new", "cyd"))

    def states(self, backend: FileBackend) -> list[list[str]]:
        return [keys(backend, user) for user in ("ada", "bob", "cyd")]

    @pytest.mark.parametrize("writes", [False, True])
    def test_a_process_that_dies_at_any_step_leaves_all_or_nothing(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch, writes: bool
    ):
        seen: set[int] = set()
        for step in steps(1):
            opener.folder = opener.folder.with_name(f"step {step}")
            backend = opener()
            done(backend.apply([[put("old", "ada"), put("old", "bob")]]))
            with monkeypatch.context() as patched:
                count = failing(patched, step, Died(), writes=writes)
                try:
                    backend.apply([self.BATCH, [put("other", "ada")]])
                except Died:
                    backend.close()
            after = opener()
            found = self.states(after)
            assert found in ([["old"], ["old"], []], [["new", "old", "other"], ["new", "old"], ["new"]])
            seen.add(len(found[2]))
            done(after.apply([self.BATCH]))
            assert [len(state) for state in self.states(opener())] in ([2, 2, 1], [3, 2, 1])
            assert not (opener.folder / "intent.json").exists()
            if count[0] < step:
                assert step > 6
                break
        assert seen == {0, 1}

    @pytest.mark.parametrize("writes", [False, True])
    def test_a_disk_that_fails_at_any_step_leaves_nothing(
        self, plain: Opener, monkeypatch: pytest.MonkeyPatch, writes: bool
    ):
        for step in steps(1):
            plain.folder = plain.folder.with_name(f"step {step}")
            backend, other = plain(), plain()
            done(backend.apply([[put("old", "ada"), put("old", "bob")]]))
            assert keys(other) == ["old"]
            with monkeypatch.context() as patched:
                count = failing(patched, step, OSError(28, "No space left"), writes=writes)
                raised: StoreError | None = None
                try:
                    backend.apply([self.BATCH])
                except StoreError as error:
                    raised = error
            assert type(raised) is (StoreUnavailable if count[0] >= step else type(None))
            assert raised is None or self.states(other) == self.states(backend) == [["old"], ["old"], []]
            done(backend.apply([self.BATCH]))
            assert self.states(other) == self.states(backend) == [["new", "old"], ["new", "old"], ["new"]]
            if count[0] < step:
                assert step > 6
                break

    def test_a_disk_that_fails_for_good_leaves_it_unknown(self, plain: Opener, monkeypatch: pytest.MonkeyPatch):
        backend = plain()
        done(backend.apply([[put("old", "ada"), put("old", "bob")]]))
        with monkeypatch.context() as patched:
            patched.setattr(file_journal.os, "fsync", full_disk)
            with pytest.raises(WriteUnknown, match="retry"):
                backend.apply([self.BATCH])
        assert self.states(backend)[0] in (["old"], ["new", "old"])

    @pytest.mark.parametrize("left", [b"", b"\0\0\0", b"\0\0\n\0\n", b"{"], ids=["nothing", "zeros", "lines", "start"])
    def test_what_a_dead_process_left_is_finished_by_readers(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch, left: bytes
    ):
        backend, reader = opener(), opener()
        with monkeypatch.context() as patched:
            failing(patched, 3, Died(), writes=True)
            with pytest.raises(Died):
                backend.apply([self.BATCH])
        backend.close()
        for path in opener.journals():
            path.write_bytes(left)
        assert self.states(reader) == [["new"], ["new"], ["new"]]

    def test_an_intent_does_not_touch_what_was_compacted_since(self, opener: Opener):
        backend = opener()
        done(backend.apply([[put("a"), put("a", "bob")]]))
        appended: list[Any] = []
        real = backend._intent.write
        backend._intent.write = lambda appends: appended.extend(appends) or real(appends)  # pyright: ignore[reportAttributeAccessIssue]
        done(backend.apply([[put("b"), put("b", "bob")]]))
        for user in ("ada", "bob"):
            with backend._journals.use(user) as journal:
                journal.compact()
        before = content_of(opener.folder)
        real(appended)
        assert [keys(opener(), user) for user in ("ada", "bob")] == [["a", "b"]] * 2
        assert content_of(opener.folder) == before

    @pytest.mark.parametrize("name", ["../../store.json", "/etc/passwd", "store.json", ""])
    def test_an_intent_names_journals_only(self, plain: Opener, name: str):
        backend = plain()
        body = json.dumps({"files": [[name, "", 0, ""]]}, separators=(",", ":")).encode()
        (plain.folder / "intent.json").write_bytes(ReadableLines().seal(body, b"intent"))
        with pytest.raises(StoreError, match=r"intent\.json is damaged"):
            keys(backend)

    def test_a_damaged_intent_is_named(self, plain: Opener):
        backend = plain()
        (plain.folder / "intent.json").write_bytes(b'{"files":[]}')
        with pytest.raises(StoreError, match=r"intent\.json is damaged"):
            backend.apply([[put("a")]])
