"""Vectors as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from retrieval_support import floats

from inference_core.retrieval.vectors import pack_vectors, unpack_first_vectors, unpack_vectors


@pytest.mark.parametrize("shape", [(1, 1), (1, 384), (2, 3), (3, 2), (64, 512), (1, 65_535)], ids=str)
def test_vectors_come_back_to_half_precision(shape: tuple[int, int]):
    vectors = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    packed = pack_vectors(vectors)
    assert len(packed) == 4 + 2 * vectors.size
    assert unpack_vectors(packed).dtype == np.float16
    assert unpack_vectors(packed).tolist() == vectors.astype(np.float16).tolist()


def test_the_layout_is_the_same_on_every_machine():
    assert pack_vectors(floats((1, -2, 0.5))).hex() == "01000300" + "003c" + "00c0" + "0038"


def test_rows_stay_rows_however_the_matrix_lies_in_memory():
    matrix = floats((1, 2, 3), (4, 5, 6))
    assert unpack_vectors(pack_vectors(matrix.T)).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert unpack_vectors(pack_vectors(matrix[:, ::2])).tolist() == [[1, 3], [4, 6]]


@pytest.mark.parametrize("passages", [1, 3])
def test_the_first_vectors_of_several_texts(passages: int):
    texts = [floats(*((text, passage) for passage in range(passages))) for text in (1, 2, 4, 8)]
    assert unpack_first_vectors(list(map(pack_vectors, texts))).tolist() == [[1, 0], [2, 0], [4, 0], [8, 0]]
