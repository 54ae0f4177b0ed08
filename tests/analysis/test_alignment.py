"""A translator's attention from subwords to words, and its error against the true alignment."""

from pathlib import Path

import pytest
import torch

from unifier.analysis.attention import AlignedSentence, alignment_error_rate, chance_error_rate, word_attention
from unifier.heads.text_generation import shift_right
from unifier.heads.transformer_decoder import TranslationHead
from unifier.inference.translate import AlignmentPage
from unifier_tokenizers import Tokens, Vocabulary
from unifier_tokenizers.text import BOS, EOS, PAD

D, N = 8, 5


def sentence(found: list[int], gold: set[tuple[int, int]], source: int = 4) -> AlignedSentence:
    """Each target word attends to one of four source words."""
    return AlignedSentence(["s"] * source, ["t"] * len(found), torch.eye(source)[found], gold)


def head() -> TranslationHead:
    vocabulary = Vocabulary.fit(["a dog sees two dogs"], size=280)
    return TranslationHead(vocabulary, D, depth=2, heads=2, ffn_dim=16).eval()


@torch.no_grad()
def test_each_row_is_attention_before_its_token_is_known() -> None:
    translator, target = head(), torch.tensor([[7, 9, 5, EOS], [8, EOS, -100, -100]])
    mask = torch.tensor([[True] * N, [True] * 3 + [False] * 2])
    tokens = Tokens(torch.randn(2, D, N), mask, torch.arange(N).expand(2, 1, N))
    found = translator.attention(tokens, shift_right(target))
    assert found.shape == (2, 4, N)
    torch.testing.assert_close(found.sum(2), torch.ones(2, 4))
    assert not found[1, :, 3:].any()
    other = target.clone()
    other[0, 2] = 6
    changed = translator.attention(tokens, shift_right(other))
    assert torch.equal(changed[0, :3], found[0, :3])
    assert not torch.equal(changed[0, 3], found[0, 3])
    alone = Tokens(tokens.matrix[1:, :, :3], mask[1:, :3], tokens.positions[1:, :, :3])
    torch.testing.assert_close(translator.attention(alone, shift_right(target[1:, :2]))[0], found[1, :2, :3])


def test_teacher_forcing_shows_the_token_before() -> None:
    assert shift_right(torch.tensor([[7, 9, EOS], [8, EOS, -100]])).tolist() == [[BOS, 7, 9], [BOS, 8, EOS]]
    assert shift_right(torch.tensor([[8, EOS, -100, -100]])).tolist() == [[BOS, 8, EOS, PAD]]


def test_a_word_receives_what_its_subwords_do_and_gives_the_mean() -> None:
    attention = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.5, 0.5], [0.25] * 4])
    found = word_attention(attention, [0, 0, 1, 2], [0, 0, 1, 2])  # the last of each is the end mark
    torch.testing.assert_close(found, torch.tensor([[(0.7 + 0.3) / 2, (0.2 + 0.3) / 2], [0.0, 0.5]]))


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    gold = {(0, 0), (1, 1), (2, 1), (3, 2)}
    sentences = [sentence([0, 2, 0], gold), sentence([1], {(1, 0)})]
    links, sure, right = 3 + 1, 4 + 1, 2 + 1
    assert alignment_error_rate(sentences) == pytest.approx(1 - (right + right) / (links + sure))
    assert alignment_error_rate([sentence([2, 0, 1], {(2, 0), (0, 1), (1, 2)})]) == 0
    assert alignment_error_rate([sentence([2, 0, 1], {(0, 0), (3, 1), (0, 2)})]) == 1


def test_chance_is_the_mean_over_links_drawn_evenly() -> None:
    golds = [{(0, 0), (1, 1), (2, 1)}, {(3, 0), (0, 2)}]
    drawn = [
        alignment_error_rate([sentence(torch.randint(4, (3,)).tolist(), gold) for gold in golds]) for _ in range(3000)
    ]
    wanted = sum(drawn) / len(drawn)
    assert chance_error_rate([sentence([0, 0, 0], gold) for gold in golds]) == pytest.approx(wanted, abs=0.01)


def test_its_page_says_what_is_so_on_black_too_and_prints_its_colors(tmp_path: Path) -> None:
    with AlignmentPage(tmp_path / "a.html") as page:
        page.add(1, ["a", "dog"], ["un", "chien"], [[0.9, 0.1], [0.2, 0.8]])
    text = (tmp_path / "a.html").read_text()
    assert "dark" not in text.partition("</style>")[2], "on a dark ground the most is the brightest"
    assert "print-color-adjust: exact" in text
