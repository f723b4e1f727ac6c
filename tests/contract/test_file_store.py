"""A store of files: what lies in the folder, who may open it, and how several share it."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from file_support import KEY, WAYS, Opener, content_of, done, keys, lines_of, put
from hypothesis import given
from hypothesis import strategies as st
from support import expanded, load

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreError,
    UnsupportedSchema,
)
from inference_core.services.user_memories import count_user_memories
from inference_core.stores.backend import Put, Remove
from inference_core.stores.backends import file
from inference_core.stores.backends.file import FileBackend, FileFormat, parse_key
from inference_core.stores.factory import open_backend

FORMATS = [FileFormat(), FileFormat(compresses=True), FileFormat(key=KEY, salt=bytes(16))]
LABELS = [
    *("a", "A", "\u00e4", "a\u0308", "con", "CON", "con.txt", "nul", "aux", "com1", "COM1", "lpt9", "prn", "a.", "a "),
    *(".", "..", "../../etc/passwd", "/", "\\", "C:\\x", "a/b", "a\x00b", "", "~", "-", "*", "?", "x" * 64, "x" * 65),
    *(text for entry in load("hostile_ids.json") if isinstance(text := expanded(entry["id"]), str)),
]


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


class TestLayout:
    def test_a_person_can_read_it(self, plain: Opener):
        with open_store(f"file:///{plain.folder}", embeddings=None, audit=False) as store:
            service = AgentMemoryStoreService(store).sync
            service.save_memory("ada", "Prefers gr\u00fcnen Tee", "preferences")
            service.save_memory("Ada", "Another user", "facts")
        assert [path.name.partition("~")[0] for path in plain.files()] == ["ada.jsonl", "ada"]
        header, line = map(json.loads, lines_of(plain.folder / "users" / "ada.jsonl"))
        assert header["root"] == "ada"
        assert line["entries"][0]["value"]["content"] == "Prefers gr\u00fcnen Tee"
        assert "gr\u00fcnen Tee" in (plain.folder / "users" / "ada.jsonl").read_text(encoding="utf-8")

    def test_labels_have_files_of_their_own(self):
        for form in FORMATS:
            names = {label: form.file_name(label) for label in LABELS}
            assert len({name.casefold() for name in names.values()}) == len(names)
            for name in names.values():
                assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-~.")
                stem, dot, suffix = name.partition(".")
                assert (dot, suffix) == (".", form.suffix[1:])
                assert 0 < len(stem) <= 72
                assert stem not in {"con", "prn", "aux", "nul", "com1", "lpt9"}
                assert not stem.startswith("-")

    @given(st.lists(st.text(min_size=1, max_size=70), min_size=2, max_size=9, unique=True))
    def test_different_labels_have_different_files_whatever_the_case(self, labels: list[str]):
        for form in FORMATS:
            assert len({form.file_name(label).casefold() for label in labels}) == len(labels)

    @given(st.binary(max_size=300), st.binary(max_size=30))
    def test_lines_come_back_and_are_lines(self, body: bytes, place: bytes):
        for form in FORMATS:
            wrapped = b'{"a":"' + body.hex().encode() + b'"}' if form.suffix == ".jsonl" else body
            line = form.encode_line(wrapped, place)
            assert b"\n" not in line
            assert form.decode_line(line, place) == wrapped
            with pytest.raises(ValueError, match=r"."):
                form.decode_line(line, place + b"x")

    def test_an_encrypted_folder_tells_nothing_about_users(self, tmp_path: Path):
        for compresses in (False, True):
            folder = tmp_path / f"sealed {compresses}"
            with closing(FileBackend(folder, key=KEY, compresses=compresses)) as backend:
                done(backend.apply([[put("canary-key", "canary-user", text="canary-text")]]))
                assert keys(backend, "canary-user") == ["canary-key"]
            everything = "".join(content_of(folder)).encode() + b"".join(content_of(folder).values())
            assert b"canary" not in everything
            assert KEY not in everything

    def test_the_same_user_has_another_file_in_another_encrypted_folder(self, tmp_path: Path):
        openers = [Opener(tmp_path / name, WAYS["encrypted"]) for name in "ab"]
        for opener in openers:
            with opener.opened:
                done(opener().apply([[put("k")]]))
        assert openers[0].file().name != openers[1].file().name

    def test_compression_makes_it_smaller(self, tmp_path: Path):
        sizes: list[int] = []
        for name in ("plain", "compressed"):
            opener = Opener(tmp_path / name, WAYS[name])
            with opener.opened:
                done(opener().apply([[put(f"k{number}", text="tea and more tea " * 20) for number in range(20)]]))
            sizes.append(opener.file().stat().st_size)
        assert sizes[1] < sizes[0] / 4


class TestOpening:
    @pytest.mark.parametrize(
        ("made", "opened", "message"),
        [
            ("encrypted", {}, "is encrypted: set AGENT_MEMORY_ENCRYPTION_KEY"),
            ("encrypted", {"key": bytes(32)}, "with another key"),
            ("both", {"compresses": True}, "is encrypted"),
            ("plain", {"key": KEY}, "is not encrypted"),
            ("compressed", {"key": KEY, "compresses": True}, "is not encrypted"),
            ("plain", {"compresses": True}, "not compressed"),
        ],
    )
    def test_what_does_not_fit_is_refused_before_anything_is_written(
        self, tmp_path: Path, made: str, opened: dict[str, Any], message: str
    ):
        with closing(FileBackend(tmp_path, **WAYS[made])) as backend:
            done(backend.apply([[put("a")]]))
        before = content_of(tmp_path)
        with pytest.raises(ConfigurationError, match=message) as raised:
            FileBackend(tmp_path, **opened)
        assert content_of(tmp_path) == before
        assert KEY.hex() not in str(raised.value)

    def test_a_folder_remembers_that_it_is_compressed(self, tmp_path: Path):
        url = f"file:///{tmp_path}/x"
        with closing(open_backend(f"{url}?compress=zstd")) as backend:
            done(backend.apply([[put("a")]]))
        with closing(open_backend(url)) as backend:
            assert backend.count([("ada", "semantic")]) == 1
            assert backend.get_meta("schema_version") == "1"

    @pytest.mark.parametrize(
        "change",
        [{"schema_version": 2}, {"compression": "lz4"}, {"encryption": {"cipher": "X", "salt": ""}}],
        ids=["version", "compression", "cipher"],
    )
    def test_a_newer_schema_is_refused(self, plain: Opener, change: dict[str, Any]):
        plain()
        path = plain.folder / "store.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(UnsupportedSchema, match="Update the package"):
            plain()

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema_version": "x"}', "null"])
    def test_a_damaged_manifest(self, plain: Opener, text: str):
        plain()
        (plain.folder / "store.json").write_text(text)
        with pytest.raises(StoreError, match=r"store\.json is damaged"):
            plain()

    def test_a_lost_manifest(self, plain: Opener):
        plain()
        (plain.folder / "store.json").unlink()
        with pytest.raises(ConfigurationError, match=r"store\.json is missing"):
            plain()

    def test_a_path_that_is_a_file(self, tmp_path: Path):
        (tmp_path / "file").write_text("x")
        for path in (tmp_path / "file", tmp_path / "file" / "below", Path("a\x00b")):
            with pytest.raises(ConfigurationError, match="Cannot open the store"):
                FileBackend(path)

    @pytest.mark.parametrize("key", [KEY, bytes(32), b"\xff" * 32], ids=["any", "zeros", "ones"])
    def test_a_key_is_32_bytes(self, key: bytes):
        forms = [key.hex(), base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode() + "\n", key]
        assert [parse_key(form) for form in forms] == [key] * 4

    @pytest.mark.parametrize("text", ["letmein", "zz" * 32, KEY.hex()[:-2], b"short", "\u00e4" * 64, " "])
    def test_what_is_no_key_is_refused_and_not_told(self, text: str | bytes, tmp_path: Path):
        with pytest.raises(ConfigurationError, match="must be 32 random bytes") as raised:
            open_backend(f"file:///{tmp_path}/x", encryption_key=text)
        assert str(text).strip() == "" or str(text) not in str(raised.value)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/a.db"])
    def test_other_stores_do_not_take_a_key_and_stay_open_to_everybody(self, url: str, tmp_path: Path):
        with pytest.raises(ConfigurationError, match="Only file stores are encrypted"):
            open_store(url.format(tmp_path), encryption_key=KEY)

    @pytest.mark.parametrize(("module", "way"), [("zstandard", "compressed"), ("cryptography.exceptions", "encrypted")])
    def test_a_missing_extra(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, way: str):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=r"\[file\]"):
            FileBackend(tmp_path, **WAYS[way])

    @pytest.mark.parametrize(
        "url", ["file:///x?compress=gzip", "file:///x?key=1", "file://x", "file:///", "file:///x?compress="]
    )
    def test_a_url_that_names_no_folder(self, url: str):
        with pytest.raises(ConfigurationError, match="file"):
            open_backend(url)

    def test_a_relative_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        open_backend("file:///my%20memories").close()
        assert (tmp_path / "my memories" / "store.json").is_file()


class TestSharing:
    def test_what_one_has_written_the_other_reads(self, opener: Opener):
        first, second = opener(), opener()
        for number in range(20):
            writer, reader = (first, second) if number % 2 else (second, first)
            done(writer.apply([[put(f"k{number:02}"), put("shared", n=number)]]))
            assert len(keys(reader)) == number + 2
            row = reader.get([(("ada", "semantic"), "shared")])[0]
            assert row is not None
            assert (row.version, row.value) == (number + 1, {"n": number})
        first.set_meta("color", "red")
        assert second.get_meta("color") == "red"

    def test_writes_do_not_disturb_readers(self, opener: Opener):
        writer, reader = opener(), opener()
        failures: list[BaseException] = []
        seen: list[int] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    row = reader.get([(("ada", "semantic"), "a")])[0]
                    seen.append(row.version if row else 0)
            except StoreError as error:
                failures.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        for number in range(60):
            done(writer.apply([[put("a", text=f"{number}" * 1_000)]]))
        stop.set()
        thread.join()
        assert not failures
        assert seen == sorted(seen)
        assert [row and row.version for row in opener().get([(("ada", "semantic"), "a")])] == [60]

    def test_a_write_within_a_tick_of_the_clock_is_seen(self, opener: Opener, monkeypatch: pytest.MonkeyPatch):
        """The cause: a file of the same size, at the same time, may also get the inode of the one before the last."""
        writer, reader = opener(), opener()
        monkeypatch.setattr(file.time, "time_ns", lambda: 10**18)
        times: list[int] = []
        for number in range(6):
            done(writer.apply([[put("a", n=number)]]))
            times.append(opener.file().stat().st_mtime_ns)
            if number % 2:
                assert [row and row.value for row in reader.get([(("ada", "semantic"), "a")])] == [{"n": number}]
        assert times == sorted(set(times))

    def test_what_a_user_deleted_leaves_the_files(self, plain: Opener):
        backend = plain()
        done(backend.apply([[put(f"k{number}", text="canary")] for number in range(20)]))
        gone = [Remove(namespace=("ada", "semantic"), key=f"k{number}") for number in range(20)]
        done(backend.apply([gone]))
        assert b"canary" not in b"".join(content_of(plain.folder).values())
        assert (backend.heads([("ada", "semantic")]), len(list(backend.changes(("ada", "semantic"), 0)))) == ([40], 20)
        assert plain().apply([[put("k0")]]) == [[3]]

    def test_what_an_interrupted_write_left_is_removed(self, plain: Opener):
        plain()
        left = plain.folder / "users" / "ada.jsonl.0a1b2c3d.tmp"
        left.write_text("canary")
        assert plain().namespaces() == []
        assert not left.exists()

    def test_files_in_memory_are_bounded(self, opener: Opener, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(file, "_CACHE_BYTES", 30_000)
        backend = opener()
        for number in range(20):
            done(backend.apply([[put("k", f"u{number}", text=f"{number}" * 1_000)]]))
        for number in range(20):
            assert keys(backend, f"u{number}") == ["k"]
            cached = [user.signature[1] for user in backend._cache.values() if user.signature]
            assert sum(cached) <= 30_000
        done(backend.apply([[put("large", text="".join(map(str, range(20_000))))]]))
        assert (keys(backend), len(backend.namespaces())) == (["large"], 21)

    def test_asking_for_users_who_are_not_there_leaves_nothing(self, plain: Opener):
        backend = plain()
        for label in LABELS:
            assert backend.count([(label, "semantic")]) == 0
        assert plain.files() == []

    def test_a_label_that_is_no_text_fails_alone(self, opener: Opener):
        outcomes = opener().apply([[put("a")], [put("x"), put("x", "\ud800")], [put("\ud800")], [put("c")]])
        assert [type(one) for one in outcomes] == [list, StoreError, StoreError, list]
        assert keys(opener()) == ["a", "c"]

    @pytest.mark.parametrize("value", ["", "{", "NaN", '{"a":NaN}', 5])
    def test_a_value_that_is_no_json_fails_alone(self, plain: Opener, value: Any):
        bad = Put(namespace=("ada", "semantic"), key="x", value=value, updated_at=datetime(2026, 1, 1, tzinfo=UTC))
        outcomes = plain().apply([[put("a")], [put("b"), bad]])
        assert [type(one) for one in outcomes] == [list, StoreError]
        assert keys(plain()) == ["a"]


def test_users_are_counted_in_an_encrypted_store(tmp_path: Path):
    with open_store(f"file:///{tmp_path}/x?compress=zstd", embeddings=None, encryption_key=KEY.hex()) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "green tea", "facts")
        assert service.recall_memories("ada", "tea")[0].content == "green tea"
        assert count_user_memories(store, "ada")["total"] == 1
