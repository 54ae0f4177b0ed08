"""Figures of one example with the attention of a trained model, for validation examples and for new inputs."""

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unifier.analysis.activations import has_input_attention, received_attention
from unifier.analysis.attention import split_words, word_attention
from unifier.analysis.attention_heads import LayerAttention, attention_of_heads
from unifier.figures.head_figures import draw_head_lines, draw_head_matrices
from unifier.figures.speech_figures import draw_generated_speech
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.heads.text_generation import AttentiveTextHead
from unifier.network import TaskModules
from unifier.report.head_lines import LayerLines
from unifier.report.plot_attention import DRAWN_TOKENIZERS, draw_alignment, draw_received, draw_words_over_image
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import (
    Mixture,
    PatchTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Tokens,
    Units,
)
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.subwords import EOS

MAX_HEAD_TOKENS = 256
"""Maximum number of tokens of an input whose attention heads are drawn one by one."""

MAX_LINE_TOKENS = 16
"""Maximum number of tokens of a text whose attention heads are drawn as lines between words."""

MAX_HEAD_WORDS = 24
"""Maximum number of tokens of a text whose attention is returned for each head."""

MAX_TITLE = 60
"""Maximum length of a figure's title in characters."""


def describe_missing_attention(trunk: Trunk, parts: TaskModules) -> str:
    """Return the reason why `draw_attention` cannot draw the inputs of a task, or ""."""
    if not isinstance(parts.tokenizer, DRAWN_TOKENIZERS) and _drawn_member(parts.tokenizer) is None:
        return f"{type(parts.tokenizer).__name__}: only pictures, sounds and texts can be drawn"
    attentive = isinstance(parts.head, AttentiveTextHead | SpectrogramDecoderHead)
    if not attentive and not has_input_attention(trunk, parts.head):
        return f"neither the trunk ({type(trunk).__name__}) nor the head ({type(parts.head).__name__}) has attention"
    return ""


def draw_attention(
    path: Path, trunk: Trunk, parts: TaskModules, raw: Any, units: Units, tokens: Tokens, title: str, text: str = ""
) -> None:
    """Draw the attention to one input.

    For a head that generates a text with attention, the figure shows the attention of the text. A text as input has a
    row per generated word, a picture is repeated for each word, and a sound shows the mean over the generated tokens.
    For a head that speaks, the figure shows the generated spectrogram and its alignment with the text.
    For other heads, the figure shows the attention that each token receives in the trunk's last layer. Of a mixture,
    only the first picture or sound is drawn, or the last text.

    Args:
        path: The SVG file to write.
        trunk: The trained trunk.
        parts: The tokenizer and the head. `describe_missing_attention` must return "" for them.
        raw: The raw input.
        units: The encoded input.
        tokens: The embedded input (1, D, N).
        title: The title of the figure.
        text: The text that a head generated for the input, or the text of the target.
    """
    head, tokenizer = parts.head, parts.tokenizer
    if isinstance(head, SpectrogramDecoderHead):
        (speech,) = head.predict(head.run_trunk(trunk, tokens))
        draw_generated_speech(path, head, tokenizer, units, speech)
        return
    if isinstance(head, AttentiveTextHead):
        ids = head.vocabulary.encode(text) if text else []
        generated = torch.tensor([ids], dtype=torch.long, device=tokens.matrix.device)
        weights = head.alignment(head.run_trunk(trunk, tokens), generated)[0].float().cpu()
        if isinstance(tokenizer, SubwordTokenizer):
            source_ids, target_ids = units.values.tolist(), [*ids, EOS]
            source = split_words(tokenizer.vocabulary, source_ids, raw)
            target = split_words(head.vocabulary, target_ids, text)
            if source and target and source[0] and target[0]:
                by_word = word_attention(weights, target[1], source[1])
                draw_alignment(path, source[0], target[0], by_word.numpy())
            else:  # The vocabulary splits the text into other words.
                names = tokenizer.vocabulary.tokens(source_ids), head.vocabulary.tokens(target_ids)
                draw_alignment(path, *names, weights.numpy())
            return
        weights = weights * weights.shape[1]
    else:
        assert has_input_attention(trunk, head)
        ids, weights = [], received_attention(trunk, head, tokens)[None]
    title = textwrap.shorten(title, MAX_TITLE, placeholder="…")
    if isinstance(tokenizer, Mixture):
        name = _drawn_member(tokenizer)
        assert name is not None
        own = units.values[0] == [*tokenizer.members].index(name) + 1  # The first row contains the member's number.
        raw, tokenizer, weights = raw[name], tokenizer.members[name], weights[:, own]
        units = tokenizer.encode(raw)
    words = split_words(head.vocabulary, [*ids, EOS], text) if isinstance(head, AttentiveTextHead) else None
    if words and words[0] and isinstance(tokenizer, PatchTokenizer):
        rows = torch.tensor(words[1])
        by_word = torch.stack([weights[rows == k].mean(0) for k in range(len(words[0]))])
        draw_words_over_image(path, raw, tokenizer, units, by_word.nan_to_num(), words[0], title)
    else:
        draw_received(path, raw, tokenizer, units, weights.mean(0), title)


def _drawn_member(tokenizer: Tokenizer) -> str | None:
    """Return the name of the member of a mixture that is drawn, or None.

    This is the first picture or sound, or else the last text, such as the context of a question.
    """
    members = dict(tokenizer.members.items()) if isinstance(tokenizer, Mixture) else {}
    drawn = [name for name, member in members.items() if isinstance(member, DRAWN_TOKENIZERS)]
    first = next((name for name in drawn if isinstance(members[name], PatchTokenizer | AudioTokenizer)), None)
    return first or (drawn[-1] if drawn else None)


def draw_attention_heads(
    path: Path, trunk: Trunk, parts: TaskModules, units: Units, tokens: Tokens, text: str = "", *, lines: bool
) -> list[LayerAttention]:
    """Draw the attention of each layer and head to one input, as small multiples, and return the layers.

    Nothing is drawn for a model without attention heads, and for over `MAX_HEAD_TOKENS` tokens.

    Args:
        path: The SVG file to write.
        trunk: The trained trunk.
        parts: The tokenizer and the head. `describe_missing_attention` must return "" for them.
        units: The encoded input.
        tokens: The embedded input (1, D, N).
        text: The text that a head generated for the input, or the text of the target.
        lines: Draw lines between words instead of matrices, if the input is a text of at most `MAX_LINE_TOKENS`
            tokens. A figure with lines takes seconds.
    """
    if tokens.mask.shape[1] > MAX_HEAD_TOKENS or not (found := attention_of_heads(trunk, parts, units, tokens, text)):
        return []
    if lines and all(each.has_words and max(each.weights.shape[1:]) <= MAX_LINE_TOKENS for each in found):
        draw_head_lines(path, found)
    else:
        draw_head_matrices(path, found)
    return found


def layer_lines(layers: Iterable[LayerAttention]) -> list[LayerLines]:
    """Return the layers between words, of which none has more than `MAX_HEAD_WORDS`. Weights have three decimals."""
    return [
        LayerLines(
            f"{each.part} {each.layer}", [*each.queries], [*each.keys], np.round(each.weights.astype(float), 3).tolist()
        )
        for each in layers
        if each.has_words and max(each.weights.shape[1:]) <= MAX_HEAD_WORDS
    ]
