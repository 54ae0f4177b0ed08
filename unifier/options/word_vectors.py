"""Settings of word vectors."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import final

from torch import Tensor

from unifier.data.source import Source, data_folder
from unifier.experiment import Training, fitted
from unifier.files import print_status
from unifier.models.folder import find_earlier_model
from unifier.models.hub import HUB
from unifier.models.word_table import read_word_table
from unifier.options.vocabulary import count_training_words, training_texts
from unifier_tokenizers import InputError, Vocabulary, load_vectors, match_vectors, vector_words

MAX_VECTOR_WORDS = 2_000_000
"""The largest number of words of a vocabulary with word vectors."""


@final
@dataclass(frozen=True)
class WordVectorConfig:
    """Settings of word vectors, which replace the learned embeddings of words."""

    vectors: str | None = None
    """Word vectors: glove in the data folder, a run of word_vectors, a text file, or ARRAY.npz,WORDS.txt."""
    train_vectors: bool = False
    """Train the word vectors, too."""

    def __post_init__(self) -> None:
        if self.train_vectors and self.vectors is None:
            raise InputError("train_vectors=true: only vectors=FILE gives word vectors; leave it out")

    def load(self, name: str, source: Source, training: Training) -> tuple[Vocabulary, Tensor]:
        """Return a vocabulary of words with their vectors (V, E), and print the share of words that have a vector.

        The vocabulary contains all words of the training inputs and of the vectors, in lower case if the vectors
        contain no capital letters. Words without a vector get random vectors. A loaded or resumed run reads the
        vocabulary and the share from the run's folder.

        Args:
            name: The name under which the run stores the vocabulary. The share is stored as "<name>-coverage".
            source: The texts, or sequences of words.
            training: The setting `bad_examples`.

        Raises:
            InputError: The vectors cannot be read, or none of them belongs to a word of the vocabulary.
        """
        assert self.vectors is not None
        files, trained = self.vectors, dict[str, Tensor]()
        if files == "glove":
            folder = data_folder("word_vectors")
            files = f"{folder / 'glove_100d_20k.npz'},{folder / 'glove_words.txt'}"
        elif files.startswith(HUB) or Path(files).is_dir():
            trained |= read_word_table(find_earlier_model(files))
        words = [*trained] or vector_words(files)

        def learn() -> Vocabulary:
            lowercase = all(word == word.lower() for word in words)
            texts = chain(training_texts(source, training), words)
            return Vocabulary.fit(texts, size=MAX_VECTOR_WORDS, level="word", lowercase=lowercase)

        def cover() -> float:
            counts, known = count_training_words(vocabulary, source, training), {*words}
            has_vector = Tensor([token in known for token in vocabulary.tokens(range(len(vocabulary)))]).bool()
            occurs = counts > 0
            share, different = (
                100 * float(part[has_vector].sum() / part.sum()) for part in (counts.double(), occurs.double())
            )
            print_status(
                f"{name}: vectors={self.vectors} have {share:.1f} % of the words of train, "
                f"and {different:.1f} % of its {int(occurs.sum()):,} different words"
            )
            return share

        vocabulary = fitted(name, learn, source)
        fitted(f"{name}-coverage", cover, source)
        table = match_vectors(trained, vocabulary, files) if trained else load_vectors(files, vocabulary)
        return vocabulary, table
