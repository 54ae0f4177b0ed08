"""Vocabularies give texts back exactly, and no text spells its way to a special entry."""

import pickle
import random
import unicodedata
from pathlib import Path

import pytest

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.text import EOS, SPECIALS, UNK, WORD_START, Level, Vocabulary

LEARNED = [
    "A little girl climbs into a wooden playhouse.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Two dogs, one ball; two dogs run!",
    "<eos> <eos> <pad><unk> <bos>",
] * 3
AWKWARD = [
    "",
    " ",
    "   leading and  double   spaces ",
    "tab\tand\nline\r\nbreaks\x0b\x00",
    "<eos>",
    "a<eos>b <pad> <unk><bos> <s> [CLS]",
    "<0x41><0xFF> is not a byte",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    unicodedata.normalize("NFD", "é å ñ ệ") + unicodedata.normalize("NFC", "é å ñ ệ"),
    "ﬁ ½ Å Å — “quotes” …",
    "العربية עברית हिन्दी 日本語 한국어 ไทย",
    "\u200b\ufeff\u2028\u00a0\ufffd\U0010ffff",
    "Ġ ▁ Ċ ##ing @@ </w>",
    "x" * 300,
]
EXACT: list[Level] = ["bpe", "byte", "character"]
LEVELS: list[Level] = [*EXACT, "word"]
SPELLINGS = [*SPECIALS, " ".join(SPECIALS), "".join(SPECIALS), "a<eos>", "(<eos>)"]


def fit(level: Level, size: int = 320) -> Vocabulary:
    return Vocabulary.fit(LEARNED, size=size, level=level)


def scribbles() -> list[str]:
    """Texts of any characters at all but halves of surrogate pairs."""
    draw = random.Random(0)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)]
    return ["".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(draw.randrange(40))) for _ in range(300)]


@pytest.mark.parametrize("level", EXACT)
def test_every_text_comes_back_exactly(level: Level) -> None:
    vocabulary = fit(level)
    for text in [*LEARNED, *AWKWARD, *scribbles()]:
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert all(EOS < i < len(vocabulary) for i in ids)


def test_words_come_back_and_unknown_ones_are_left_out() -> None:
    vocabulary = fit("word")
    assert vocabulary.decode(vocabulary.encode("two  dogs run")) == "two dogs run"
    ids = vocabulary.encode("two zebras run")
    assert ids.count(UNK) == 1
    assert vocabulary.decode(ids) == "two run"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("text", SPELLINGS)
def test_no_text_reaches_a_special_by_its_spelling(level: Level, text: str) -> None:
    vocabulary = Vocabulary.fit([*LEARNED, *SPELLINGS * 20], size=400, level=level)
    assert min(vocabulary.encode(text)) > EOS


@pytest.mark.parametrize("level", LEVELS)
def test_ids_are_dense_and_specials_come_first_and_are_never_written(level: Level) -> None:
    vocabulary = fit(level)
    assert vocabulary.tokens(range(4)) == list(SPECIALS)
    assert sorted(vocabulary.codec.get_vocab().values()) == list(range(len(vocabulary)))
    assert vocabulary.decode(range(4)) == ""
    ids = vocabulary.encode("two dogs")
    assert vocabulary.decode([EOS, *ids, EOS, 0, 0]) == "two dogs"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [261, 290, 5000])
def test_a_vocabulary_has_at_most_its_size_and_fits_the_same_twice(level: Level, size: int) -> None:
    vocabulary = fit(level, size)
    assert len(vocabulary) <= size
    assert vocabulary.codec.get_vocab() == fit(level, size).codec.get_vocab()


def test_subwords_are_shorter_than_bytes_and_a_word_is_spelled_alike_wherever_it_stands() -> None:
    subwords, single = fit("bpe"), fit("byte")
    assert all(len(subwords.encode(text)) < len(single.encode(text)) for text in LEARNED)
    dogs = subwords.encode("dogs")
    assert subwords.encode("Two dogs")[-len(dogs) :] == dogs


@pytest.mark.parametrize("level", LEVELS)
def test_saved_or_pickled_it_is_the_same(level: Level, tmp_path: Path) -> None:
    vocabulary = fit(level)
    vocabulary.save(tmp_path / "vocabulary.json")
    for copy in (Vocabulary.load(tmp_path / "vocabulary.json"), pickle.loads(pickle.dumps(vocabulary))):
        assert len(copy) == len(vocabulary)
        for text in [*LEARNED, *AWKWARD]:
            ids = vocabulary.encode(text)
            assert copy.encode(text) == ids
            assert copy.decode(ids) == vocabulary.decode(ids)


@pytest.mark.parametrize(("level", "least"), [("bpe", 260), ("byte", 260), ("character", 261), ("word", 5)])
def test_too_small_a_vocabulary_names_the_least(level: Level, least: int) -> None:
    with pytest.raises(InputError, match=f'{least - 1} entries at level "{level}" is too small: at least {least}'):
        fit(level, least - 1)
    assert len(fit(level, least)) == least


def test_what_no_vocabulary_can_be_learned_from() -> None:
    for texts in ([], ["", ""]):
        with pytest.raises(InputError, match="learned from no text"):
            Vocabulary.fit(texts)
    with pytest.raises(InputError, match="no level 'words': choose one of bpe, byte, character, word"):
        Vocabulary.fit(["a"], level="words")  # pyright: ignore[reportArgumentType]


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InputError, match="is no Unicode text"):
        fit("bpe").encode("half \ud83d")
    for level in LEVELS:
        with pytest.raises(InputError, match=r"'half \\ud83d' is no Unicode text"):
            Vocabulary.fit(["whole", "half \ud83d"], size=300, level=level)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": {"type": "BPE"}}', b"\xff\xfe\x00"], ids=repr)
def test_a_file_that_is_no_vocabulary(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=r"some\.json: not a saved vocabulary") as error:
        Vocabulary.load(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_other_first_entries(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: not a saved vocabulary"):
        Vocabulary.load(tmp_path / "none.json")
    vocabulary = fit("byte")
    vocabulary.save(tmp_path / "other.json")
    other = (tmp_path / "other.json").read_text().replace("<eos>", "</s>")
    (tmp_path / "other.json").write_text(other)
    with pytest.raises(InputError, match=r"other\.json: its first entries are not <pad> <unk> <bos> <eos>"):
        Vocabulary.load(tmp_path / "other.json")


@pytest.mark.parametrize("level", LEVELS)
def test_the_subwords_of_a_word_spell_it(level: Level) -> None:
    texts = [*LEARNED[:3], "Je n' aime pas l' été, où j' entre déjà.", "  two   spaces"] * 2
    vocabulary = Vocabulary.fit(texts, size=320, level=level)
    for text in texts if level == "word" else [*texts, "unheard çedilla, 日本語 n'était l'un!"]:
        ids = vocabulary.encode(text)
        *places, end = vocabulary.word_ids([*ids, EOS])
        words = WORD_START.findall(vocabulary.decode(ids))  # level "word" puts spaces between all it knows
        assert end == len(words)
        for n, word in enumerate(words):
            mine = [i for i, place in zip(ids, places, strict=True) if place == n]
            assert vocabulary.decode(mine).strip().replace(" ", "") == word
        assert sorted(places) == places


def test_an_unknown_word_keeps_its_place() -> None:
    vocabulary = Vocabulary.fit(["one dog runs ."], level="word")
    assert vocabulary.word_ids([*vocabulary.encode("one cat runs"), EOS]) == [0, 1, 2, 3]
