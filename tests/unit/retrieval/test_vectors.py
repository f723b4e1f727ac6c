"""Vectors as bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, floats

from inference_core.retrieval import vectors
from inference_core.retrieval.vectors import (
    Floats,
    Interaction,
    as_floats,
    by_matrix,
    dimensions_of,
    inner_products,
    interact,
    is_packed,
    pack_tokens,
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


def test_every_half_is_the_same_number_in_single_precision():
    halves = np.arange(65_536, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)].reshape(2, -1)
    assert np.array_equal(as_floats(finite).view(np.int32), finite.astype(np.float32).view(np.int32))


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


QUERY = floats(EAST, NORTH)


def _told(found: Interaction) -> tuple[list[float], list[float]]:
    return found.evidence.tolist(), found.similarity.tolist()


def test_the_best_token_counts_standardised_over_the_texts():
    texts = [pack_tokens([floats(EAST)]), pack_tokens([floats(NORTH, WEST, EAST)]), pack_tokens([floats(WEST)])]
    evidence, similarity = _told(interact(QUERY, texts))
    # East: 1, 1, -1 with deviation sqrt(8)/3; north: 0, 1, 0 with deviation sqrt(2)/3.
    assert evidence == pytest.approx([0, 1.5 / math.sqrt(2), -1.5 / math.sqrt(2)], abs=1e-6)
    assert similarity == pytest.approx([0.5, 1, 0], abs=1e-6)


def test_a_text_counts_as_the_best_of_its_passages():
    texts = [pack_tokens([floats(WEST), floats(EAST, NORTH), floats(WEST)]), pack_tokens([floats(EAST), floats(NORTH)])]
    evidence, similarity = _told(interact(QUERY, texts))
    # Passages, east: -1, 1, -1, 1, 0 with mean 0; north: 0, 1, 0, 0, 1 with mean .4.
    east, north = math.sqrt(4 / 5), math.sqrt((3 * 0.16 + 2 * 0.36) / 5)
    assert evidence == pytest.approx([(1 / east + 0.6 / north) / 2, max(1 / east - 0.4 / north, 0.6 / north) / 2])
    assert similarity == pytest.approx([1, 0.5], abs=1e-6)


def test_the_pieces_of_a_word_count_as_one_word():
    """Each of them used to count like a word, so the longest name in a question decided."""
    texts = [pack_tokens([floats(EAST)]), pack_tokens([floats(NORTH)]), pack_tokens([floats(WEST)])]
    pieces, words = floats(EAST, EAST, EAST, NORTH), [0, 0, 0, 1]
    expected = interact(QUERY, texts)
    assert interact(pieces, texts, words).evidence == pytest.approx(expected.evidence, abs=1e-6)
    assert interact(pieces, texts, words).similarity == pytest.approx(expected.similarity, abs=1e-6)
    assert interact(pieces, texts).evidence != pytest.approx(expected.evidence, abs=0.1)


def test_the_pieces_of_a_word_are_averaged():
    texts = [pack_tokens([floats(EAST)]), pack_tokens([floats(NORTH)]), pack_tokens([floats(EAST, NORTH)])]
    evidence, similarity = _told(interact(QUERY, texts, [4, 4]))
    assert evidence == pytest.approx([-1 / math.sqrt(2), -1 / math.sqrt(2), math.sqrt(2)], abs=1e-6)
    assert similarity == pytest.approx([0.5, 0.5, 1], abs=1e-6)


@pytest.mark.parametrize("copies", [1, 2, 7])
def test_where_nothing_differs_there_is_no_evidence(copies: int):
    tokens = pack_tokens([floats((0.6, 0.8))])
    evidence, similarity = _told(interact(QUERY, [tokens] * copies))
    assert evidence == pytest.approx([0] * copies, abs=1e-6)
    assert similarity == pytest.approx([0.7] * copies, abs=0.01)


def test_a_token_on_which_all_texts_agree_changes_no_order():
    texts = [pack_tokens([floats((*vector, 1))]) for vector in (EAST, NORTH)]
    evidence, _ = _told(interact(floats((1, 0, 0), (0, 0, 1)), texts))
    assert evidence == pytest.approx([0.5, -0.5])


def test_eight_bits_are_enough():
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(40, 128)).astype(np.float32)
    tokens = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    query = tokens[:5] @ np.eye(128, dtype=np.float32)[:, ::-1]
    found = interact(query, [pack_tokens([tokens[start : start + 8]]) for start in range(0, 40, 8)])
    exact = (tokens @ query.T).reshape(5, 8, 5).max(axis=1).mean(axis=1)
    assert found.similarity.tolist() == pytest.approx(exact.tolist(), abs=0.005)


def test_numbers_beyond_one_are_cut():
    texts = [pack_tokens([floats((2, -3))]), pack_tokens([floats(EAST)])]
    assert interact(floats((0.5, 0)), texts).similarity.tolist() == pytest.approx([0.5, 0.5])


def test_packed_tokens_take_a_byte_each_and_know_their_dimensions():
    packed = pack_tokens([floats((1, 0, 0)), floats((0, 1, 0), (0, 0, -1))])
    assert packed.hex() == "02000300" + "01000200" + "7f0000" + "007f00" + "000081"
    assert dimensions_of(packed) == 3
