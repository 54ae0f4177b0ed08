"""Vocabularies restore texts and keep their special entries; subwords and word vectors keep the contract."""

import pickle
import random
import time
import unicodedata
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unifier.datasets import GrammarPairs
from unifier_tokenizers import (
    InputError,
    MarkedText,
    SubwordTokenizer,
    Vocabulary,
    check_tokenizer,
    load_vectors,
    vector_words,
)
from unifier_tokenizers.positions import PositionKind
from unifier_tokenizers.subwords import EOS, MIN_VOCABULARY, SPECIALS, UNK, Level
from unifier_tokenizers.text import WORD_START

D = 10
TEXTS = ["two dogs run", "a girl sees two dogs", "a girl", "two girls run and a dog sees two girls", "a dog run"]
LEARNED = [
    "A little girl climbs into a wooden playhouse.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Two dogs, one ball; two dogs run!",
    "<eos> <eos> <pad><unk> <bos>",
] * 3
AWKWARD = [
    *["", " ", "   leading and  double   spaces ", "tab\tand\nline\r\nbreaks\x0b\x00", "<eos>"],
    *["a<eos>b <pad> <unk><bos> <s> [CLS]", "<0x41><0xFF> is not a byte", "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽"],
    unicodedata.normalize("NFD", "é å ñ ệ") + unicodedata.normalize("NFC", "é å ñ ệ"),
    *["ﬁ ½ Å Å — “quotes” …", "العربية עברית हिन्दी 日本語 한국어 ไทย", "\u200b\ufeff\u2028\u00a0\ufffd\U0010ffff"],
    *["Ġ ▁ Ċ ##ing @@ </w>", "x" * 300],
]
EXACT: list[Level] = ["bpe", "wordpiece", "unigram", "byte", "character"]
LEVELS: list[Level] = [*EXACT, "word"]
SPELLINGS = [*SPECIALS, " ".join(SPECIALS), "".join(SPECIALS), "a<eos>", "(<eos>)"]


def fit(level: Level, size: int = 600) -> Vocabulary:
    return Vocabulary.fit(LEARNED, size=size, level=level)


@pytest.fixture
def words() -> Vocabulary:
    return Vocabulary.fit(TEXTS, size=300, level="word")


def random_texts() -> list[str]:
    """Return texts of any characters except surrogates."""
    draw = random.Random(0)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)]
    return ["".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(draw.randrange(40))) for _ in range(300)]


@pytest.mark.parametrize("level", EXACT)
def test_vocabulary_restores_every_text(level: Level) -> None:
    vocabulary = fit(level)
    for text in [*LEARNED, *AWKWARD, *random_texts()]:
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert all(EOS < i < len(vocabulary) for i in ids)


def test_word_level_restores_known_words() -> None:
    vocabulary = fit("word")
    assert vocabulary.decode(vocabulary.encode("two  dogs run")) == "two dogs run"
    ids = vocabulary.encode("two zebras run")
    assert (ids.count(UNK), vocabulary.decode(ids)) == (1, "two run")
    vocabulary = Vocabulary.fit(["one dog runs ."], level="word")
    assert vocabulary.word_ids([*vocabulary.encode("one cat runs"), EOS]) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_word_of_a_megabyte_takes_linear_time(level: Level) -> None:
    word = "".join(random.Random(0).choices("abcdé", k=200_000 if level == "wordpiece" else 1_000_000))
    start = time.monotonic()
    vocabulary = Vocabulary.fit([word, "hello world"], size=600, level=level)
    assert vocabulary.decode(vocabulary.encode(word)) == word
    assert vocabulary.word_ids(vocabulary.encode(word[:20_000])).count(1) == 0
    assert time.monotonic() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_long_text_has_the_ids_of_its_words(level: Level) -> None:
    text = "".join(random.Random(0).choices("ab's  \n\té!", k=300_000))
    vocabulary = Vocabulary.fit([text], size=600, level=level)
    assert vocabulary.encode(text) == vocabulary.codec.encode(" " + text).ids


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("gone"), Path("a\0b"), Path("x" * 300)])
def test_files_must_be_regular(path: Path) -> None:
    with pytest.raises(InputError):
        Vocabulary.load(path)
    with pytest.raises(InputError):
        load_vectors(path, Vocabulary.fit(["a b"], size=300))


