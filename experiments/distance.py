"""Comparison of six readers of a sentence: the accuracy over the distance from a noun to its pronoun."""

from dataclasses import replace
from typing import Any, Literal, get_args

import unifier as uf
from unifier.datasets import DISTANCES, DistantReferences
from unifier.options import TrunkConfig, learn_vocabulary

Reader = Literal["lstm", "gru", "convolutional", "dilated", "recurrent_attention", "transformer"]
"""The six readers, which differ only in the trunk.

"lstm" and "gru" read in both directions. "convolutional" reads 5 neighboring tokens in each layer, and in "dilated" the
distance between these tokens doubles at each layer. "recurrent_attention" is an LSTM and then a layer of attention.
"""

READERS: tuple[Reader, ...] = get_args(Reader)
TRUNKS: dict[Reader, dict[str, Any]] = {
    "lstm": {"trunk": "lstm", "positions": "none"},
    "gru": {"trunk": "gru", "positions": "none"},
    "convolutional": {"trunk": "convolutional"},
    "dilated": {"trunk": "convolutional", "dilation": 2},
    "recurrent_attention": {"trunk": "sha_rnn", "positions": "none"},
    "transformer": {"trunk": "transformer"},
}
TRUNK = TrunkConfig(dim=64, depth=6, heads=4, ffn_dim=128)
TRAINING = uf.Training(tokens=2_000_000, batch_tokens=2048, optimizer="muon", learning_rate=5e-3, num_validations=4)


def reference(
    *,
    reader: Reader = "transformer",
    distances: tuple[int, ...] = DISTANCES,
    examples: int = 10_000,
    length: int = 256,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Predict if the French pronoun is il or elle, from the last token of an English sentence.

    The pronoun depends on a noun n words before. The tokenizer has one token per word.

    Args:
        reader: lstm, gru, convolutional, dilated, recurrent_attention or transformer.
        distances: The numbers of words from the noun to the pronoun, in train and in test.
        examples: Number of sentences in train.
        length: Number of learned positions, for positions=learned only.
    """
    uf.check_choice("reader", reader, READERS)
    source = DistantReferences(distances=distances, train=examples)
    # All readers are checked, so that a comparison ends before its first run and not at its first transformer.
    if trunk.positions == "learned" and source.max_words > length:
        raise uf.InputError(
            f"distances={max(distances)}: sentences have up to {source.max_words} words, but only length={length} "
            "positions are learned; give a smaller distance, a larger length, or positions=sinusoid"
        )
    trunk = replace(trunk, heads=1 if reader == "recurrent_attention" else trunk.heads, **TRUNKS[reader])
    words = learn_vocabulary(source.name, source, 1000, training, level="word")
    tokenizer = uf.SubwordTokenizer(
        words, trunk.dim, positions=trunk.input_positions, length=length, dropout=trunk.dropout, end=False
    )
    head = uf.ClassificationHead(source.labels, trunk.dim, pooling="last")
    return uf.Experiment(trunk.build(), {source.name: uf.Task(source, tokenizer, head)}, training)


def distance(*, readers: tuple[Reader, ...] = READERS, seeds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> uf.Comparison:
    """Compare readers on equal sentences with equal budgets. All settings of `reference` can be set.

    Args:
        readers: The readers to compare.
        seeds: Random seeds; each reader is trained once per seed.
    """
    return uf.Comparison(
        "distance",
        [reference],
        seeds=seeds,
        grid={"reader": readers},
        question="Over what distance does each reader remember a noun?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
