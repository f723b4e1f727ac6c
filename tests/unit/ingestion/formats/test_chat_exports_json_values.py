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


def values(path: Path) -> list[Any]:
    return [value for _, value in json_values(path)]


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
        (b'[{"a": 1}, {"b"', r"x\.json, value 2 is not JSON, or cut off"),
        (b'[{"a": 1}', r"value 2 is not JSON, or cut off"),
        (b'{"a": 1}\nhello\n', "value 2 is not JSON"),
        (b'[{"a": 1}]\nhello\n', "value 2 is not JSON"),
        (b"[" * 200_000, "value 1 is not JSON"),
        (b'["\xff"]', "is not text in UTF-8"),
        (b'["' + b"x" * 3_000 + b'"]', "value 1 is not JSON, or has more than 0 MB"),
    ],
)
def test_damage_is_told_with_its_place(content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_VALUE_CHARACTERS", 1_000)
    monkeypatch.setattr(module, "_CHUNK", 100)
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        values(path)


def test_the_files_of_an_archive_are_read_in_their_order(tmp_path: Path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a/conversations-001.json", "a/conversations-000.json", "a/other.json"):
            archive.writestr(name, json.dumps([name]))
    assert values(path) == ["a/conversations-000.json", "a/conversations-001.json"]


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_FREE_BYTES", 1_000)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", '[{"a": 1}' + " " * 3_000_000 + "]")
    with pytest.raises(InvalidInput, match=r"bomb\.zip, conversations\.json unpacks to more than 200 times its size"):
        values(path)


def test_an_archive_that_cannot_be_read_is_told(tmp_path: Path):
    empty, damaged = tmp_path / "empty.zip", tmp_path / "damaged.zip"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("x.txt", "x")
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr("conversations.json", "[" + "1," * 5_000 + "1]")
    content = bytearray(damaged.read_bytes())
    content[60:70] = b"9999999999"
    damaged.write_bytes(content)
    for path, message in [(empty, "no file in it is named"), (damaged, "no zip archive that can be read")]:
        with pytest.raises(InvalidInput, match=message):
            values(path)
    with pytest.raises(InvalidInput, match="Cannot read"):
        values(tmp_path / "none")


def test_lines_that_are_too_long_or_no_text_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "chat.txt"
    monkeypatch.setattr(module, "_CHUNK", 10)
    for content, message in [(b"short\n" + b"x" * 11, "line 2 has more than 10"), (b"\xff\n", "not text in UTF-8")]:
        path.write_bytes(content)
        with text_files(path, ".*") as files, pytest.raises(InvalidInput, match=message):
            list(text_lines(next(files), str(path)))