@pytest.mark.extras
@pytest.mark.parametrize("level", LEVELS)
def test_transformers_reads_the_same_ids(level: Level, tmp_path: Path) -> None:
    transformers: Any = import_module("transformers")
    vocabulary = Vocabulary.fit([*LEARNED, *SPELLINGS * 9], size=700, level=level, extra=("<mask>",))
    vocabulary.save_pretrained(tmp_path)
    texts = [f"{pair.input} {pair.target}" for pair in GrammarPairs().split("train")][:700]
    for tokenizer in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
        codec = tokenizer.from_pretrained(tmp_path)
        assert (codec.pad_token_id, codec.eos_token_id, codec.mask_token or codec.convert_tokens_to_ids("<mask>")) == (
            *(0, EOS),
            vocabulary.extra["<mask>"],
        )
        for text in filter(None, [*texts, *random_texts(), *AWKWARD, *SPELLINGS, "a <mask> b"]):
            ids = vocabulary.encode(text)
            assert codec(text)["input_ids"] == [*ids, EOS]
            assert codec.decode([*ids, EOS], skip_special_tokens=True) == vocabulary.decode(ids)


@pytest.mark.parametrize("level", LEVELS)
def test_no_text_spells_a_special_entry(level: Level) -> None:
    vocabulary = Vocabulary.fit([*LEARNED, *SPELLINGS * 20], size=600, level=level)
    assert all(min(vocabulary.encode(text)) > EOS for text in SPELLINGS)


@pytest.mark.parametrize("level", LEVELS)
def test_ids_dense_with_specials_first(level: Level) -> None:
    vocabulary = fit(level)
    assert vocabulary.tokens(range(4)) == list(SPECIALS)
    assert sorted(vocabulary.codec.get_vocab().values()) == list(range(len(vocabulary)))
    assert vocabulary.decode(range(4)) == ""
    assert vocabulary.decode([EOS, *vocabulary.encode("two dogs"), EOS, 0, 0]) == "two dogs"


@pytest.mark.parametrize("level", LEVELS)
def test_extra_entries_have_ids_that_no_ordinary_text_gets(level: Level, tmp_path: Path) -> None:
    names = ("<mask>", ">>de<<")
    vocabulary = Vocabulary.fit([*LEARNED, "a <mask> >>de<<"] * 9, size=600, level=level, extra=names)
    vocabulary.save(tmp_path / "vocabulary.json")
    for copy in (vocabulary, Vocabulary.load(tmp_path / "vocabulary.json"), pickle.loads(pickle.dumps(vocabulary))):
        size = len(copy)
        assert size <= 600
        assert copy.extra == {"<mask>": size - 2, ">>de<<": size - 1}
        assert copy.tokens([size - 2, EOS, size - 1]) == ["<mask>", "<eos>", ">>de<<"]
        for text in ("a <mask> dog", *names, "<mask>" * 3):
            assert max(copy.encode(text)) < size - 2
        marked = copy.encode(MarkedText(">>de<< Two<mask>  <mask> dogs"))
        expected = [size - 1, *copy.encode("Two"), size - 2, size - 2, *copy.encode("dogs")]
        assert marked == expected
        assert copy.decode([*marked, EOS]) == "Two dogs"
        assert copy.decode([*marked, EOS], extra=True) == ">>de<< Two <mask> <mask> dogs"
        assert copy.word_ids(marked) == sorted(copy.word_ids(marked))


def test_extra_entries_need_names_of_their_own() -> None:
    for extra in (("two",), ("<mask>", "<mask>"), ("<eos>",), ("",)):
        with pytest.raises(InputError, match=f"extra={extra[-1]!r}"):
            Vocabulary.fit(TEXTS, size=300, level="word", extra=extra)
    with pytest.raises(InputError, match=r"size=260 .* 261"):
        Vocabulary.fit(TEXTS, size=260, extra=("<mask>",))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [515, 590, 5000])
def test_fit_deterministic_and_at_most_size(level: Level, size: int) -> None:
    vocabulary = fit(level, size)
    assert len(vocabulary) <= size
    assert vocabulary.codec.to_str() == fit(level, size).codec.to_str()


def test_bpe_shorter_than_bytes_with_one_spelling() -> None:
    subwords, single = fit("bpe"), fit("byte")
    assert all(len(subwords.encode(text)) < len(single.encode(text)) for text in LEARNED)
    dogs = subwords.encode("dogs")
    assert subwords.encode("Two dogs")[-len(dogs) :] == dogs


