"""Text becomes columns under every level and kind of positions, with learned or preset vectors."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary, check_tokenizer, load_vectors
from unifier_tokenizers.positions import PositionKind
from unifier_tokenizers.text import EOS, Level

D = 10
TEXTS = ["two dogs run", "a girl sees two dogs", "a girl", "two girls run and a dog sees two girls", "a dog run"]
LEVELS: list[Level] = ["bpe", "byte", "character", "word"]
KINDS: list[PositionKind] = ["none", "sinusoid", "learned"]


def vocabulary(level: Level = "word") -> Vocabulary:
    return Vocabulary.fit(TEXTS, size=300, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_and_kind_of_positions_keeps_the_contract(level: Level, kind: PositionKind) -> None:
    check_tokenizer(SubwordTokenizer(vocabulary(level), D, positions=kind, dropout=0.1), TEXTS)


@pytest.mark.parametrize("width", [D, D + 3, D - 4])
def test_preset_vectors_keep_the_contract_and_stay_fixed(width: int) -> None:
    words = vocabulary()
    vectors = torch.randn(len(words), width)
    tokenizer = SubwordTokenizer(words, D, positions="none", vectors=vectors)
    check_tokenizer(tokenizer, TEXTS)
    assert not tokenizer.embedding.weight.requires_grad
    assert torch.equal(tokenizer.embedding.weight, vectors)
    learned = {name for name, parameter in tokenizer.named_parameters() if parameter.requires_grad}
    assert learned == (set() if width == D else {"project.weight"})


def test_a_column_is_its_row_of_the_table_and_the_end_mark_is_last() -> None:
    words = vocabulary()
    tokenizer = SubwordTokenizer(words, D, positions="none")
    ids, positions = tokenizer.encode("two dogs")
    assert ids.tolist() == [*words.encode("two dogs"), EOS]
    assert positions.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(tokenizer("two dogs"), tokenizer.embedding.weight[ids].T * D**0.5)


def test_columns_are_as_loud_as_positions() -> None:
    """Rows of unit spread at the start, so that neither drowns the other."""
    tokenizer = SubwordTokenizer(Vocabulary.fit(["".join(map(chr, range(32, 127)))], level="byte"), 64)
    columns = tokenizer.embedding.weight * 64**0.5
    assert 0.9 < columns.square().mean().sqrt() < 1.1


@pytest.mark.parametrize("raw", ["", "  \n\t"])
def test_an_empty_text(raw: str) -> None:
    with pytest.raises(InputError, match="an empty text has no tokens"):
        SubwordTokenizer(vocabulary(), D).encode(raw)


def test_what_is_no_text() -> None:
    with pytest.raises(InputError, match="a text is expected, not int"):
        SubwordTokenizer(vocabulary(), D).encode(3)  # pyright: ignore[reportArgumentType]


def test_a_text_longer_than_the_learned_positions_names_the_way_out() -> None:
    tokenizer = SubwordTokenizer(vocabulary(), D, positions="learned", length=4)
    assert tokenizer("a girl run").shape == (D, 4)
    with pytest.raises(InputError, match=r"5 places on axis 0 and only 4 learned positions: .*larger length"):
        tokenizer.encode("a girl run run")


def test_vectors_of_another_vocabulary() -> None:
    words = vocabulary()
    with pytest.raises(InputError, match=f"{len(words) + 1} word vectors for a vocabulary of {len(words)} entries"):
        SubwordTokenizer(words, D, vectors=torch.randn(len(words) + 1, D))


def written(path: Path, vectors: dict[str, list[float]], header: bool) -> Path:
    lines = [" ".join([word, *map(str, numbers)]) for word, numbers in vectors.items()]
    first = [f"{len(vectors)} {len(next(iter(vectors.values())))}"] if header else []
    path.write_text("\n".join([*first, *lines]) + "\n", encoding="utf-8")
    return path


def cosine(left: Tensor, right: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(left, right, dim=0).item()


@pytest.mark.parametrize("header", [True, False], ids=["word2vec", "glove"])
@pytest.mark.parametrize("level", ["bpe", "word"])
def test_vectors_are_read_with_and_without_a_header(header: bool, level: Level, tmp_path: Path) -> None:
    words = vocabulary(level)
    given = {"two": [3.0, -4.0, 0.5], "girl": [1.0, 2.5, -2.0], "zebra": [9.0, 9.0, 9.0], "größe": [1.0, 1.0, 1.0]}
    table = load_vectors(written(tmp_path / "vectors.txt", given, header), words)
    assert table.shape == (len(words), 3)
    assert table.isfinite().all()
    readable = words.tokens(range(len(words)))
    rows = [readable.index("two"), readable.index("girl")]
    for row, word in zip(rows, ("two", "girl"), strict=True):
        assert cosine(table[row], torch.tensor(given[word])) == pytest.approx(1)
    assert table[rows].square().mean().sqrt().item() == pytest.approx(3**-0.5)
    lengths = table[rows].norm(dim=1)
    ratio = torch.tensor(given["two"]).norm() / torch.tensor(given["girl"]).norm()
    torch.testing.assert_close(lengths[0] / lengths[1], ratio)
    others = table[[i for i in range(len(words)) if i not in rows]]
    assert len(others.unique(dim=0)) == len(others), "words that the file lacks are told apart"
    assert torch.equal(table, load_vectors(tmp_path / "vectors.txt", words))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("two 1 2 3\ngirl 1 2\n", "line 2: 2 numbers where 3 are expected"),
        ("2 3\ntwo 1 2 3\nzebra 1 2 3 4\n", "line 3: 4 numbers where 3 are expected"),
        ("two\ngirl 1 2\n", "line 1: 0 numbers where some are expected"),
        ("\ntwo 1 2\n", "line 1: 0 numbers"),
        ("two 1 2\ngirl 1 b\n", "line 2: could not convert string to float: 'b'"),
        ("zebra 1 2\nlion 1 2\n", "none of its words is in the vocabulary"),
        ("", "none of its words is in the vocabulary"),
        (b"2 3\ntwo \xff\xfe\x00\x01", r"line 2: not UTF-8; is it word2vec's binary format\?"),
    ],
)
def test_a_file_of_vectors_that_breaks_names_the_line(content: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=f"vectors.txt.*{said}") as error:
        load_vectors(path, vocabulary())
    assert "\n" not in str(error.value)


def test_words_with_spaces_and_numbers_of_any_type_are_taken(tmp_path: Path) -> None:
    words, path = vocabulary(), tmp_path / "vectors.txt"
    path.write_text("two 1 2 3\n. . . 4 5 6\nat name@domain 7 8 9\n")
    vectors = load_vectors(path, words)
    assert cosine(vectors[words.tokens(range(len(words))).index("two")], torch.tensor([1.0, 2, 3])) == pytest.approx(1)
    assert SubwordTokenizer(words, D, vectors=vectors.double())(TEXTS[0]).dtype == torch.float32


def test_vectors_reach_the_subwords_that_texts_are_made_of(tmp_path: Path) -> None:
    """Byte pairs know a word twice, as it begins one after a space and as it stands within another."""
    words = Vocabulary.fit(["low lower slow slower"] * 3, size=300)
    table = load_vectors(written(tmp_path / "vectors.txt", {"low": [3.0, -4.0, 0.5]}, header=False), words)
    entries = [entry for entry, read in enumerate(words.tokens(range(len(words)))) if read == "low"]
    assert len(entries) == 2
    assert set(words.encode("low")) < set(entries)
    assert [cosine(table[entry], torch.tensor([3.0, -4.0, 0.5])) for entry in entries] == pytest.approx([1, 1])


def test_loaded_vectors_preset_a_tokenizer(tmp_path: Path) -> None:
    words = vocabulary()
    path = written(tmp_path / "vectors.txt", {"two": [1.0, 2.0, 3.0], "run": [0.0, 1.0, 0.0]}, header=False)
    check_tokenizer(SubwordTokenizer(words, D, vectors=load_vectors(path, words)), TEXTS)


def test_coordinates_count_words() -> None:
    tokenizer = SubwordTokenizer(Vocabulary.fit(["no merges at all"], level="byte"), D)
    coordinates = tokenizer.position_values(tokenizer.encode("ab c."))
    assert coordinates.tolist() == [[0, 0, 0, 1, 1, 2, 3]]  # each with the space before it, and the end mark
