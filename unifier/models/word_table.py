"""The table of words of a trained model, from which the embeddings of another model start."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from unifier.models.folder import read_model
from unifier_tokenizers import InputError, SubwordTokenizer, WordTokenizer


def read_word_table(folder: Path) -> Mapping[str, Tensor]:
    """Return the vector (E,) of each word in a trained model's table, keyed by the word.

    Special entries, and entries that occur only inside of words, are left out.

    Args:
        folder: The model's folder.

    Raises:
        InputError: The folder has no model, or no task of the model has a table of words.
    """
    for task in read_model(folder).tasks.values():
        tokenizer = task.tokenizer
        if isinstance(tokenizer, SubwordTokenizer | WordTokenizer):
            vocabulary, table = tokenizer.vocabulary, tokenizer.embedding.weight.detach().float()
            names = enumerate(vocabulary.tokens(range(len(vocabulary))))
            return {
                name: table[i]
                for i, name in names
                if name and not vocabulary.is_special(i) and vocabulary.encode_start(name) == [i]
            }
    raise InputError(f"{folder}: this model has no table of words; give a run of word_vectors, or a model for texts")
