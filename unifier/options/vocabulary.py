"""Vocabularies of recipes: learned from the training split, or taken over from a trained model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from unifier.data.source import Source, readable_examples
from unifier.experiment import Training, fitted
from unifier.models.folder import find_earlier_model, read_vocabulary
from unifier.objectives.skip_gram import count_words
from unifier.options.trunk import TrunkConfig
from unifier.trunks.huggingface import HF, load_hf_tokenizer
from unifier_tokenizers import (
    InputError,
    PretrainedTextTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Vocabulary,
    WordTokenizer,
)
from unifier_tokenizers.subwords import Level

MAX_VOCABULARY_TEXTS = 1_000_000
"""The largest number of examples from which a vocabulary is learned.

The selected examples are evenly spaced in the split. More examples would cost time, but would hardly change the
vocabulary.
"""


def learn_vocabulary(
    name: str,
    source: Source,
    size: int,
    training: Training,
    *,
    targets: bool = False,
    level: Level = "bpe",
    extra: Sequence[str] = (),
) -> Vocabulary:
    """Learn a vocabulary from the training inputs, or take over the vocabulary of a trained model.

    An input or a target is a text, a sequence of texts, or a mapping with texts. A run that starts from a trained model
    with texts takes over the vocabulary, so the tokenizer's weights keep their meaning. With `start_tokenizers=False`,
    the vocabulary is always learned. A loaded or resumed run reads the vocabulary from the run's folder.

    Args:
        name: The name under which the run stores the vocabulary (see `fitted`).
        source: The data set.
        size: The maximum number of entries of a learned vocabulary.
        training: The settings `start`, `start_tokenizers` and `bad_examples`.
        targets: Learn the target texts too.
        level: The kind of subword of a learned vocabulary.
        extra: The names of extra entries of a learned vocabulary, such as "<mask>".
    """

    def learn() -> Vocabulary:
        if (trained := _trained_vocabulary(name, training, SubwordTokenizer)) is not None:
            return trained
        train = readable_examples(
            source.split("train"), bad_examples=training.bad_examples, max_examples=MAX_VOCABULARY_TEXTS
        )
        pairs = (example if targets else (example.input,) for example in train)
        texts = (text for pair in pairs for part in pair for text in _texts_of(part))
        return Vocabulary.fit(texts, size=size, level=level, extra=extra)

    return fitted(name, learn, source)


def learn_word_vocabulary(
    source: Source, name: str, size: int, training: Training, *, level: Level = "bpe", extra: Sequence[str] = ()
) -> Vocabulary:
    """Learn the subwords of texts or sequences of words, in lower case, or the characters of texts with their case.

    The vocabulary of a trained model is taken over as in `learn_vocabulary`. A loaded or resumed run reads the
    vocabulary from the run's folder.

    Args:
        source: The data set.
        name: The name under which the run stores the vocabulary.
        size: The maximum number of entries of the vocabulary.
        training: The settings `start`, `start_tokenizers` and `bad_examples`.
        level: The kind of subword. Only "character" keeps the case.
        extra: The names of extra entries, such as "<mask>".
    """

    def learn() -> Vocabulary:
        if (trained := _trained_vocabulary(name, training, WordTokenizer)) is not None:
            return trained
        train = readable_examples(
            source.split("train"), bad_examples=training.bad_examples, max_examples=MAX_VOCABULARY_TEXTS
        )
        if level == "character":
            return Vocabulary.fit((example.input for example in train), size=size, level=level, extra=extra)
        texts = (" ".join(_texts_of(example.input)) for example in train)
        return Vocabulary.fit(map(str.lower, texts), size=size, level=level, extra=extra)

    return fitted(name, learn, source)


def learn_words(name: str, source: Source, size: int, training: Training) -> Vocabulary:
    """Learn a vocabulary of words in lower case from the training inputs.

    Args:
        name: The name under which the run stores the vocabulary (see `fitted`).
        source: The texts.
        size: The maximum number of words.
        training: The setting `bad_examples`.
    """
    return fitted(
        name, lambda: Vocabulary.fit(training_texts(source, training), size=size, level="word", lowercase=True)
    )


def count_training_words(vocabulary: Vocabulary, source: Source, training: Training) -> Tensor:
    """Return how often each word of a vocabulary occurs in the training inputs (V,).

    Args:
        vocabulary: The vocabulary with V words.
        source: The texts, or sequences of words.
        training: The setting `bad_examples`.
    """
    return count_words(vocabulary, training_texts(source, training))


def load_tokenizer(name: str, trunk: TrunkConfig) -> PretrainedTextTokenizer:
    """Load the tokenizer of a pretrained model for text, named hf:FOLDER or hf:USER/NAME.

    Raises:
        InputError: The model has no such tokenizer, or another width than the trunk.
    """
    if not name.startswith(HF):
        raise InputError(f"tokenizer={name}: give hf:FOLDER or hf:USER/NAME, or leave the setting out")
    tokenizer = load_hf_tokenizer(name.removeprefix(HF), dropout=trunk.dropout)
    if tokenizer.dim != trunk.dim:
        raise InputError(f"dim={trunk.dim}, but tokenizer={name} has D = {tokenizer.dim}: set dim={tokenizer.dim}")
    return tokenizer


def training_texts(source: Source, training: Training) -> Iterator[str]:
    """Yield the training inputs. The words of a sequence are joined."""
    train = readable_examples(
        source.split("train"), bad_examples=training.bad_examples, max_examples=MAX_VOCABULARY_TEXTS
    )
    return (" ".join(_texts_of(example.input)) for example in train)


def _texts_of(part: str | Sequence[str] | Mapping[str, str]) -> Iterable[str]:
    """Return the texts of an input or a target."""
    if isinstance(part, str):
        return (part,)
    return part.values() if isinstance(part, Mapping) else part


def _trained_vocabulary(name: str, training: Training, kind: type[Tokenizer]) -> Vocabulary | None:
    """Return the vocabulary of the trained model that a run starts from, or None if there is no such vocabulary."""
    if training.start is None or not training.start_tokenizers:
        return None
    return read_vocabulary(find_earlier_model(training.start), name, kind)
