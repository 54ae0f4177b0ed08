"""Texts that a language model generates, token by token."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from unifier.files import print_status
from unifier.heads.continuation import CachedTrunk
from unifier.heads.generation import token_sampler
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.inference.model import Model
from unifier_tokenizers import InputError, MarkedText, SubwordTokenizer, Vocabulary
from unifier_tokenizers.subwords import BOS, EOS, UNK

BYTE_ENTRY = re.compile(r"<0x[0-9A-F]{2}>")
"""The name of a byte in a vocabulary of characters. Bytes encode the characters that the vocabulary lacks."""

DEFAULT_TOKENS = 500
"""Default number of generated tokens of a text."""

MAX_NAMED_CHARACTERS = 10
"""Maximum number of unknown characters that a message names."""

CODES = re.compile(r"(?:\s*<[^<>\s]+>)+")
"""The control codes at the start of a prompt, such as "<jig> <6/8>"."""

MAX_HELD_IDS = 4
"""Maximum number of ids whose text is held back until a character is complete. A character has at most 4 bytes."""


@final
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of a generated text, picture or tune."""

    tokens: int | None = None
    """The largest number of generated tokens. None means `DEFAULT_TOKENS` of a text."""
    temperature: float = 1.0
    """The divisor of the log-probabilities."""
    top_k: int | None = None
    """The number of most likely tokens to sample from. None means all tokens, and 1 means greedy search."""
    top_p: float = 1.0
    """The total probability of the most likely tokens to sample from."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"tokens={self.tokens}: at least 1 is needed")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed={self.seed}: a number from 0 to 2**63 - 1 is needed")


@final
class CachedDecoder:
    """The next-token probabilities of one text, with a KV cache for each block of the trunk."""

    def __init__(self, model: Model, task: str) -> None:
        """Prepare an empty text.

        Raises:
            InputError: The task is no language model of texts, or the trunk is no transformer.
        """
        parts = model.tasks[task]
        if not isinstance(parts.head, LanguageModelingHead) or not isinstance(parts.tokenizer, SubwordTokenizer):
            raise InputError(f"the task {task} is no language model of texts: give a run of the recipe language_model")
        self.model, self.tokenizer = model, parts.tokenizer
        self.context = max(parts.head.context or parts.longest, 2) + parts.head.memory
        self.cached = CachedTrunk(self.tokenizer, model.network.trunk, self.context)
        with model.inference_mode():
            self._log_probs = parts.head.next_token_log_probs(ends=parts.tokenizer.end)

    def extend(self, ids: Sequence[int]) -> Tensor:
        """Append ids to the text, and return the log-probabilities (1, V) of the next token."""
        with self.model.inference_mode():
            return self._log_probs(self.cached.extend(torch.tensor([[*ids]], device=self.model.device)))


def generate(model: Model, task: str, prompt: str, options: GenerationOptions) -> Iterator[str]:
    """Yield the prompt, and then the parts of its continuation as soon as they are sampled.

    Equal seeds give equal texts. The end token ends the text, if the model has learned an end token.

    Args:
        model: The model.
        task: The name of the task.
        prompt: The start of the text, which may be empty if the tokenizer has a begin token.
        options: The options of the sampling.

    Raises:
        InputError: The task is no language model, the prompt has unknown characters, or an option is out of range.
    """
    generator = torch.Generator().manual_seed(options.seed)
    pick = token_sampler([generator], temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    decoder = CachedDecoder(model, task)
    vocabulary, tokenizer = decoder.tokenizer.vocabulary, decoder.tokenizer
    ids = encode_prompt(tokenizer, prompt)
    if len(ids) > decoder.context:
        read = f"the last {decoder.context:,} of its {len(ids):,} tokens"
        print_status(f"warning: the prompt is longer than the context of the model, which reads {read}", sys.stderr)

    def parts() -> Iterator[str]:
        yield prompt
        waiting: list[int] = []
        row = torch.zeros(1, dtype=torch.long)
        new: Sequence[int] = ids
        for _ in range(options.tokens or DEFAULT_TOKENS):
            _, picked = pick(decoder.extend(new), row)
            new = picked.tolist()
            if new == [EOS]:
                break
            waiting += new
            text = decode_part(vocabulary, waiting)
            if not text.endswith("\ufffd") or len(waiting) >= MAX_HELD_IDS:
                yield text
                waiting = []
        if waiting:
            yield decode_part(vocabulary, waiting)

    return parts()


def encode_prompt(tokenizer: SubwordTokenizer, prompt: str) -> list[int]:
    """Encode a prompt as ids, without an end token.

    Raises:
        InputError: The prompt begins with an unknown control code, or has a character or a word that is not in the
            vocabulary. The error is also raised if the prompt is empty but the tokenizer has no begin token.
    """
    vocabulary = tokenizer.vocabulary
    if vocabulary.extra and (codes := CODES.match(prompt)):
        if unknown := [code for code in re.findall(r"<\S+?>", codes[0]) if code not in vocabulary.extra]:
            raise InputError(f"the model has no code {unknown[0]}: use {' '.join(vocabulary.extra)}")
        prompt = MarkedText(prompt)
    ids = vocabulary.encode_start(prompt) if prompt else []
    if not tokenizer.begin and not ids:
        raise InputError("the prompt is empty: give the start of the text, because the model has no begin token")
    names = [vocabulary.codec.id_to_token(i) or "" for i in ids]
    if UNK in ids:
        raise InputError(f"the prompt {prompt[:50]!r} has a word that the model does not know: use other words")
    if any(BYTE_ENTRY.fullmatch(name) for name in names):
        unknown = map(repr, vocabulary.unknown_characters(prompt))
        characters = " ".join([*unknown][:MAX_NAMED_CHARACTERS])
        raise InputError(f"the prompt has characters that the model does not know: {characters}; leave them out")
    return [BOS, *ids] if tokenizer.begin else ids


def decode_part(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Return the text of ids in the middle of a text. Words of level "word" get the space before them."""
    text = vocabulary.codec.decode([*ids], skip_special_tokens=False)
    return text if vocabulary.codec.decoder is not None else f" {text}"