@pytest.mark.parametrize("level", LEVELS)
def test_vocabulary_saved_or_pickled_is_equal(level: Level, tmp_path: Path) -> None:
    vocabulary = fit(level)
    vocabulary.save(tmp_path / "vocabulary.json")
    for copy in (Vocabulary.load(tmp_path / "vocabulary.json"), pickle.loads(pickle.dumps(vocabulary))):
        assert len(copy) == len(vocabulary)
        for text in [*LEARNED, *AWKWARD]:
            ids = vocabulary.encode(text)
            assert (copy.encode(text), copy.decode(ids)) == (ids, vocabulary.decode(ids))


@pytest.mark.parametrize(("level", "minimum"), [*MIN_VOCABULARY.items()])
def test_fit_below_minimum_size_refused(level: Level, minimum: int) -> None:
    with pytest.raises(InputError, match=f'{minimum - 1} .*"{level}".* {minimum}'):
        fit(level, minimum - 1)
    assert len(fit(level, minimum)) == minimum


def test_fit_without_text_or_level_refused() -> None:
    for texts in ([], ["", ""]):
        with pytest.raises(InputError, match="no text"):
            Vocabulary.fit(texts)
    with pytest.raises(InputError, match="level 'words'"):
        Vocabulary.fit(["a"], level="words")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"'half \\ud83d'"):
        fit("bpe").encode("half \ud83d")
    for level in LEVELS:
        with pytest.raises(InputError, match=r"'half \\ud83d'"):
            Vocabulary.fit(["whole", "half \ud83d"], size=600, level=level)


INVALID = ["", "{}", "not json", '{"model": {"type": "BPE"}}', b"\xff\xfe\x00", None]


@pytest.mark.parametrize("content", INVALID, ids=repr)
def test_load_invalid_file_refused(content: str | bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=r"some\.json") as error:
        Vocabulary.load(path)
    assert "\n" not in str(error.value)
    fit("byte").save(path)
    path.write_text(path.read_text().replace("<eos>", "</s>"))
    with pytest.raises(InputError, match=r"some\.json.*<eos>"):
        Vocabulary.load(path)


@pytest.mark.parametrize("level", LEVELS)
def test_word_ids_group_subwords_into_words(level: Level) -> None:
    texts = [*LEARNED[:3], "Je n' aime pas l' été, où j' entre déjà.", "  two   spaces"] * 2
    vocabulary = Vocabulary.fit(texts, size=600, level=level)
    for text in texts if level == "word" else [*texts, "unheard çedilla, 日本語 n'était l'un!" * 9]:
        ids = vocabulary.encode(text)
        *indices, end = vocabulary.word_ids([*ids, EOS])
        expected = WORD_START.findall(vocabulary.decode(ids))  # Level "word" puts a space between all words.
        assert end == len(expected)
        for n, word in enumerate(expected):
            subwords = [i for i, index in zip(ids, indices, strict=True) if index == n]
            assert vocabulary.decode(subwords).strip().replace(" ", "") == word
        assert sorted(indices) == indices


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["none", "sinusoid", "learned"])
def test_subwords_keep_contract(level: Level, kind: PositionKind) -> None:
    vocabulary = Vocabulary.fit(TEXTS, size=600, level=level)
    check_tokenizer(SubwordTokenizer(vocabulary, D, positions=kind, dropout=0.1), TEXTS)


@pytest.mark.parametrize("width", [D, D + 3, D - 4])
def test_preset_vectors_keep_contract_fixed(width: int, words: Vocabulary) -> None:
    vectors = torch.randn(len(words), width)
    tokenizer = SubwordTokenizer(words, D, positions="none", vectors=vectors)
    check_tokenizer(tokenizer, TEXTS)
    assert not tokenizer.embedding.weight.requires_grad
    assert torch.equal(tokenizer.embedding.weight, vectors)
    learned = {name for name, parameter in tokenizer.named_parameters() if parameter.requires_grad}
    assert learned == (set() if width == D else {"project.weight"})


def test_token_is_scaled_embedding_with_end_mark(words: Vocabulary) -> None:
    tokenizer = SubwordTokenizer(words, D, positions="none")
    ids, positions = tokenizer.encode("two dogs")
    assert (ids.tolist(), positions.tolist()) == ([*words.encode("two dogs"), EOS], [[0, 1, 2]])
    torch.testing.assert_close(tokenizer("two dogs"), tokenizer.embedding.weight[ids].T * D**0.5)
    wide = SubwordTokenizer(Vocabulary.fit(["".join(map(chr, range(32, 127)))], level="byte"), 64)
    assert 0.9 < (wide.embedding.weight * 64**0.5).square().mean().sqrt() < 1.1


