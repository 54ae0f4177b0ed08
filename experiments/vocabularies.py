"""Comparison of six kinds of vocabulary, from words to bytes, on translation and on sentiments of sentences."""

from typing import get_args

import unifier as uf
from text_classification import text_classification
from translation import translation
from unifier.options import DecoderConfig, Level, ParallelTextConfig, TrunkConfig

LEVELS: tuple[Level, ...] = get_args(Level)
TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
DECODER = DecoderConfig(decoder_depth=2)
TRAINING = uf.Training(
    flops=1e13, batch_tokens=2048, optimizer="muon", learning_rate=4e-3, num_validations=4, precision="bf16"
)
"""The budget counts FLOPs, because equal numbers of tokens would contain less text at the level of bytes."""


def multi30k(
    *, level: Level = "bpe", vocabulary: int = 4000, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING
) -> uf.Experiment:
    """Translate captions from English into German with one vocabulary for both languages.

    Args:
        level: Kind of subword: bpe, wordpiece, unigram, word, character or byte.
        vocabulary: Largest number of entries of the vocabulary.
    """
    pairs = ParallelTextConfig("multi30k", "en", "de")
    return translation(pairs=pairs, level=level, vocabulary=vocabulary, trunk=trunk, decoder=DECODER, training=training)


def sst2(
    *, level: Level = "bpe", vocabulary: int = 4000, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING
) -> uf.Experiment:
    """Classify sentences of film reviews as positive or negative.

    Args:
        level: Kind of subword: bpe, wordpiece, unigram, word, character or byte.
        vocabulary: Largest number of entries of the vocabulary.
    """
    return text_classification(data="sst2", level=level, vocabulary=vocabulary, trunk=trunk, training=training)


def vocabularies(*, levels: tuple[Level, ...] = LEVELS, seeds: tuple[int, ...] = (0, 1, 2)) -> uf.Comparison:
    """Compare kinds of vocabulary with equal FLOPs. All settings of the two experiments can be set.

    Args:
        levels: The kinds of vocabulary to compare.
        seeds: Random seeds; each condition is trained once per seed.
    """
    return uf.Comparison(
        "vocabularies",
        [multi30k, sst2],
        seeds=seeds,
        grid={"level": levels},
        budget_unit="flops",
        question="Which kind of vocabulary do small models of texts need?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
