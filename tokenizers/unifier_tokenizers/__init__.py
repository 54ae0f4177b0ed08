"""Tokenizers: one modality each, all to the same D x N matrix."""

from unifier_tokenizers.audio import FrameTokenizer
from unifier_tokenizers.checks import ContractError, check_tokenizer
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.image import PatchTokenizer
from unifier_tokenizers.mixture import Mixture
from unifier_tokenizers.parts.dropout import Dropout
from unifier_tokenizers.parts.sound import Sound
from unifier_tokenizers.parts.vocabulary import Vocabulary
from unifier_tokenizers.positions import PositionalEncoding, rotary_angles
from unifier_tokenizers.text import SubwordTokenizer, load_vectors
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NOWHERE, Tokens, Units, pad_columns
from unifier_tokenizers.waveform import WaveformTokenizer

__all__ = [
    "NOWHERE",
    "ContractError",
    "Dropout",
    "FrameTokenizer",
    "InputError",
    "Mixture",
    "PatchTokenizer",
    "PositionalEncoding",
    "Sound",
    "SubwordTokenizer",
    "Tokenizer",
    "Tokens",
    "Units",
    "Vocabulary",
    "WaveformTokenizer",
    "check_tokenizer",
    "load_vectors",
    "pad_columns",
    "rotary_angles",
]
