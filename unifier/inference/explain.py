"""Explanations of one prediction: the attention that the input receives, and the steps of a generated text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from unifier.analysis.activations import has_input_attention, received_attention
from unifier.analysis.attention_heads import attention_of_heads
from unifier.data.dataloader import Batch
from unifier.figures.attention_figures import MAX_HEAD_WORDS, layer_lines
from unifier.heads.generation import topk
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead
from unifier.inference.model import Model
from unifier.nn.precision import to_compute_dtype
from unifier.report.head_lines import LayerLines
from unifier_tokenizers import (
    NO_POSITION,
    PatchTokenizer,
    PretrainedTextTokenizer,
    SubwordTokenizer,
    Tokens,
    Units,
    WordTokenizer,
    pad_columns,
)
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.subwords import BOS, EOS

MAX_EXPLAINED_TOKENS = 1024
"""Maximum number of tokens of an input whose attention is computed. The weights of a layer are quadratic in memory."""

NUM_CANDIDATES = 5
"""Number of likely next tokens in each step of a generated text."""


@final
@dataclass(frozen=True)
class InputAttention:
    """The attention that the tokens of an input receive in the trunk's last layer, relative to uniform attention."""

    received: list[float]
    """One value per token that has a position."""
    tokens: list[str] | None = None
    """The tokens of a text."""
    seconds: list[float] | None = None
    """The time of each token of a sound."""
    grid: tuple[int, int] | None = None
    """The numbers of rows and columns of a picture's patches. The patches are sorted by row."""
    box: tuple[float, float, float, float] | None = None
    """The area of a picture's patches in pixels: left, top, right, bottom."""


class TokenStep(NamedTuple):
    """A token of a generated text, and the most likely tokens at its place."""

    token: str
    candidates: list[tuple[str, float]]
    """Tokens with their probabilities, given the previous tokens of the text, most likely first."""


@final
@dataclass(frozen=True)
class ExplainedStep:
    """One step of a generated text."""

    token: str
    candidates: list[tuple[str, float]]
    """See `TokenStep`."""
    attention: list[float] | None
    """The decoder's attention to each token of the input, or None for a decoder without attention."""


@final
@dataclass(frozen=True)
class ExplainedText:
    """A generated text with its score and its steps. The end token is the last step, unless the text was truncated."""

    text: str
    score: float
    steps: list[ExplainedStep]


def explain_attention(model: Model, task: str, units: Units, text: str = "") -> InputAttention | None:
    """Return the attention that the tokens of an input receive in the trunk's last layer.

    Return None for a trunk without attention, for a head that runs the trunk, for a mixture, and for an input of over
    `MAX_EXPLAINED_TOKENS` tokens.

    Args:
        model: The model.
        task: The name of the task.
        units: The encoded input.
        text: The input, if the input is a text.
    """
    trunk, tokenizer, head = model.network.trunk, model.tasks[task].tokenizer, model.tasks[task].head
    if not has_input_attention(trunk, head) or units.values.shape[-1] > MAX_EXPLAINED_TOKENS:
        return None
    if not isinstance(
        tokenizer, PatchTokenizer | AudioTokenizer | SubwordTokenizer | PretrainedTextTokenizer | WordTokenizer
    ):
        return None
    with model.inference_mode():
        received = received_attention(trunk, head, embed_units(model, task, units))
    located = units.positions[0] != NO_POSITION
    values = _rounded(received[located])
    if isinstance(tokenizer, SubwordTokenizer | PretrainedTextTokenizer):
        return InputAttention(values, tokens=tokenizer.vocabulary.tokens(units.values[located].tolist()))
    if isinstance(tokenizer, WordTokenizer):
        return InputAttention(values, tokens=tokenizer.words(text))
    if isinstance(tokenizer, AudioTokenizer):
        return InputAttention(values, seconds=_rounded(tokenizer.position_values(units)[0, located]))
    grid = tokenizer.patch_grid(units)
    return InputAttention(values, grid=grid[:2], box=grid[2:])


def explain_heads(model: Model, task: str, units: Units, text: str) -> list[LayerLines]:
    """Return the attention between tokens for each layer, or no layer if an input has no words or is too long.

    Args:
        model: The model.
        task: The name of the task.
        units: The encoded input.
        text: The text that the head generated for the input, or "" for other heads.
    """
    if units.values.shape[-1] > MAX_HEAD_WORDS:
        return []
    with model.inference_mode():
        tokens = embed_units(model, task, units)
        return layer_lines(attention_of_heads(model.network.trunk, model.tasks[task], units, tokens, text))


def explain_texts(model: Model, task: str, units: Units, num_texts: int) -> list[ExplainedText]:
    """Return the best texts for an input with their steps, best first.

    Args:
        model: The model.
        task: The name of a task whose head generates texts.
        units: The encoded input.
        num_texts: The number of texts. The beam of the search has at least this width.
    """
    head = model.tasks[task].head
    assert isinstance(head, TextGenerationHead)
    with model.inference_mode():
        tokens = head.run_trunk(model.network.trunk, embed_units(model, task, units))
        (hypotheses,) = head.search(tokens, max(head.beam_width, num_texts))
        return [
            ExplainedText(head.vocabulary.decode(best.ids), best.score, _explain_steps(head, tokens, best.ids))
            for best in hypotheses[:num_texts]
        ]


def _explain_steps(head: TextGenerationHead, tokens: Tokens, ids: Sequence[int]) -> list[ExplainedStep]:
    """Return the steps of one text, given the trunk's tokens (1, D, N) and the token ids of the text."""
    steps = token_steps(head, tokens, ids, NUM_CANDIDATES, truncated=len(ids) == int(head.max_lengths(tokens)))
    attention: list[list[float] | None] = [None] * len(steps)
    if isinstance(head, AttentiveTextHead) and tokens.mask.shape[1] <= MAX_EXPLAINED_TOKENS:
        text = torch.tensor([ids], dtype=torch.long, device=tokens.matrix.device)
        attention = [_rounded(row) for row in head.alignment(tokens, text)[0, : len(steps)].float().cpu()]
    return [
        ExplainedStep(step.token, [(name, round(p, 4)) for name, p in step.candidates], weights)
        for step, weights in zip(steps, attention, strict=True)
    ]


def token_steps(
    head: TextGenerationHead, tokens: Tokens, ids: Sequence[int], count: int, *, truncated: bool
) -> list[TokenStep]:
    """Return the likeliest tokens at each step of one text.

    Args:
        head: The head that generated the text.
        tokens: The trunk's tokens of the input (1, D, N).
        ids: The token ids of the text.
        count: The number of likely tokens of a step.
        truncated: True if the text has no end token.
    """
    previous = functional.pad(torch.tensor([ids], dtype=torch.long, device=tokens.matrix.device), (1, 0), value=BOS)
    hidden = to_compute_dtype(head.hidden_states(tokens, previous))[0]
    logs, best = topk(head.next_token_log_probs()(hidden), count)
    names = head.vocabulary.tokens
    return [
        TokenStep(name, list(zip(names(row), probabilities, strict=True)))
        for name, row, probabilities in zip(
            names(ids if truncated else [*ids, EOS]), best.tolist(), logs.exp().tolist(), strict=False
        )
    ]


def embed_units(model: Model, task: str, units: Units) -> Tokens:
    """Return the tokens (1, D, N) of an encoded input, on the device of the model."""
    values, positions, mask = pad_columns([units])
    return Batch(values, positions, mask, torch.tensor([0])).to(model.device).embed(model.tasks[task].tokenizer)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
