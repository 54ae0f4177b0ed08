"""Comparison of word tables that are learned from scratch, fixed, or trained further, on sentiments and diseases."""

from typing import Any, Literal, get_args

import text_classification as texts
import token_classification as labels
import unifier as uf
from unifier.options import TrunkConfig, WordVectorConfig

Table = Literal["scratch", "own_fixed", "own_trained", "glove_fixed", "glove_trained"]
"""The table of words: random at first, or vectors of a run of word_vectors ("own") or of GloVe, fixed or trained."""

TABLES: tuple[Table, ...] = get_args(Table)
TOKENS, WORDS = 2_000_000, 30_000
"""The budget of a run, which takes one to three minutes on one core, and the largest number of words from scratch."""

SENTENCES = uf.Training(tokens=TOKENS, optimizer="muon", learning_rate=2e-3, precision="bf16")
ENTITIES = uf.Training(tokens=TOKENS, optimizer="adamw", learning_rate=4e-3, batch_tokens=2048, precision="bf16")


def sst2(
    *,
    table: Table = "scratch",
    own: str | None = None,
    trunk: TrunkConfig = texts.TRUNK,
    training: uf.Training = SENTENCES,
) -> uf.Experiment:
    """Classify sentences of film reviews as positive or negative, with one token per word.

    Args:
        table: Table of words: scratch, own_fixed, own_trained, glove_fixed or glove_trained.
        own: Run of word_vectors whose table own_fixed and own_trained use.
    """
    return texts.text_classification(data="sst2", trunk=trunk, training=training, **_word_settings(table, own))


def ncbi_disease(
    *,
    table: Table = "scratch",
    own: str | None = None,
    trunk: TrunkConfig = labels.TRUNK,
    training: uf.Training = ENTITIES,
) -> uf.Experiment:
    """Mark the names of diseases, with an LSTM over words and their letters.

    Args:
        table: Table of words: scratch, own_fixed, own_trained, glove_fixed or glove_trained.
        own: Run of word_vectors whose table own_fixed and own_trained use.
    """
    return labels.token_classification(
        data="ncbi_disease", trunk=trunk, training=training, **_word_settings(table, own)
    )


def _word_settings(table: Table, own: str | None) -> dict[str, Any]:
    uf.check_choice("table", table, TABLES)
    if table == "scratch":
        return {"level": "word", "vocabulary": WORDS}
    vectors = own if table.startswith("own") else "glove"
    if vectors is None:
        raise uf.InputError(
            f"table={table}: give own=RUN, a run of the recipe word_vectors, or leave the own tables out of tables"
        )
    return {"words": WordVectorConfig(vectors, train_vectors=table.endswith("trained"))}


def word_vectors_study(
    *, own: str | None = None, tables: tuple[Table, ...] = TABLES, seeds: tuple[int, ...] = (0, 1, 2)
) -> uf.Comparison:
    """Compare tables of words at equal tokens. The cost of the vectors is not counted.

    Args:
        own: Run of word_vectors whose table own_fixed and own_trained use.
        tables: The tables to compare; differences are taken from the first one.
        seeds: Random seeds; each table is trained once per seed.
    """
    for table in tables:
        _word_settings(table, own)
    return uf.Comparison(
        "word_vectors_study",
        [sst2, ncbi_disease],
        settings={"own": own},
        seeds=seeds,
        grid={"table": tables},
        question="Are word vectors of a small text, or of a large one, better than a table from scratch?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
