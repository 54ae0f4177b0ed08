"""Masked tokens: exact shares, the three kinds of hidden tokens, and texts that cannot be used."""

import pytest
import torch

from unifier.data.dataloader import Batch, apply_objective, collate
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import Example
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.masked_language_modeling import MASK, MaskedLanguageModelingHead
from unifier.objectives.masked_tokens import MaskedTokens
from unifier_tokenizers import InputError, SubwordTokenizer, Units, Vocabulary, WordTokenizer
from unifier_tokenizers.subwords import EOS

WORDS = [f"w{k}" for k in range(50)]
VOCABULARY = Vocabulary.fit([" ".join(WORDS)], level="word", extra=(MASK,))
LENGTHS = (200, 47, 9, 2, 1)
"""The numbers of words, to which `encode` adds an end token."""


@pytest.fixture(scope="module")
def split() -> EncodedSplit:
    tokenizer = SubwordTokenizer(VOCABULARY, 8)
    units = [tokenizer.encode(" ".join((WORDS * 4)[:length])) for length in LENGTHS]
    return EncodedSplit(units, [torch.tensor(0)] * len(units), range(len(units)))


def hide(split: EncodedSplit, objective: MaskedTokens, rows: tuple[int, ...] = (0, 1, 2, 3, 4), seed: int = 0) -> Batch:
    return apply_objective(objective, collate(split, list(rows)), seed)


@pytest.mark.parametrize(("share", "counts"), [(0.15, [30, 7, 1, 1, 1]), (0.99, [198, 46, 8, 1, 1])])
def test_share_of_hidden_tokens_is_exact(share: float, counts: list[int], split: EncodedSplit) -> None:
    objective = MaskedTokens(VOCABULARY, share)
    before, after = collate(split, range(5)), hide(split, objective)
    is_hidden = after.target != IGNORE_INDEX
    assert is_hidden.sum(1).tolist() == objective.planned_lengths(split.lengths())[:, 1].tolist() == counts
    assert torch.equal(after.target[is_hidden], before.values[is_hidden])
    assert torch.equal(after.values[~is_hidden], before.values[~is_hidden])
    assert (before.values[is_hidden] > EOS).all(), "end tokens and padding are never hidden"
    assert (torch.equal(after.mask, before.mask), torch.equal(after.positions, before.positions)) == (True, True)


@pytest.mark.slow
def test_eight_in_ten_are_masks_and_one_is_random(split: EncodedSplit) -> None:
    kinds = torch.zeros(3)
    for seed in range(200):
        before, after = collate(split, [0]).values, hide(split, MaskedTokens(VOCABULARY, 0.5), (0,), seed)
        hidden = after.target != IGNORE_INDEX
        new, old = after.values[hidden], before[hidden]
        is_mask = new == VOCABULARY.extra[MASK]
        kinds += torch.tensor([is_mask.sum(), (~is_mask & (new != old)).sum(), (new == old).sum()])
        assert (new[~is_mask] > EOS).all()
    # One in fifty random words is the original word. The standard deviation of each share is below 0.003.
    torch.testing.assert_close(kinds / kinds.sum(), torch.tensor([0.8, 0.098, 0.102]), atol=0.012, rtol=0)


def test_example_alone_equals_example_in_a_batch(split: EncodedSplit) -> None:
    objective = MaskedTokens(VOCABULARY, 0.3)
    together = hide(split, objective)
    for row, length in enumerate(LENGTHS):
        alone = hide(split, objective, (row,))
        for part in ("values", "target"):
            assert torch.equal(getattr(alone, part)[0], getattr(together, part)[row, : length + 1])
    assert not torch.equal(hide(split, objective, seed=1).target, together.target)


def test_word_with_one_subword_is_hidden_with_its_letters() -> None:
    vocabulary = Vocabulary.fit(["a b c d e f g h"] * 3, size=290, extra=(MASK,))
    tokenizer, objective = WordTokenizer(vocabulary, 8, letters=4), MaskedTokens(vocabulary, 0.5)
    units = tokenizer.encode("a unknownword b c d e f g h")
    objective.check(units)
    before = collate(EncodedSplit([units], [torch.tensor(0)], [0]), [0])
    for seed in range(20):
        after = apply_objective(objective, before, seed)
        hidden = after.target[0] != IGNORE_INDEX
        assert (int(hidden.sum()), bool(hidden[1])) == (4, False), "a word of several subwords is always shown"
        assert torch.equal(after.target[0, hidden], before.values[0, 0, hidden].long())
        assert not after.values[0, 1:, hidden].any()
        assert torch.equal(after.values[0, :, ~hidden], before.values[0, :, ~hidden])


def test_residue_is_hidden_after_its_space() -> None:
    vocabulary = Vocabulary.fit(["ACDEFGH"], level="character", extra=(MASK,))
    tokenizer = WordTokenizer(vocabulary, 8, split="characters", letters=0)
    tokenizer.lowercase = False
    units = tokenizer.encode("ACDEFGHA")
    objective = MaskedTokens(vocabulary, 0.5, mask_share=1.0, random_share=0.0)
    objective.check(units)
    after = apply_objective(objective, collate(EncodedSplit([units], [torch.tensor(0)], [0]), [0]))
    hidden = after.target[0] != IGNORE_INDEX
    assert vocabulary.decode(after.target[0, hidden].tolist()) == "".join(
        letter for letter, is_hidden in zip("ACDEFGHA", hidden.tolist(), strict=True) if is_hidden
    )
    assert after.values[0, :2, hidden].T.tolist() == [[objective.space, vocabulary.extra[MASK]]] * 4
    assert torch.equal(after.values[0, :, ~hidden], units.values[:, ~hidden])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"share": 0.0}, "share=0"), ({"share": 1.0}, "share=1"), ({"share": float("nan")}, "nan"),
        ({"mask_share": 0.0, "random_share": 0.0}, "mask_share=0"), ({"mask_share": 0.95}, "random_share=0.1"),
        ({"vocabulary": Vocabulary.fit(["a"], level="word")}, "<mask>"),
    ],
)  # fmt: skip
def test_objective_that_hides_nothing_or_everything_is_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(InputError, match=named):
        MaskedTokens(**{"vocabulary": VOCABULARY, **settings})  # pyright: ignore[reportArgumentType]


def test_text_of_unknown_words_is_refused_or_skipped() -> None:
    tokenizer, objective = SubwordTokenizer(VOCABULARY, 8), MaskedTokens(VOCABULARY)
    head = MaskedLanguageModelingHead(VOCABULARY, 8, embedding=tokenizer.embedding)
    examples = [Example("w1 unheard w2", None), Example("unheard words", None)]
    with pytest.raises(InputError, match="no token that can be hidden"):
        encode_split(examples, tokenizer, head, check=objective.check)
    encoded, reasons = encode_split(examples, tokenizer, head, check=objective.check, bad_examples="skip")
    assert (len(encoded), len(reasons)) == (1, 1)
    with pytest.raises(InputError, match="SubwordTokenizer"):
        objective.check(Units(torch.randn(4, 3), torch.arange(3)[None]))
