"""Comparison of thirteen kinds of translator on one task, from a GRU to a prefix language model."""

from dataclasses import replace
from typing import Any, Literal, get_args

import unifier as uf
from translation import translation
from unifier.options import DecoderConfig, ParallelTextConfig, TrunkConfig

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
"""The thirteen kinds of translator, from the oldest kind to the newest kind.

"gru" and "lstm" use only the last state of an RNN encoder. "additive" is Bahdanau's attention. "dot", "general",
"concat" and "local" are kinds of Luong's attention. "hard" attends to a single token. "convolutional" consists of
convolutions. "parameter_free", "single_head" and "transformer" use self-attention. "prefix" processes input and output
in one stack of layers.
"""

RUNGS: tuple[Rung, ...] = get_args(Rung)
TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
DECODER = DecoderConfig(decoder_depth=2)
TRAINING = uf.Training(tokens=600_000, batch_tokens=1024, learning_rate=5e-3, num_validations=4, precision="bf16")


def one_rung(
    *,
    rung: Rung = "transformer",
    pairs: ParallelTextConfig = ParallelTextConfig(),
    vocabulary: int = 8000,
    trunk: TrunkConfig = TRUNK,
    decoder: DecoderConfig = DECODER,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Translate with the encoder and the decoder of one rung.

    The data, the budget and the scores are defined in `translation`.

    `depth` and `decoder_depth` are the numbers of layers in encoder and decoder. The prefix model has
    `depth` + `decoder_depth` layers in one stack. `heads` applies only to the transformer and the prefix model.

    Args:
        rung: The kind of encoder and decoder.
        vocabulary: Number of subwords in the vocabulary.
    """
    index = RUNGS.index(uf.check_choice("rung", rung, RUNGS))
    # RNNs need no positional encoding. The trunk and the head of `base` are replaced below.
    positions = "none" if index < RUNGS.index("convolutional") else "sinusoid"
    base = translation(
        pairs=pairs,
        vocabulary=vocabulary,
        trunk=replace(trunk, heads=1, positions=positions),
        decoder=decoder,
        training=training,
    )
    ((name, task),) = base.tasks.items()
    assert isinstance(task.tokenizer, uf.SubwordTokenizer)
    options: dict[str, Any] = {
        **decoder.options(task.tokenizer.embedding),
        "dropout": trunk.dropout,
        "language": pairs.language,
    }
    encoder, head = build_rung(rung, trunk, decoder.decoder_depth, task.tokenizer.vocabulary, options)
    return replace(base, trunk=encoder, tasks={name: replace(task, head=head)})


def build_rung(
    rung: Rung, config: TrunkConfig, decoder_depth: int, vocabulary: uf.Vocabulary, options: dict[str, Any]
) -> tuple[uf.Trunk, uf.Head]:
    """Create the trunk and the head of one rung.

    Args:
        rung: The kind of encoder and decoder.
        config: The settings of the encoder.
        decoder_depth: The number of decoder layers.
        vocabulary: The subwords of both languages.
        options: The keyword arguments that every head accepts.
    """
    dim, depth, dropout = config.dim, config.depth, config.dropout
    layers: dict[str, Any] = {"depth": decoder_depth, **options}

    def rnn(cell: Literal["gru", "lstm"] = "lstm", *, bidirectional: bool = True) -> uf.Trunk:
        return uf.RecurrentTrunk(dim, depth, cell=cell, bidirectional=bidirectional, dropout=dropout)

    match rung:
        case "gru" | "lstm":
            return rnn(rung, bidirectional=False), uf.RecurrentHead(vocabulary, dim, cell=rung, **layers)
        case "additive":
            return rnn("gru"), uf.AdditiveHead(vocabulary, dim, **layers)
        case "dot" | "general" | "concat":
            return rnn(), uf.LuongHead(vocabulary, dim, score=rung, **layers)
        case "local":
            return rnn(), uf.LuongHead(vocabulary, dim, span="local", **layers)
        case "hard":
            return rnn(), uf.HardAttentionHead(vocabulary, dim, **layers)
        case "convolutional":
            trunk = uf.ConvolutionalTrunk(dim, depth, kernel_size=3, dropout=dropout)
            return trunk, uf.ConvDecoderHead(vocabulary, dim, kernel_size=3, **layers)
        case "prefix":
            trunk = uf.Transformer(dim, depth + decoder_depth, config.heads, config.ffn_dim, dropout=dropout)
            return trunk, uf.PrefixHead(vocabulary, dim, **options)
        case _:
            blocks: dict[str, Any] = {
                "heads": config.heads if rung == "transformer" else 1,
                "ffn_dim": config.ffn_dim,
                "projections": rung != "parameter_free",
            }
            trunk = uf.Transformer(dim, depth, dropout=dropout, **blocks)
            return trunk, uf.TranslationHead(vocabulary, dim, **blocks, **layers)


def ladder(*, rungs: tuple[Rung, ...] = RUNGS, seeds: tuple[int, ...] = (0,)) -> uf.Comparison:
    """Compare all rungs on the same pairs, subwords and budget. All settings of `one_rung` can be set.

    Args:
        rungs: The rungs to compare.
        seeds: Random seeds; each rung is trained once per seed.
    """
    return uf.Comparison(
        "ladder",
        [one_rung],
        seeds=seeds,
        grid={"rung": rungs},
        question="How much does each kind of attention improve translation?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