@pytest.mark.parametrize(("raw", "message"), [("", "empty"), ("  \n\t", "empty"), (3, "not int")])
def test_invalid_text_or_vectors_refused(raw: str, message: str, words: Vocabulary) -> None:
    with pytest.raises(InputError, match=message):
        SubwordTokenizer(words, D).encode(raw)
    with pytest.raises(InputError, match=f"{len(words) + 1} .* {len(words)} "):
        SubwordTokenizer(words, D, vectors=torch.randn(len(words) + 1, D))


def test_position_values_count_words() -> None:
    tokenizer = SubwordTokenizer(Vocabulary.fit(["no merges at all"], level="byte"), D)
    indices = tokenizer.position_values(tokenizer.encode("ab c."))
    assert indices.tolist() == [[0, 0, 0, 1, 1, 2, 3]]  # A space belongs to the next word; the end mark is last.


def write_vectors(path: Path, vectors: dict[str, list[float]], header: bool = False) -> Path:
    lines = [" ".join([word, *map(str, numbers)]) for word, numbers in vectors.items()]
    first = [f"{len(vectors)} {len(next(iter(vectors.values())))}"] if header else []
    path.write_text("\n".join([*first, *lines]) + "\n", encoding="utf-8")
    return path


def cosine(left: Tensor, right: list[float]) -> float:
    return functional.cosine_similarity(left, torch.tensor(right), dim=0).item()


@pytest.mark.parametrize("header", [True, False], ids=["word2vec", "glove"])
@pytest.mark.parametrize("level", ["bpe", "word"])
def test_load_vectors_reads_both_formats(header: bool, level: Level, tmp_path: Path) -> None:
    vocabulary = Vocabulary.fit(TEXTS, size=300, level=level)
    given = {"two": [3.0, -4.0, 0.5], "girl": [1.0, 2.5, -2.0], "zebra": [9.0, 9.0, 9.0], "größe": [1.0, 1.0, 1.0]}
    path = write_vectors(tmp_path / "vectors.txt", given, header)
    table = load_vectors(path, vocabulary)
    assert table.shape == (len(vocabulary), 3)
    assert table.isfinite().all()
    tokens = vocabulary.tokens(range(len(vocabulary)))
    rows = [tokens.index("two"), tokens.index("girl")]
    for row, word in zip(rows, ("two", "girl"), strict=True):
        assert cosine(table[row], given[word]) == pytest.approx(1)
    assert table[rows].square().mean().sqrt().item() == pytest.approx(3**-0.5)
    two, girl = table[rows].norm(dim=1)
    torch.testing.assert_close(two / girl, torch.tensor(given["two"]).norm() / torch.tensor(given["girl"]).norm())
    others = table[[i for i in range(len(vocabulary)) if i not in rows]]
    assert len(others.unique(dim=0)) == len(others), "missing words must get different vectors"
    assert torch.equal(table, load_vectors(path, vocabulary))
    check_tokenizer(SubwordTokenizer(vocabulary, D, vectors=table), TEXTS)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_load_vectors_reads_an_array_beside_its_words(suffix: str, tmp_path: Path) -> None:
    given = {"two": [3.0, -4.0, 0.5], "girl": [1.0, 2.5, -2.0], "größe": [1.0, 1.0, 1.0]}
    array, words, text = tmp_path / f"a.{suffix}", tmp_path / "words.txt", write_vectors(tmp_path / "a.txt", given)
    numbers = np.array([*given.values()], np.float16)
    np.savez(array, vectors=numbers) if suffix == "npz" else np.save(array, numbers)
    words.write_text("".join(f"{word}\n" for word in given), encoding="utf-8")
    assert vector_words(text) == vector_words(f"{array},{words}") == [*given]
    vocabulary = Vocabulary.fit([*TEXTS, *given], size=300, level="word", lowercase=True)
    assert vocabulary.encode("TWO Größe") == vocabulary.encode("two größe")
    table = load_vectors(f"{array},{words}", vocabulary)
    assert torch.equal(table, load_vectors(text, vocabulary))
    assert SubwordTokenizer(vocabulary, D, vectors=table, freeze_vectors=False).embedding.weight.requires_grad
    for bad, message in (
        (f"{words},{words}", "NumPy"),
        (f"{array},{text}x", "txtx"),
        (f"{array},{__file__}", "3 vectors"),
    ):
        with pytest.raises(InputError, match=message):
            load_vectors(bad, vocabulary)
    with pytest.raises(InputError, match="lowercase"):
        Vocabulary.fit(TEXTS, size=300, lowercase=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *[("two 1 2 3\ngirl 1 2\n", "line 2: 2 .*3"), ("2 3\ntwo 1 2 3\nzebra 1 2 3 4\n", "line 3: 4 .*3")],
        *[("two\ngirl 1 2\n", "line 1: 0"), ("\ntwo 1 2\n", "line 1: 0")],
        *[("two 1 2\ngirl 1 b\n", "line 2: .*'b'"), ("zebra 1 2\nlion 1 2\n", "vocabulary")],
        *[("two 0 0\ngirl 0 0\n", "of 0"), ("two 1 nan\n", "of nan"), ("two 1 1e30\n", "of inf")],
        *[("", "vocabulary"), (b"2 3\ntwo \xff\xfe\x00\x01", "line 2: .*UTF-8")],
    ],
)
def test_load_vectors_invalid_file_names_line(
    content: str | bytes, message: str, tmp_path: Path, words: Vocabulary
) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=f"vectors.txt.*{message}") as error:
        load_vectors(path, words)
    assert "\n" not in str(error.value)


