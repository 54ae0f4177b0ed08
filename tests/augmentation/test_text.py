"""BPE-dropout: other subwords of the same words, decided by the generator alone."""

from collections.abc import Callable

import pytest
import torch

from unifier.augmentation.mixup import Compose
from unifier.augmentation.text import BpeDropout
from unifier.data.dataloader import Augmentation, Batch, TrainDataLoader, collate
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.datasets.grammar import GrammarPairs
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.transformer_decoder import TranslationHead
from unifier_tokenizers import InputError, MarkedText, SubwordTokenizer, Vocabulary
from unifier_tokenizers.subwords import EOS

PAIRS = list(GrammarPairs(train=40, val=1, test=1).split("train"))
TEXTS = [text for pair in PAIRS for text in (pair.input, pair.target)]
VOCABULARY = Vocabulary.fit([*TEXTS, "Hello there, it's naïve: 42 ..."], size=400)

Seeded = Callable[..., torch.Generator]


@pytest.fixture(scope="module")
def split() -> EncodedSplit:
    head = TranslationHead(VOCABULARY, 8, depth=1, heads=2, ffn_dim=8)
    return encode_split(PAIRS, SubwordTokenizer(VOCABULARY, 8), head)[0]


@pytest.fixture
def batch(split: EncodedSplit) -> Batch:
    return collate(split, range(len(PAIRS)))


def test_bpe_dropout_zero_equals_hugging_face(batch: Batch, seeded: Seeded) -> None:
    assert all(map(torch.equal, batch, BpeDropout(VOCABULARY, 0.0)(batch, seeded())))
    vocabulary = Vocabulary.fit(["it's Sam's 's st ast ist", "go'st, 'sam", "asts 'st"] * 9, size=300)
    for text in ("go'st", "it'st and go'sam", "a  b\n'st"):
        ids = torch.tensor([[*vocabulary.encode(text), EOS]])
        one = Batch(ids, torch.arange(ids.shape[1])[None, None], ids > 0, ids, torch.zeros(1))
        assert torch.equal(BpeDropout(vocabulary, 0.0)(one, seeded()).values, ids)


@pytest.mark.parametrize("dropout", [0.1, 0.9])
def test_bpe_dropout_keeps_text_in_more_subwords(dropout: float, batch: Batch, seeded: Seeded) -> None:
    after = BpeDropout(VOCABULARY, dropout)(batch, seeded())
    for pair, ids, target in zip(PAIRS, after.values.tolist(), after.target.tolist(), strict=True):
        assert VOCABULARY.decode(ids) == pair.input
        assert VOCABULARY.decode([i for i in target if i != IGNORE_INDEX]) == pair.target
        assert ids.count(EOS) == target.count(EOS) == 1
    assert after.mask.sum() > batch.mask.sum()
    assert torch.equal(after.mask.sum(1), (after.values != 0).sum(1))
    positions = (after.mask.cumsum(1) - 1).masked_fill(~after.mask, -1)
    assert torch.equal(after.positions[:, 0].masked_fill(~after.mask, -1), positions)


def test_bpe_dropout_keeps_extra_entries(seeded: Seeded) -> None:
    vocabulary = Vocabulary.fit(TEXTS, size=400, extra=("<de>",))
    ids = torch.tensor([[*vocabulary.encode(MarkedText("<de> " + TEXTS[0])), EOS]])
    batch = Batch(ids, torch.arange(ids.shape[1])[None, None], ids > 0, ids)
    after = BpeDropout(vocabulary, 0.9)(batch, seeded()).values[0].tolist()
    assert after[0] == vocabulary.extra["<de>"]
    assert vocabulary.decode(after) == TEXTS[0]


@pytest.mark.slow
def test_bpe_dropout_length_rises_with_probability(batch: Batch, seeded: Seeded) -> None:
    sizes = [int(BpeDropout(VOCABULARY, dropout)(batch, seeded()).mask.sum()) for dropout in (0.0, 0.1, 0.3, 0.6)]
    assert sizes == sorted(set(sizes))


@pytest.mark.slow
def test_bpe_dropout_generator_decides(batch: Batch, seeded: Seeded) -> None:
    used = BpeDropout(VOCABULARY, 0.3)
    used(batch, seeded(5))
    first, again, other = used(batch, seeded(0)), BpeDropout(VOCABULARY, 0.3)(batch, seeded(0)), used(batch, seeded(1))
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)


def test_bpe_dropout_refuses_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"bpe_dropout=1\.0"):
        BpeDropout(VOCABULARY, 1.0)
    with pytest.raises(InputError, match=r"bpe_dropout=0\.1.*level=bpe"):
        BpeDropout(Vocabulary.fit(TEXTS, size=400, level="word"), 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("wrap", [lambda augmentation: augmentation, Compose])
def test_budget_counts_segmented_subwords(
    dropout: float, wrap: Callable[[BpeDropout], Augmentation], split: EncodedSplit
) -> None:
    augment = {"a": wrap(BpeDropout(VOCABULARY, dropout))}
    loader = TrainDataLoader({"a": split}, max_tokens=300, seed=0, budget={"tokens": 20_000}, augment=augment)
    batches = [batch for _, batch in loader]
    sizes = [max(batch.values.numel(), batch.target.numel()) for batch in batches]
    assert sum(int(batch.mask.sum()) for batch in batches) == pytest.approx(20_000, rel=0.03)
    assert sum(sizes) / len(sizes) <= 300
