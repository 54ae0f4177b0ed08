"""Thirteen kinds of translator on one task, from a GRU without attention to a prefix model."""

from dataclasses import replace
from typing import Literal, TypedDict, get_args

from translation import translation
from unifier.comparison import Comparison
from unifier.experiment import Experiment, OptimizerName, Precision
from unifier.heads.conv_decoder import ConvDecoderHead
from unifier.heads.hard_attention import HardAttentionHead
from unifier.heads.prefix_lm import PrefixHead
from unifier.heads.rnn_decoders import AdditiveHead, LuongHead, RecurrentHead
from unifier.heads.text_generation import TextGenerationOptions
from unifier.heads.transformer_decoder import TranslationHead
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.recurrent import Cell, RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers.errors import check_choice

Rung = Literal[
    "gru",
    "lstm",
    "additive",
    "dot",
    "general",
    "concat",
    "local",
    "hard",
    "convolutional",
    "parameter_free",
    "single_head",
    "transformer",
    "prefix",
]
"""From the bottom up: one last state of memory; a look back by Bahdanau's attention, by Luong's, at one column alone;
convolutions; self-attention without parameters, with one head, with several; and one stack for both texts."""

RUNGS: tuple[Rung, ...] = get_args(Rung)


class Layers(TypedDict):
    """What all decoders of several layers are told."""

    depth: int
    dropout: float


class Blocks(TypedDict):
    """What encoder and decoder of a transformer have in common."""

    heads: int
    ffn_dim: int
    projections: bool


def one_rung(
    *,
    rung: Rung = "transformer",
    data: str = "embedded",
    source: str = "en",
    target: str = "fr",
    vocabulary: int = 8000,
    dim: int = 128,
    depth: int = 2,
    decoder_depth: int = 2,
    heads: int = 4,
    ffn_dim: int = 256,
    dropout: float = 0.1,
    beam_width: int = 1,
    tokens: int = 600_000,
    batch_tokens: int = 1024,
    optimizer: OptimizerName = "adamw",
    learning_rate: float = 5e-3,
    num_validations: int = 4,
    precision: Precision = "bf16",
) -> Experiment:
    """`translation` on its data, tokens and scores, with another encoder and decoder; settings are those of that.

    `depth` and `decoder_depth` count layers of whatever kind the rung has; the prefix model has them all in one stack.
    """
    recurrent = RUNGS.index(check_choice("rung", rung, RUNGS)) < RUNGS.index("convolutional")
    whole = translation(
        data=data,
        source=source,
        target=target,
        vocabulary=vocabulary,
        positions="none" if recurrent else "sinusoid",
        dim=dim,
        heads=1,  # of a trunk and a head that give way to the rung's
        dropout=dropout,
        r_drop=0.0,
        beam_width=beam_width,
        tokens=tokens,
        batch_tokens=batch_tokens,
        optimizer=optimizer,
        learning_rate=learning_rate,
        num_validations=num_validations,
        precision=precision,
    )
    ((name, task),) = whole.tasks.items()
    assert isinstance(task.head, TranslationHead)
    options: TextGenerationOptions = {
        "label_smoothing": task.head.label_smoothing,
        "beam_width": task.head.beam_width,
        "length_penalty": task.head.length_penalty,
        "embedding": task.head.embedding,
        "language": task.head.language,
    }
    words, layers = task.head.vocabulary, Layers(depth=decoder_depth, dropout=dropout)

    def memory(cell: Cell = "lstm", *, bidirectional: bool = True) -> Trunk:
        return RecurrentTrunk(dim, depth, cell=cell, bidirectional=bidirectional, dropout=dropout)

    match rung:
        case "gru" | "lstm":
            trunk, head = memory(rung, bidirectional=False), RecurrentHead(words, dim, cell=rung, **layers, **options)
        case "additive":
            trunk, head = memory("gru"), AdditiveHead(words, dim, **layers, **options)
        case "dot" | "general" | "concat":
            trunk, head = memory(), LuongHead(words, dim, score=rung, **layers, **options)
        case "local":
            trunk, head = memory(), LuongHead(words, dim, span="local", **layers, **options)
        case "hard":
            trunk, head = memory(), HardAttentionHead(words, dim, **layers, **options)
        case "convolutional":
            trunk = ConvolutionalTrunk(dim, depth, kernel_size=3, dropout=dropout)
            head = ConvDecoderHead(words, dim, kernel_size=3, **layers, **options)
        case "prefix":
            trunk = Transformer(dim, depth + decoder_depth, heads, ffn_dim, dropout=dropout)
            head = PrefixHead(words, dim, dropout=dropout, **options)
        case _:
            block = Blocks(
                heads=heads if rung == "transformer" else 1, ffn_dim=ffn_dim, projections=rung != "parameter_free"
            )
            trunk = Transformer(dim, depth, dropout=dropout, **block)
            head = TranslationHead(words, dim, **layers, **block, **options)
    return replace(whole, name="one_rung", trunk=trunk, tasks={name: replace(task, head=head)})


def ladder(
    *,
    rungs: tuple[Rung, ...] = RUNGS,
    data: str = "embedded",
    source: str = "en",
    target: str = "fr",
    vocabulary: int = 8000,
    dim: int = 128,
    depth: int = 2,
    decoder_depth: int = 2,
    heads: int = 4,
    ffn_dim: int = 256,
    dropout: float = 0.1,
    beam_width: int = 1,
    tokens: int = 600_000,
    batch_tokens: int = 1024,
    optimizer: OptimizerName = "adamw",
    learning_rate: float = 5e-3,
    num_validations: int = 4,
    precision: Precision = "bf16",
    seeds: tuple[int, ...] = (0,),
) -> Comparison:
    """Every rung on the same pairs, subwords and number of tokens; `data` is "multi30k" for captions.

    `heads` are those of the rungs that have several, the transformer and the prefix model.
    """
    return Comparison(
        "ladder",
        [one_rung],
        settings={
            "data": data,
            "source": source,
            "target": target,
            "vocabulary": vocabulary,
            "dim": dim,
            "depth": depth,
            "decoder_depth": decoder_depth,
            "heads": heads,
            "ffn_dim": ffn_dim,
            "dropout": dropout,
            "beam_width": beam_width,
            "tokens": tokens,
            "batch_tokens": batch_tokens,
            "optimizer": optimizer,
            "learning_rate": learning_rate,
            "num_validations": num_validations,
            "precision": precision,
        },
        seeds=seeds,
        grid={"rung": rungs},
        question="What did each step from one last state to attention bring to translation?",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
