"""The attention heads of a trunk and of a task's head: their names, their weights, and passes without one of them."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.heads.text_generation import AttentiveTextHead
from unifier.network import TaskModules
from unifier.nn.attention import Attention
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import PretrainedTextTokenizer, SubwordTokenizer, Tokens, Units, WordTokenizer
from unifier_tokenizers.subwords import EOS

HEAD_PARTS = ("trunk", "decoder", "cross")
"""The parts of a model with attention heads. `AttentionHead` explains the parts."""


class AttentionHead(NamedTuple):
    """One attention head of a layer. `layer` and `head` count from 1."""

    part: str
    """trunk, decoder (self-attention), or cross (attention of the decoder to the trunk's tokens)."""
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.part} {self.layer}.{self.head}"


class LayerAttention(NamedTuple):
    """The attention weights of one layer, for one example."""

    part: str
    """See `AttentionHead`."""
    layer: int
    """See `AttentionHead`."""
    queries: Sequence[str]
    """The text of each token that attends. Tokens without text have no entries."""
    keys: Sequence[str]
    """The text of each token that receives attention. Tokens without text have no entries."""
    weights: NDArray[np.floating]
    """The weights (H, queries, keys) of the heads."""

    @property
    def has_words(self) -> bool:
        """True if every token has a text."""
        return (len(self.queries), len(self.keys)) == self.weights.shape[1:]


def attention_layers(trunk: nn.Module, head: nn.Module) -> dict[tuple[str, int], Attention]:
    """Return a mapping from (part, layer) to the attention layers of a trunk and of a task's head.

    The parts are those of `AttentionHead`. Layers that share their weights are one layer.

    Args:
        trunk: The trunk.
        head: The head of the task.
    """
    found: dict[tuple[str, int], Attention] = {}
    for module, own in ((trunk, "trunk"), (head, "decoder")):
        for name, layer in module.named_modules():
            if isinstance(layer, Attention):
                part = "cross" if name.endswith("cross") else own
                found[part, 1 + sum(other == part for other, _ in found)] = layer
    return found


@contextmanager
def recorded_attention(layers: Mapping[tuple[str, int], Attention]) -> Generator[dict[tuple[str, int], Tensor]]:
    """Record the attention weights (B, H, N, M) of the last pass through each layer.

    Args:
        layers: The layers, as returned by `attention_layers`.
    """
    weights: dict[tuple[str, int], Tensor] = {}
    appended: dict[tuple[str, int], list[Tensor]] = {}

    def record(key: tuple[str, int]) -> tuple[Any, Any]:
        def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            given = kwargs.get("weights")
            appended[key] = [] if given is None else given
            return args, {**kwargs, "weights": appended[key]}

        def after(*_: Any) -> None:
            weights[key] = appended.pop(key)[-1]

        return before, after

    with ExitStack() as stack:
        for key, layer in layers.items():
            before, after = record(key)
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(after).remove)
        yield weights


def attention_of_heads(
    trunk: Trunk, parts: TaskModules, units: Units, tokens: Tokens, text: str = ""
) -> list[LayerAttention]:
    """Return the attention weights of each layer for one input, or no layer for a model without attention heads.

    Args:
        trunk: The trunk.
        parts: The tokenizer and the head of the task.
        units: The encoded input.
        tokens: The embedded input (1, D, N).
        text: The text that a head generated for the input, or the text of the target.
    """
    head, tokenizer = parts.head, parts.tokenizer
    if not (layers := attention_layers(trunk, head)):
        return []
    names: dict[str, list[str]] = {"trunk": [], "decoder": []}
    if isinstance(tokenizer, SubwordTokenizer | PretrainedTextTokenizer):
        names["trunk"] = tokenizer.vocabulary.tokens(units.values.tolist())
    elif isinstance(tokenizer, WordTokenizer):
        names["trunk"] = tokenizer.unit_names(units)
    with recorded_attention(layers) as recorded:
        output = head.run_trunk(trunk, tokens)
        if isinstance(head, SpectrogramDecoderHead):
            (speech,) = head.predict(output)  # The second pass records the attention of all steps.
            head.teacher_forced(output, speech.spectrogram[None].to(output.matrix.device))
        if isinstance(head, AttentiveTextHead):
            ids = head.vocabulary.encode(text) if text else []
            head.alignment(output, torch.tensor([ids], dtype=torch.long, device=tokens.matrix.device))
            names["decoder"] = head.vocabulary.tokens([*ids, EOS])
    return [
        LayerAttention(
            part,
            layer,
            names["trunk" if part == "trunk" else "decoder"],
            names["decoder" if part == "decoder" else "trunk"],
            weights[0].float().cpu().numpy(),
        )
        for (part, layer), weights in sorted(recorded.items(), key=lambda item: HEAD_PARTS.index(item[0][0]))
    ]


@contextmanager
def without_head(layer: Attention, head: int) -> Generator[None]:
    """Set the output of one attention head to 0 in every pass (Michel et al. 2019, section 2.3).

    Args:
        layer: The layer of the head.
        head: The index of the head, from 0.
    """

    def mask(output: Any) -> Tensor:
        size = output.shape[-1] // layer.heads
        masked = output.clone()
        masked[..., head * size : (head + 1) * size] = 0
        return masked

    if layer.projections:
        handle = layer.out.register_forward_pre_hook(lambda _, args: mask(args[0]))
    else:
        handle = layer.register_forward_hook(lambda _, args, output: mask(output))
    try:
        yield
    finally:
        handle.remove()
