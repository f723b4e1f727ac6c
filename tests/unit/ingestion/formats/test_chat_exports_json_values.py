"""Files of people who mean no good, or whose download broke off: a typed error that says where, and little memory."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import InvalidInput
from inference_core.ingestion.formats import chat_exports as module
from inference_core.ingestion.formats.chat_exports import json_values, text_files, text_lines
from inference_core.ingestion.formats.entries import Odd


def values(path: Path) -> list[Any]:
    """The values; what is none as its place and the error."""
    return [f"{where}: {value}" if isinstance(value, Odd) else value for where, value in json_values(path)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", []),
        ("", []),
        (' [ {"a": 1} , 12, "x" ]', [{"a": 1}, 12, "x"]),
        ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ('\ufeff{"a": [1, 2]}', [{"a": [1, 2]}]),
        ("12 123", [12, 123]),
        ('[{"a": 1}]\n[{"b": 2}, 3]\n[]\n', [{"a": 1}, {"b": 2}, 3]),  # pages, one after the other
    ],
)
@pytest.mark.parametrize("chunk", [1, 1024])
def test_values_come_one_by_one_wherever_the_chunks_end(
    text: str, expected: list[Any], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    assert values(path) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"a": 1}, {"b"', "value 2: it is not JSON, or cut off"),
        (b'[{"a": 1}', "value 2: it is not JSON, or cut off"),
        (b'{"a": 1}\nhello\n', "value 2: it is not JSON"),
        (b'[{"a": 1}]\nhello\n', "value 2: it is not JSON"),
        (b"[" * 200_000, "value 1: it is not JSON"),
        (b'["\xff"]', "value 1: it is not text in UTF-8"),
        (b'["' + b"x" * 3_000 + b'"]', "value 1: it is not JSON, or has more than 0 MB"),
    ],
)
def test_damage_is_told_with_its_place(content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_VALUE_CHARACTERS", 1_000)
    monkeypatch.setattr(module, "_CHUNK", 100)
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert values(path)[-1].startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}\n{"broken"\n{"b": 2}\n',
        '{"a": 1}\nhello {"x": 1}\n{"b": 2}',
        '[\n  {"a": 1},\n  {"x": [1, {"y": 2],\n    {"z": 3}\n  },\n  {"b": 2}\n]',
        '[{"a": 1},\n{\'x\': 1},\n{"b": 2}]',
        '[{"a": 1},\n{"x": "\xff"}, {"b": 2}]',
    ],
)
@pytest.mark.parametrize("chunk", [1, 1024])
def test_values_behind_damage_are_read(text: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    first, odd, last = values(path)
    assert (first, last) == ({"a": 1}, {"b": 2})
    assert odd.startswith("value 2: it is not ")


def test_much_damage_ends_the_search_for_more(tmp_path: Path):
    """Each search may read the rest of the file."""
    path = tmp_path / "x.json"
    path.write_text('{"a"\n' * 200 + "{}", encoding="utf-8")
    assert len(values(path)) == 100


def test_the_files_of_an_archive_are_read_in_their_order(tmp_path: Path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a/conversations-001.json", "a/conversations-000.json", "a/other.json"):
            archive.writestr(name, json.dumps([name]))
    assert values(path) == ["a/conversations-000.json", "a/conversations-001.json"]


def test_a_folder_is_read_like_the_archive_that_it_was(tmp_path: Path):
    (tmp_path / "export").mkdir()
    for name, text in [("conversations-001.json", '["b"]'), ("conversations-000.json", '["a", oh]'), ("x.json", "[1]")]:
        (tmp_path / "export" / name).write_text(text, encoding="utf-8")
    for folder in (tmp_path, tmp_path / "export"):
        first, odd, last = values(folder)
        assert (first, last) == ("a", "b")
        assert odd.startswith("conversations-000.json, value 2: it is not JSON")


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_FREE_BYTES", 1_000)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", '[{"a": 1}' + " " * 3_000_000 + "]")
    (told,) = values(path)
    assert told.endswith("bomb.zip, conversations.json unpacks to more than 200 times its size")


def test_an_archive_that_cannot_be_read_is_told(tmp_path: Path):
    empty, damaged = tmp_path / "empty.zip", tmp_path / "damaged.zip"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("x.txt", "x")
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr("conversations.json", "[" + "1," * 5_000 + "1]")
    content = bytearray(damaged.read_bytes())
    content[60:70] = b"9999999999"
    damaged.write_bytes(content)
    assert "value 1: it cannot be read on: Bad CRC-32" in values(damaged)[-1]
    for path, message in [(empty, "no file in it is named"), (tmp_path / "none", "Cannot read")]:
        with pytest.raises(InvalidInput, match=message):
            values(path)


def test_lines_that_are_too_long_or_no_text_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "chat.txt"
    monkeypatch.setattr(module, "_CHUNK", 10)
    path.write_bytes(b"short\n\xff\n" + b"x" * 11)
    with text_files(path, ".*") as files:
        lines = text_lines(next(files)[1], str(path))
        assert [next(lines), next(lines)] == [(1, "short"), (2, "\udcff")]
        with pytest.raises(InvalidInput, match="line 3 has more than 10"):
            next(lines)
