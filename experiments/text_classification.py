"""Classification of texts, such as sentiments and topics."""

from typing import Any

import unifier as uf
from unifier.datasets import create_text_dataset
from unifier.options import ClassifierConfig, Level, TrunkConfig, WordVectorConfig, learn_vocabulary, load_tokenizer

TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256, dropout=0.3)
TRAINING = uf.Training(optimizer="muon", learning_rate=2e-3, precision="bf16")


def text_classification(
    *,
    data: str = "sst2",
    text: str | None = None,
    label: str | None = None,
    vocabulary: int = 4000,
    level: Level = "bpe",
    tokenizer: str | None = None,
    words: WordVectorConfig = WordVectorConfig(),
    trunk: TrunkConfig = TRUNK,
    head: ClassifierConfig = ClassifierConfig(),
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Classify texts.

    Args:
        data: sst2 or trec in the data folder, a CSV or TSV file with one text per row, or datasets:DIR
            or parquet:DIR.
        text: The name of the file's column with the texts; None means "text".
        label: The name of the file's column with the labels; None means "label".
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        level: Kind of subword: bpe, wordpiece, unigram, word, character or byte.
        tokenizer: Pretrained vocabulary and embeddings, as hf:MODEL; None means a learned vocabulary.
    """
    source = create_text_dataset(data, text=text, label=label)
    options: dict[str, Any] = {"positions": trunk.input_positions, "dropout": trunk.dropout}
    if words.vectors is not None:
        if tokenizer is not None or level != "bpe" or vocabulary != 4000:
            raise uf.InputError(
                f"vectors={words.vectors}: the vocabulary is the words of the vectors; leave out tokenizer, level and "
                "vocabulary"
            )
        subwords, vectors = words.load(source.name, source, training)
        fixed = not words.train_vectors
        embedder = uf.SubwordTokenizer(subwords, trunk.dim, vectors=vectors, freeze_vectors=fixed, **options)
    elif tokenizer is not None:
        embedder = load_tokenizer(tokenizer, trunk)
    else:
        subwords = learn_vocabulary(source.name, source, vocabulary, training, level=level)
        embedder = uf.SubwordTokenizer(subwords, trunk.dim, **options)
    task = uf.Task(source, embedder, head.build(source, trunk.dim, class_token=tokenizer is not None))
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
