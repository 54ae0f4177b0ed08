"""The tokenizer of labeled words: the contract, the words of a text, and the parts of a word."""

import pytest
import torch

from unifier_tokenizers import InputError, MarkedText, Vocabulary, WordTokenizer, check_tokenizer
from unifier_tokenizers.words import MAX_PIECES, WordSplit

TEXTS = ["Deficiency of APC2 .", "the tumour , inherited", "He saw the APC gene"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.fit([text.lower() for text in TEXTS], size=300)


@pytest.mark.parametrize("split", ["words", "characters"])
@pytest.mark.parametrize("letters", [0, 1, 6])
def test_word_tokenizer_keeps_the_contract(vocabulary: Vocabulary, split: WordSplit, letters: int) -> None:
    tokenizer = WordTokenizer(vocabulary, 12, split=split, letters=letters, word_dropout=0.5, dropout=0.1)
    check_tokenizer(tokenizer, [*TEXTS, ("one", "word", "é" * 40, "\N{DNA DOUBLE HELIX}")])


@pytest.mark.parametrize("width", [12, 5])
def test_given_vectors_replace_the_embedding(vocabulary: Vocabulary, width: int) -> None:
    vectors = torch.randn(len(vocabulary), width)
    tokenizer = WordTokenizer(vocabulary, 12, letters=0, positions="none", vectors=vectors)
    check_tokenizer(tokenizer, TEXTS)
    ids = vocabulary.encode("gene")
    expected = tokenizer.project(vectors[ids].sum(0)) * (12 / len(ids)) ** 0.5
    torch.testing.assert_close(tokenizer(["gene"])[:, 0], expected)
    assert not tokenizer.embedding.weight.requires_grad
    assert WordTokenizer(vocabulary, 12, vectors=vectors, freeze_vectors=False).embedding.weight.requires_grad
    with pytest.raises(InputError, match="3 word vectors"):
        WordTokenizer(vocabulary, 12, vectors=vectors[:3])


def test_words_of_a_text_become_tokens(vocabulary: Vocabulary) -> None:
    tokenizer = WordTokenizer(vocabulary, 8)
    assert tokenizer.words("APC2, of 'em") == ["APC2", ",", "of", "'", "em"]
    assert tokenizer.words(("New York", "x")) == ["New York", "x"]
    assert WordTokenizer(vocabulary, 8, split="characters").words("MK V\n") == ["M", "K", "V"]
    torch.testing.assert_close(tokenizer("the tumour"), tokenizer(["the", "tumour"]))
    for raw in ("", " \n", [], ["a", " "], 3, ["a", 3]):
        with pytest.raises(InputError, match="words"):
            tokenizer.encode(raw)  # pyright: ignore[reportArgumentType]


def test_encoded_words_have_names(vocabulary: Vocabulary) -> None:
    tokenizer = WordTokenizer(vocabulary, 8)
    words = tokenizer.words("The tumour of APC2 naïve")
    assert tokenizer.unit_names(tokenizer.encode(words)) == [word.lower() for word in words]


def test_token_is_the_sum_of_subwords_and_letters(vocabulary: Vocabulary) -> None:
    tokenizer = WordTokenizer(vocabulary, 8, letters=4, positions="none").eval()
    word = "DeficOf"
    ids = vocabulary.encode(word.lower())
    assert 1 < len(ids) <= MAX_PIECES
    expected = tokenizer.embedding.weight[ids].sum(0) * (8 / len(ids)) ** 0.5
    assert tokenizer.letter_embedding is not None
    assert tokenizer.letter_features is not None
    letters = tokenizer.letter_embedding(torch.tensor([0, *(byte + 1 for byte in b"DeOf"), 0]))
    windows = [letters[k : k + 3].T.flatten() for k in range(4)]
    expected = expected + tokenizer.letter_features(torch.stack(windows)).amax(0)
    torch.testing.assert_close(tokenizer([word])[:, 0], expected)
    # Subwords have no case, and letters have.
    upper, lower = (tokenizer.encode([text]).values for text in (word, word.lower()))
    assert torch.equal(upper[:MAX_PIECES], lower[:MAX_PIECES])
    assert not torch.equal(upper, lower)


@pytest.mark.parametrize("split", ["words", "characters"])
def test_named_entry_of_a_marked_text_is_one_word(split: WordSplit) -> None:
    level = "character" if split == "characters" else "bpe"
    vocabulary = Vocabulary.fit(["AB a film"], size=300, level=level, extra=("<mask>",))
    tokenizer = WordTokenizer(vocabulary, 8, split=split, letters=0)
    marked, plain = (tokenizer.encode(kind("A <mask>,B")).values for kind in (MarkedText, str))
    assert (marked[:MAX_PIECES] == vocabulary.extra["<mask>"]).any(0).tolist() == [False, True, False, False]
    assert not (plain == vocabulary.extra["<mask>"]).any()
    assert marked[:, 0].tolist() == tokenizer.encode("A").values[:, 0].tolist()


def test_word_dropout_leaves_out_whole_words(vocabulary: Vocabulary) -> None:
    tokenizer = WordTokenizer(vocabulary, 8, letters=0, word_dropout=0.5, positions="none")
    tokens, full = tokenizer(["gene"] * 400), tokenizer.eval()(["gene"])
    dropped = (tokens == 0).all(0)
    assert 130 < dropped.sum() < 270
    assert (tokens[:, ~dropped] == full).all()
