"""Word vectors: each word predicts the words around it, on a trunk without blocks."""

import unifier as uf
from unifier.datasets import WordVectorTexts, create_plain_text_dataset
from unifier.options import learn_words

TRAINING = uf.Training(optimizer="adamw", learning_rate=0.01, batch_tokens=4096, num_validations=10)
MIN_EPOCHS = 20


def word_vectors(
    *,
    data: str = "movie_reviews,wiki_articles,squad_dev",
    words: int = 64,
    dim: int = 100,
    vocabulary: int = 21000,
    window: int = 5,
    negatives: int = 5,
    subsample: float = 1e-3,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Learn word vectors by skip-gram, and test them by judged pairs of words and by analogies.

    Args:
        data: Texts, separated by commas: movie_reviews, wiki_articles, squad_dev, or a text file of your own.
        words: Number of words of an example; a window ends at its borders.
        dim: Number of features of a word vector.
        vocabulary: Number of words in the vocabulary, which are the most frequent ones in lower case.
        window: Largest number of words on each side that a word predicts.
        negatives: Number of random words per predicted word.
        subsample: Relative frequency above which words are dropped at random.
    """
    source = WordVectorTexts([create_plain_text_dataset(part, words=words) for part in data.split(",")])
    table, counts = learn_words(source.name, source, vocabulary, training)
    tokenizer = uf.SubwordTokenizer(table, dim, positions="none", end=False)
    head = uf.WordVectorHead(table, dim, embedding=tokenizer.embedding, negatives=negatives)
    objective = uf.SkipGram(table, counts, window=window, subsample=subsample)
    task = uf.Task(source, tokenizer, head, objective=objective, score_range=source.score_range)
    training = training.sized_for(source, source.name, minimum=MIN_EPOCHS)
    return uf.Experiment(uf.Transformer(dim, 0, norm="post"), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
