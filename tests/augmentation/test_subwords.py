"""BPE dropout: other subwords of the same words, by the seed alone, and none at a probability of 0."""

from collections.abc import Callable

import pytest
import torch

from unifier.augmentation.mixup import Compose
from unifier.augmentation.text import BpeDropout
from unifier.data.dataloader import Augmentation, Batch, TrainDataLoader, collate
from unifier.data.encoding import encode_split
from unifier.datasets.grammar import GrammarPairs
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.transformer_decoder import TranslationHead
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary
from unifier_tokenizers.text import EOS

PAIRS = list(GrammarPairs(train=40, val=1, test=1).split("train"))
TEXTS = [text for pair in PAIRS for text in (pair.input, pair.target)]
VOCABULARY = Vocabulary.fit([*TEXTS, "Hello there, it's naïve: 42 ..."], size=400)


def batch() -> Batch:
    head = TranslationHead(VOCABULARY, 8, depth=1, heads=2, ffn_dim=8)
    split, _ = encode_split(PAIRS, SubwordTokenizer(VOCABULARY, 8), head)
    return collate(split, range(len(PAIRS)))


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_without_dropout_a_batch_stays_as_hugging_face_cut_it() -> None:
    before, after = batch(), BpeDropout(VOCABULARY, 0.0)(batch(), drawn())
    for part, other in zip(before, after, strict=True):
        assert torch.equal(part, other)


def test_nothing_is_merged_where_hugging_face_would_not() -> None:
    vocabulary = Vocabulary.fit(["it's Sam's 's st ast ist", "go'st, 'sam", "asts 'st"] * 9, size=300)
    for text in ("go'st", "it'st and go'sam", "a  b\n'st"):
        ids = torch.tensor([[*vocabulary.encode(text), EOS]])
        one = Batch(ids, torch.arange(ids.shape[1])[None, None], ids > 0, ids, torch.zeros(1))
        assert torch.equal(BpeDropout(vocabulary, 0.0)(one, drawn()).values, ids)


@pytest.mark.parametrize("dropout", [0.1, 0.9])
def test_every_text_stays_the_same_text_in_more_subwords(dropout: float) -> None:
    before, after = batch(), BpeDropout(VOCABULARY, dropout)(batch(), drawn())
    for pair, ids, target in zip(PAIRS, after.values.tolist(), after.target.tolist(), strict=True):
        assert VOCABULARY.decode(ids) == pair.input
        assert VOCABULARY.decode([i for i in target if i != IGNORE_INDEX]) == pair.target
        assert ids.count(EOS) == target.count(EOS) == 1
    assert after.mask.sum() > before.mask.sum()
    assert torch.equal(after.mask.sum(1), (after.values != 0).sum(1))
    assert torch.equal(after.positions[:, 0].masked_fill(~after.mask, -1), positions_of(after))


def positions_of(after: Batch) -> torch.Tensor:
    return (after.mask.cumsum(1) - 1).masked_fill(~after.mask, -1)


def test_the_share_of_merges_left_out_grows_with_the_probability() -> None:
    sizes = [int(BpeDropout(VOCABULARY, dropout)(batch(), drawn()).mask.sum()) for dropout in (0.0, 0.1, 0.3, 0.6)]
    assert sizes == sorted(set(sizes))


def test_the_generator_alone_decides() -> None:
    warm = BpeDropout(VOCABULARY, 0.3)
    warm(batch(), drawn(5))
    first, again, other = (
        one(batch(), drawn(seed)) for one, seed in ((warm, 0), (BpeDropout(VOCABULARY, 0.3), 0), (warm, 1))
    )
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)


def test_what_it_cannot_cut() -> None:
    with pytest.raises(InputError, match=r"bpe_dropout=1\.0: a number from 0"):
        BpeDropout(VOCABULARY, 1.0)
    with pytest.raises(InputError, match="level=bpe"):
        BpeDropout(Vocabulary.fit(TEXTS, size=400, level="word"), 0.1)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("within", [lambda one: one, Compose])
def test_a_budget_and_a_batch_count_the_subwords_that_are_read(
    dropout: float, within: Callable[[BpeDropout], Augmentation]
) -> None:
    head = TranslationHead(VOCABULARY, 8, depth=1, heads=2, ffn_dim=8)
    split, _ = encode_split(PAIRS, SubwordTokenizer(VOCABULARY, 8), head)
    augment = {"a": within(BpeDropout(VOCABULARY, dropout))}
    batches = list(TrainDataLoader({"a": split}, max_tokens=300, seed=0, budget={"tokens": 20_000}, augment=augment))
    sizes = [max(one.values.numel(), one.target.numel()) for _, one in batches]
    assert sum(int(one.mask.sum()) for _, one in batches) == pytest.approx(20_000, rel=0.03)
    assert sum(sizes) / len(sizes) <= 300
