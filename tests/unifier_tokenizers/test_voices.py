"""The tokenizer for music in voices keeps the contract, and refuses other numbers of voices and other notes."""

from typing import Any

import pytest
import torch

from unifier_tokenizers import InputError, check_tokenizer
from unifier_tokenizers.voices import BEGIN_PIECE, VoiceTokenizer

PIECE = [[60, None], [21, 108], [None, None]]


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
def test_contract(positions: Any) -> None:
    check_tokenizer(VoiceTokenizer(8, voices=2, positions=positions), [PIECE, PIECE[:1], PIECE * 9])


def test_voices_of_a_step_follow_each_other() -> None:
    tokenizer = VoiceTokenizer(8, voices=2)
    ids, positions = tokenizer.encode(PIECE)
    assert ids.tolist() == [BEGIN_PIECE, 40, 0, 1, 88, 0, 0]
    assert positions.T.tolist() == [[-1, -1], [0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert tokenizer.to_steps(ids) == PIECE


def test_tokens_depend_on_voice_and_place_in_the_bar() -> None:
    tokenizer = VoiceTokenizer(8, voices=2, positions="none")
    ids, positions = tokenizer.encode([[60, 60]] * 17)
    tokens = tokenizer.embed(ids[None], positions[None])[0, :, 1:].T
    assert len(torch.unique(tokens, dim=0)) == 32
    assert torch.equal(tokens[:2], tokens[32:])


@pytest.mark.parametrize("raw", [[], "ab", [[60]], [[60, 61, 62]], [[60, 20]], [[60, 109]], [[60, 60.0]], None])
def test_other_pieces_are_refused(raw: Any) -> None:
    with pytest.raises(InputError):
        VoiceTokenizer(8, voices=2).encode(raw)
    with pytest.raises(InputError, match="voices=0"):
        VoiceTokenizer(8, voices=0)
