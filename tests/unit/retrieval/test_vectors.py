"""Vectors as bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from retrieval_support import floats

from inference_core.retrieval import vectors
from inference_core.retrieval.vectors import (
    Floats,
    by_matrix,
    inner_products,
    is_packed,
    pack_vectors,
    shape_of,
    unpack_first_vectors,
    unpack_vectors,
)


@pytest.mark.parametrize("shape", [(1, 1), (1, 384), (2, 3), (3, 2), (64, 512), (1, 65_535)], ids=str)
def test_vectors_come_back_to_half_precision(shape: tuple[int, int]):
    matrix = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    packed = pack_vectors(matrix)
    assert len(packed) == 4 + 2 * matrix.size
    assert unpack_vectors(packed).dtype == np.float16
    assert unpack_vectors(packed).tolist() == matrix.astype(np.float16).tolist()


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


def _by_vecdot(matrix: Floats, vector: Floats, into: Floats) -> None:
    inner_products(matrix, vector, into)


def _by_einsum(matrix: Floats, vector: Floats, into: Floats) -> None:
    vectors._einsum(matrix, vector, out=into)


@pytest.mark.parametrize("product", [_by_vecdot, _by_einsum], ids=["vecdot", "einsum"])
@pytest.mark.parametrize("size", [1, 384, 1_536, 3_072, 10_000], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 16, 83], ids=str)
def test_the_products_of_rows_are_those_of_the_matrix(
    rows: int, size: int, product: Callable[[Floats, Floats, Floats], None]
):
    """Also where NumPy has no `vecdot`."""
    random = np.random.default_rng(0)
    matrix, vector = random.standard_normal((rows, size), np.float32), random.standard_normal(size, np.float32)
    found = np.full(rows + 1, 7, np.float32)
    product(matrix, vector, found[:rows])
    assert found[:rows] == pytest.approx(matrix @ vector, rel=1e-4, abs=1e-3)
    assert found[rows] == 7


def test_what_has_not_the_form_of_vectors_is_known_by_its_size():
    whole = pack_vectors(floats((1, 2), (3, 4)))
    assert is_packed(whole)
    assert not any(map(is_packed, (b"", whole[:3], whole[:4], whole[:-1], whole + b"0", bytes(4), b"\1\0\0\0")))


def test_matrices_of_one_shape_are_told_from_others():
    one, other = floats((1, 2, 3)), floats((1,), (2,), (3,))
    assert shape_of(pack_vectors(one)) == shape_of(pack_vectors(2 * one)) != shape_of(pack_vectors(other))


@pytest.mark.parametrize("columns", [1, 7, 300], ids=str)
@pytest.mark.parametrize("rows", [1, 40, 1_000], ids=str)
def test_a_product_of_matrices_by_portions_is_the_whole_product(rows: int, columns: int):
    random = np.random.default_rng(0)
    first = random.integers(-127, 128, (rows, 128)).astype(np.int8)
    second = random.standard_normal((128, columns), np.float32)
    assert np.allclose(by_matrix(first, second), first.astype(np.float32) @ second, rtol=1e-4, atol=1e-2)
