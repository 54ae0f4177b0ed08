"""Thirteen kinds of translator on one task, from a GRU without attention to a prefix model."""

from dataclasses import replace
from typing import Literal, TypedDict, get_args

from translation import translation
from unifier.comparison import Comparison
from unifier.experiment import Experiment, Optimization, Precision
from unifier.heads.conv_decoder import ConvolutionalHead
from unifier.heads.hard_attention import HardHead
from unifier.heads.prefix_lm import PrefixHead
from unifier.heads.rnn_decoders import AdditiveHead, LuongHead, RecurrentHead
from unifier.heads.text_generation import WritingOptions
from unifier.heads.transformer_decoder import TranslationHead
from unifier.trunks.convolutional import Convolutional
from unifier.trunks.recurrent import Cell, Recurrent
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers.errors import choose

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
    hidden: int
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
    hidden: int = 256,
    dropout: float = 0.1,
    beam_width: int = 1,
    tokens: int = 600_000,
    batch_tokens: int = 1024,
    optimizer: Optimization = "adamw",
    learning_rate: float = 5e-3,
    validations: int = 4,
    precision: Precision = "bf16",
) -> Experiment:
    """`translation` on its data, tokens and scores, with another encoder and decoder; settings are those of that.

    `depth` and `decoder_depth` count layers of whatever kind the rung has; the prefix model has them all in one stack.
    """
    recurrent = RUNGS.index(choose("rung", rung, RUNGS)) < RUNGS.index("convolutional")
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
        validations=validations,
        precision=precision,
    )
    ((name, arm),) = whole.arms.items()
    assert isinstance(arm.head, TranslationHead)
    options: WritingOptions = {
        "label_smoothing": arm.head.label_smoothing,
        "beam_width": arm.head.beam_width,
        "length_penalty": arm.head.length_penalty,
        "embedding": arm.head.embedding,
        "language": arm.head.language,
    }
    words, layers = arm.head.vocabulary, Layers(depth=decoder_depth, dropout=dropout)

    def memory(cell: Cell = "lstm", *, both_ways: bool = True) -> Trunk:
        return Recurrent(dim, depth, cell=cell, both_ways=both_ways, dropout=dropout)

    match rung:
        case "gru" | "lstm":
            trunk, head = memory(rung, both_ways=False), RecurrentHead(words, dim, cell=rung, **layers, **options)
        case "additive":
            trunk, head = memory("gru"), AdditiveHead(words, dim, **layers, **options)
        case "dot" | "general" | "concat":
            trunk, head = memory(), LuongHead(words, dim, score=rung, **layers, **options)
        case "local":
            trunk, head = memory(), LuongHead(words, dim, reach="local", **layers, **options)
        case "hard":
            trunk, head = memory(), HardHead(words, dim, **layers, **options)
        case "convolutional":
            trunk = Convolutional(dim, depth, width=3, dropout=dropout)
            head = ConvolutionalHead(words, dim, width=3, **layers, **options)
        case "prefix":
            trunk = Transformer(dim, depth + decoder_depth, heads, hidden, dropout=dropout)
            head = PrefixHead(words, dim, dropout=dropout, **options)
        case _:
            block = Blocks(
                heads=heads if rung == "transformer" else 1, hidden=hidden, projections=rung != "parameter_free"
            )
            trunk = Transformer(dim, depth, dropout=dropout, **block)
            head = TranslationHead(words, dim, **layers, **block, **options)
    return replace(whole, name="one_rung", trunk=trunk, arms={name: replace(arm, head=head)})


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
    hidden: int = 256,
    dropout: float = 0.1,
    beam_width: int = 1,
    tokens: int = 600_000,
    batch_tokens: int = 1024,
    optimizer: Optimization = "adamw",
    learning_rate: float = 5e-3,
    validations: int = 4,
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
            "hidden": hidden,
            "dropout": dropout,
            "beam_width": beam_width,
            "tokens": tokens,
            "batch_tokens": batch_tokens,
            "optimizer": optimizer,
            "learning_rate": learning_rate,
            "validations": validations,
            "precision": precision,
        },
        seeds=seeds,
        vary={"rung": rungs},
        question="What did each step from one last state to attention bring to translation?",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
