"""Word vectors from the words around each word, on a trunk without blocks."""

from inspect import signature
from typing import Literal

import unifier as uf
from unifier.datasets import Cooccurrences, WordVectorTexts, create_plain_text_dataset
from unifier.options import count_training_words, learn_words

TRAINING = uf.Training(optimizer="adamw", learning_rate=0.01, batch_tokens=4096, num_validations=10)
MIN_EPOCHS = 20


def word_vectors(
    *,
    method: Literal["skip-gram", "glove"] = "skip-gram",
    data: str = "movie_reviews,wiki_articles,squad_dev",
    words: int = 64,
    dim: int = 100,
    vocabulary: int = 21000,
    window: int = 5,
    negatives: int = 5,
    subsample: float = 1e-3,
    max_count: float = 10.0,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Learn word vectors, and test them by judged pairs of words and by analogies.

    Args:
        method: skip-gram (each word predicts the words around it) or glove (two words predict their count).
        data: Texts, separated by commas: movie_reviews, wiki_articles, squad_dev, or a text file of your own.
        words: Number of words of an example; a window ends at its borders.
        dim: Number of features of a word vector.
        vocabulary: Number of words in the vocabulary, which are the most frequent ones in lower case.
        window: Largest number of words on each side that count as near.
        negatives: Number of random words per predicted word of skip-gram.
        subsample: Relative frequency above which skip-gram drops words at random.
        max_count: Count from which glove gives all pairs the same weight.
    """
    source = WordVectorTexts([create_plain_text_dataset(part, words=words) for part in data.split(",")])
    table = learn_words(source.name, source, vocabulary, training)
    tokenizer = uf.SubwordTokenizer(table, dim, positions="none", end=False)
    score_range = source.score_range
    if method == "glove":
        _refuse(method, negatives=negatives, subsample=subsample)
        source = Cooccurrences(source, table, window=window)
        head = uf.GloVeHead(table, dim, embedding=tokenizer.embedding, max_count=max_count)
        objective = uf.WordsAsTargets()
    else:
        _refuse(method, max_count=max_count)
        head = uf.SkipGramHead(table, dim, embedding=tokenizer.embedding, negatives=negatives)
        counts = count_training_words(table, source, training)
        objective = uf.SkipGram(table, counts, window=window, subsample=subsample)
    task = uf.Task(source, tokenizer, head, objective=objective, score_range=score_range)
    training = training.sized_for(source, source.name, minimum=MIN_EPOCHS)
    return uf.Experiment(uf.Transformer(dim, 0, norm="post"), {source.name: task}, training)


def _refuse(method: str, **given: object) -> None:
    """Raise InputError if a setting of the other method is given."""
    for name, value in given.items():
        if value != signature(word_vectors).parameters[name].default:
            raise uf.InputError(f"{name}={value}: this setting has no effect with method={method}; leave it out")


if __name__ == "__main__":
    uf.run_this_file(__file__)