def test_load_vectors_words_with_spaces(tmp_path: Path, words: Vocabulary) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("two 1 2 3\n. . . 4 5 6\nat name@domain 7 8 9\n")
    vectors = load_vectors(path, words)
    assert cosine(vectors[words.tokens(range(len(words))).index("two")], [1.0, 2, 3]) == pytest.approx(1)
    assert SubwordTokenizer(words, D, vectors=vectors.double())(TEXTS[0]).dtype == torch.float32


def test_load_vectors_fills_both_entries_of_word(tmp_path: Path) -> None:
    """Byte-level BPE has one entry for a word after a space and another for the same letters inside a word."""
    words = Vocabulary.fit(["low lower slow slower"] * 3, size=300)
    table = load_vectors(write_vectors(tmp_path / "vectors.txt", {"low": [3.0, -4.0, 0.5]}), words)
    entries = [entry for entry, token in enumerate(words.tokens(range(len(words)))) if token == "low"]
    assert len(entries) == 2
    assert set(words.encode("low")) < set(entries)
    assert [cosine(table[entry], [3.0, -4.0, 0.5]) for entry in entries] == pytest.approx([1, 1])


def test_capitals_are_read_like_the_plain_text() -> None:
    vocabulary = Vocabulary.fit(["Two men run."] * 3, size=280, extra=("<de>",))
    plain, recased = (SubwordTokenizer(vocabulary, 8, recase=recase) for recase in (False, True))
    expected = plain.encode("Two men run.").values
    assert torch.equal(recased.encode("TWO MEN RUN.").values, expected)
    assert not torch.equal(plain.encode("TWO MEN RUN.").values, expected)
    for text in ("USA", "Two MEN", "two men", "12 34", "  NASA"):  # One word, other cases, and no letters.
        assert torch.equal(recased.encode(text).values, plain.encode(text).values)
    german = ["Ein Hund sieht einen Mann.", "Der Mann sieht Rom."] * 3
    nouns = SubwordTokenizer(Vocabulary.fit(german, size=400), 8, recase=True)
    assert [nouns.recased(text.upper()) for text in german] == german
    assert nouns.recased('"EIN" (MANN') == '"Ein" (Mann'
    counted = ["Zoo Zoo Zoo Zoo Zoo Zoo zoo .", "bar bar bar bar bar bar Bar .", "Rom man ."]
    words = SubwordTokenizer(Vocabulary.fit(counted, size=60, level="word"), 8, recase=True)
    assert words.recased("BAR ZOO BAR ROM MAN .") == "Bar Zoo bar Rom man ."
    coded = SubwordTokenizer(vocabulary, 8, codes=("<de>",), recase=True)
    ids = coded.encode(MarkedText("<de> TWO MEN RUN.")).values
    assert ids.tolist() == [vocabulary.extra["<de>"], *expected.tolist()]
    for text, message in (
        ("Two men", "has no code"),
        (" <fr> Two", "unknown code <fr>: begin the text with one of <de>"),
    ):
        with pytest.raises(InputError, match=message):
            coded.encode(MarkedText(text))
