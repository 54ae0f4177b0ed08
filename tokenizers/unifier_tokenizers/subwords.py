"""Subwords that are learned from texts with Hugging Face's tokenizers: BPE, WordPiece, unigram, characters, words."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

Level = Literal["bpe", "wordpiece", "unigram", "word", "character", "byte"]

MIN_VOCABULARY: dict[Level, int] = {
    "bpe": 260,
    "wordpiece": 515,
    "unigram": 260,
    "word": 5,
    "character": 261,
    "byte": 260,
}
"""The smallest vocabulary size for each level: 4 special entries, plus the 256 bytes, one learned entry, or both.

Level "wordpiece" has two entries for each byte, one at the start and one inside of a word. Only "#" has one entry.
"""

PAD, UNK, BOS, EOS = range(4)

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
"""The special entries, which come first in every vocabulary. The text "<pad>" is not encoded as a special entry."""

MAX_WORD_BYTES = 1000
"""Length of a word at the levels "bpe", "unigram" and "byte". A longer word is cut into words of this length.

Learning takes time in proportion to the square of a word's length.
"""

MAX_WORDPIECE_BYTES = 50
"""Length of a word at the level "wordpiece". Encoding takes time in proportion to the square of a word's length."""

NUM_ESTIMATES = 3
"""Number of times that the probabilities of a unigram vocabulary are estimated."""


def learn_codec(texts: Iterable[str], size: int, level: Level, *, lowercase: bool = False) -> hf.Tokenizer:
    """Learn the entries of a vocabulary from texts. The special entries have the first ids.

    Args:
        texts: The texts, which need not fit into memory.
        size: The maximum number of entries, including the special entries and any bytes.
        level: The kind of subword.
        lowercase: Convert all texts to lower case, at level "word" only.
    """
    # A trainer with special tokens would remove the names of special tokens from the texts, so each codec is trained
    # without special tokens. The trained codec is then rebuilt, and the special entries get the first ids.
    match level:
        case "word":
            return _word_codec(texts, size, lowercase=lowercase)
        case "character":
            return _character_codec(texts, size)
        case "wordpiece":
            return _wordpiece_codec(texts, size)
        case "unigram":
            return _unigram_codec(texts, size)
        case "bpe" | "byte":
            return _byte_codec(texts, size if level == "bpe" else MIN_VOCABULARY["byte"])


def _byte_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    # Every text gets one leading space, so a word has the same ids anywhere in a text. `decode` removes the leading
    # space.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = hf.Tokenizer(models.BPE())
    words, parts = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.FixedLength(length=MAX_WORD_BYTES)
    trained.pre_tokenizer = pre_tokenizers.Sequence([words, parts])
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    trained.train_from_iterator((" " + text for text in texts), trainer)
    model = json.loads(trained.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    merges = [(left, right) for left, right in model["merges"]]
    codec = hf.Tokenizer(models.BPE(_with_specials((*alphabet, *learned)), merges))
    codec.pre_tokenizer = trained.pre_tokenizer
    codec.decoder = decoders.ByteLevel()
    return codec


def _wordpiece_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    # The decoder removes "##". A word "##!" of the text would lose its signs, so each "#" is a word of its own.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inside = [f"##{letter}" for letter in alphabet if letter != "#"]
    words, signs = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Split("#", "isolated")
    parts = pre_tokenizers.FixedLength(length=MAX_WORDPIECE_BYTES)
    trained = hf.Tokenizer(models.WordPiece())
    trained.pre_tokenizer = pre_tokenizers.Sequence([words, signs, parts])
    # Special tokens of a trainer have fixed ids. Otherwise, equal texts would give different vocabularies.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - len(SPECIALS),
        initial_alphabet=alphabet,
        special_tokens=inside,
        show_progress=False,
        min_frequency=2,
    )
    trained.train_from_iterator(map(_shorten_words, texts), trainer)
    ids = trained.get_vocab()
    entries = _with_specials((*alphabet, *inside, *sorted(ids, key=lambda entry: ids[entry])))
    codec = hf.Tokenizer(
        models.WordPiece({entry: i for entry, i in entries.items() if i < size}, unk_token=SPECIALS[UNK])
    )
    codec.pre_tokenizer = trained.pre_tokenizer
    codec.decoder = decoders.Sequence([decoders.Replace(hf.Regex("^##"), ""), decoders.ByteLevel()])
    return codec


def _unigram_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words, parts = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.FixedLength(length=MAX_WORD_BYTES)
    cut = pre_tokenizers.Sequence([words, parts])
    trained = hf.Tokenizer(models.Unigram())
    trained.pre_tokenizer = cut
    counts = Counter[str]()

    def count_words() -> Iterator[str]:
        for text in map(_shorten_words, texts):
            counts.update(word for word, _ in cut.pre_tokenize_str(text))
            yield text

    trainer = trainers.UnigramTrainer(vocab_size=size - len(SPECIALS), initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(count_words(), trainer)
    # The library's probabilities differ a little in each call, and equal texts must give equal vocabularies. With equal
    # probabilities, a word first has as few subwords as possible.
    learned = sorted({*trained.get_vocab()} - {*alphabet}, key=lambda entry: (-len(entry), entry))
    entries = dict.fromkeys((*alphabet, *learned[: size - MIN_VOCABULARY["unigram"]]), -1.0)
    for _ in range(NUM_ESTIMATES):
        model, used = _unigram_model(entries), Counter[str]()
        for word, count in counts.items():
            for token in model.tokenize(word):
                used[token.value] += count
        entries = {entry: math.log((used[entry] + 0.5) / (used.total() + 1)) for entry in entries}
    codec = hf.Tokenizer(_unigram_model(entries))
    codec.pre_tokenizer = cut
    codec.decoder = decoders.ByteLevel()
    return codec


def _character_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    byte_names = [f"<0x{byte:02X}>" for byte in range(256)]
    counts: dict[str, int] = {" ": 0}
    for text in texts:
        for character in text:
            counts[character] = counts.get(character, 0) + 1
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    characters = by_frequency[: size - 260]
    codec = hf.Tokenizer(models.BPE(_with_specials((*byte_names, *characters)), [], byte_fallback=True))
    codec.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return codec


def _word_codec(texts: Iterable[str], size: int, *, lowercase: bool) -> hf.Tokenizer:
    trained = hf.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    if lowercase:
        trained.normalizer = normalizers.Lowercase()
    trained.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size - len(SPECIALS), show_progress=False, special_tokens=[])
    )
    learned = trained.get_vocab()
    words = sorted(learned, key=lambda word: learned[word])
    codec = hf.Tokenizer(models.WordLevel(_with_specials(words), unk_token=SPECIALS[UNK]))
    codec.pre_tokenizer = trained.pre_tokenizer
    if lowercase:
        codec.normalizer = normalizers.Lowercase()
    return codec


def _with_specials(entries: Iterable[str]) -> dict[str, int]:
    """Map each entry to its id. The special entries get the first ids."""
    return {entry: i for i, entry in enumerate(dict.fromkeys((*SPECIALS, *entries)))}


def _unigram_model(entries: Mapping[str, float]) -> models.Unigram:
    """Create a model from the log-probability of each entry. The special entries get the first ids."""
    specials = [(name, 0.0) for name in SPECIALS]
    ranked = sorted(entries.items(), key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*specials, *ranked], unk_id=UNK)


def _shorten_words(text: str) -> str:
    """Prepend a space, and shorten words to `MAX_WORD_BYTES` characters, because longer words take minutes to learn."""
    return " " + re.sub(rf"(\S{{{MAX_WORD_BYTES}}})\S+", r"\1", text)
