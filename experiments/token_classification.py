"""Labels of words and residues, such as named entities and the secondary structure of proteins."""

import unifier as uf
from unifier.datasets import create_token_dataset
from unifier.options import Level, TrunkConfig, WordVectorConfig, learn_word_vocabulary

TRUNK = TrunkConfig(trunk="lstm", dim=200, depth=1, dropout=0.5, positions="none")
TRAINING = uf.Training(optimizer="adamw", learning_rate=4e-3, batch_tokens=2048, precision="bf16")


def token_classification(
    *,
    data: str = "ncbi_disease",
    val: str | None = None,
    test: str | None = None,
    vocabulary: int = 4000,
    level: Level = "bpe",
    letters: int = 24,
    word_dropout: float = 0.2,
    label_smoothing: float = 0.0,
    words: WordVectorConfig = WordVectorConfig(),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Give a label to each word of a text, or to each residue of a protein.

    Args:
        data: ncbi_disease, wnut17 or protein_ss in the data folder, a file with one word and its label per line, or
            datasets:DIR or parquet:DIR.
        val: A file with the validation sentences; None means that sentences of your file are held out.
        test: A file with the test sentences; None means that sentences of your file are held out.
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        level: Kind of subword: bpe, wordpiece, unigram, word, character or byte; residues are characters.
        letters: Number of letters of a word that are read, in addition to its subwords.
        word_dropout: Probability that the subwords of a word are left out in training, so its letters must suffice.
        label_smoothing: Share of the target probability that is spread over all labels in training.
    """
    source = create_token_dataset(data, val=val, test=test)
    residues = isinstance(source, uf.datasets.ProteinSS)
    if residues and (level != "bpe" or words.vectors is not None):
        raise uf.InputError(f"level={level}, vectors={words.vectors}: residues are not words; leave these settings out")
    vectors = None
    if words.vectors is not None:
        if level != "bpe" or vocabulary != 4000:
            raise uf.InputError(
                f"vectors={words.vectors}: the vocabulary is the words of the vectors; leave out level and vocabulary"
            )
        subwords, vectors = words.load(source.name, source, training)
    else:
        kind = "character" if residues else level
        subwords = learn_word_vocabulary(source, source.name, vocabulary, training, level=kind)
    tokenizer = uf.WordTokenizer(
        subwords,
        trunk.dim,
        split="characters" if residues else "words",
        letters=0 if residues else letters,
        lowercase=not residues,
        word_dropout=0.0 if residues else word_dropout,
        positions=trunk.input_positions,
        dropout=trunk.dropout,
        vectors=vectors,
        freeze_vectors=not words.train_vectors,
    )
    head = uf.TokenClassificationHead(source.labels, trunk.dim, dropout=trunk.dropout, label_smoothing=label_smoothing)
    task = uf.Task(source, tokenizer, head)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
