"""Word vectors from files in the formats of word2vec, GloVe and NumPy."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from unifier_tokenizers.errors import InputError, check_file
from unifier_tokenizers.text import Vocabulary


def load_vectors(path: str | Path, vocabulary: Vocabulary) -> Tensor:
    """Read word vectors from a text file in the format of word2vec or GloVe, or from an array with a list of words.

    Each line of a text file contains a word and its E numbers. An array and its words are two files, "ARRAY,WORDS": a
    NumPy file (.npz or .npy) with the vectors (W, E), and a text file with one word per line.

    Returns:
        The vectors (V, E) of the vocabulary (see `match_vectors`).

    Raises:
        InputError: If a file is missing or malformed, or if no word of the file is in the vocabulary.
    """
    wanted = {*vocabulary.tokens(range(len(vocabulary)))}
    array, comma, words = str(path).partition(",")
    vectors = _read_vector_array(array, words, wanted) if comma else _read_vector_lines(path, wanted)
    return match_vectors(vectors, vocabulary, str(path))


def match_vectors(vectors: Mapping[str, Tensor], vocabulary: Vocabulary, origin: str) -> Tensor:
    """Return a vector for each entry of a vocabulary, given the vectors (E,) of words.

    Entries without a given vector get random vectors from a normal distribution.

    Args:
        vectors: The vector of each word. Words that are not in the vocabulary are left out.
        vocabulary: The vocabulary with V entries.
        origin: The file or the model of the vectors, for messages.

    Returns:
        The vectors (V, E), scaled to a root mean square of E**-0.5.

    Raises:
        InputError: If no word is in the vocabulary, or if the vectors cannot be scaled.
    """
    # A subword at the start of a word and the same subword inside a word are two entries with the same text.
    entries = defaultdict[str, list[int]](list)
    for i, token in enumerate(vocabulary.tokens(range(len(vocabulary)))):
        entries[token].append(i)
    vectors = {word: vector for word, vector in vectors.items() if word in entries}
    if not vectors:
        raise InputError(
            f"{origin}: no word of these vectors is in the vocabulary: give word vectors for the language of the texts"
        )
    width = len(next(iter(vectors.values())))
    table = torch.randn(len(vocabulary), width, generator=torch.Generator().manual_seed(0))
    root_mean_square = torch.stack(list(vectors.values())).square().mean().sqrt()
    if not 0 < root_mean_square < math.inf:
        raise InputError(f"{origin}: its vectors have a root mean square of {root_mean_square:g}; correct the numbers")
    for word, vector in vectors.items():
        table[entries[word]] = vector / root_mean_square
    return table * width**-0.5


def vector_words(path: str | Path) -> list[str]:
    """Return all words of a file of word vectors, in the order of the file. See `load_vectors` for the formats."""
    words = str(path).partition(",")[2]
    if words:
        return _read_words(words)
    check_file(path)
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        parts = [line.rstrip().split(" ") for line in lines]
    return [word for n, (word, *numbers) in enumerate(parts) if n or len(numbers) != 1]


def _read_words(path: str) -> list[str]:
    check_file(path)
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; save one word per line in UTF-8") from error


def _read_vector_array(array: str, words: str, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the vectors (E,) of the wanted words, given an array and a list of words."""
    names = _read_words(words)
    check_file(array)
    try:
        content = np.load(array, allow_pickle=False)
        arrays = [content] if isinstance(content, np.ndarray) else [content[name] for name in content.files]
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{array} is no NumPy file that can be read: save the vectors as .npz or .npy") from error
    if len(arrays) != 1 or arrays[0].ndim != 2 or arrays[0].dtype.kind != "f":
        raise InputError(f"{array}: a single array (words, numbers) of floats is expected")
    if len(arrays[0]) != len(names):
        raise InputError(f"{array} has {len(arrays[0])} vectors, but {words} has {len(names)} words: give one per word")
    table = torch.from_numpy(arrays[0].astype(np.float32))
    return {word: vector for word, vector in zip(names, table, strict=True) if word in wanted}


def _read_vector_lines(path: str | Path, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the vectors (E,) of the wanted words, given a text file."""
    check_file(path)
    vectors: dict[str, Tensor] = {}
    width = 0
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                word, *numbers = line.decode("utf-8").rstrip().split(" ")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: this line is not UTF-8; save the vectors as text, not as binary"
                ) from error
            if number == 1 and len(numbers) == 1:  # word2vec's header contains the number of words, and E.
                continue
            width = width or len(numbers)
            if len(numbers) > width > 0 and not _is_number(numbers[-width - 1]):  # Some words of GloVe contain spaces.
                continue
            if not numbers or len(numbers) != width:
                raise InputError(f"{path}, line {number}: {len(numbers)} numbers, but {width or 'some'} are expected")
            if word in wanted:
                try:
                    vectors[word] = torch.tensor([float(n) for n in numbers])
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: {error}") from error
    return vectors


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
