"""Late interaction of a query's tokens with those of texts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, floats

from inference_core.retrieval.vectors import Interaction, dimensions_of, interact, pack_tokens

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
