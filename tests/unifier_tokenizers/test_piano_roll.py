"""The tokenizer for symbolic music keeps the contract, and refuses notes off the keyboard."""

import pytest
import torch

from unifier_tokenizers import InputError, check_tokenizer
from unifier_tokenizers.piano_roll import PianoRollTokenizer

PIECES = [[[60, 64, 67], [60], []], [[21], [108], [62]], [[50], [52], [53], [55, 59]]]


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
def test_contract(positions: str) -> None:
    check_tokenizer(PianoRollTokenizer(8, positions=positions), PIECES)  # pyright: ignore[reportArgumentType]


def test_roll_has_a_row_per_key() -> None:
    values, positions = PianoRollTokenizer(8).encode(PIECES[1])
    assert values.nonzero().tolist() == [[0, 0], [41, 2], [87, 1]]
    assert (values.shape, positions.tolist(), values.dtype) == ((88, 3), [[0, 1, 2]], torch.uint8)


@pytest.mark.parametrize("raw", [[], "abc", [[60], [20]], [[109]], [[60.5]], [60, 61], [["60"]], 3])
def test_bad_piece_is_refused(raw: object) -> None:
    with pytest.raises(InputError):
        PianoRollTokenizer(8).encode(raw)  # pyright: ignore[reportArgumentType]


def test_long_piece_is_refused_with_learned_positions() -> None:
    with pytest.raises(InputError, match=r"3 positions.*2"):
        PianoRollTokenizer(8, positions="learned", length=2).encode(PIECES[0])
