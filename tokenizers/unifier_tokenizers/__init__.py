"""Tokenizers: one modality each, all to the same D x N matrix."""

from unifier_tokenizers.audio import Sound
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NOWHERE, Tokens, Units, pad_columns

__all__ = ["NOWHERE", "InputError", "Sound", "Tokenizer", "Tokens", "Units", "pad_columns"]
