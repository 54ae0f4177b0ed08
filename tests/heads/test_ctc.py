"""CTC: the loss and the beam search against a sum over all paths, error rates, and targets that are too long."""

import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from unifier.data.encoding import encode_split
from unifier.data.source import Example
from unifier.heads.ctc import CTCHead, prefix_beam_search
from unifier.heads.head import IGNORE_INDEX
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens, Vocabulary, WordTokenizer

D = 12
TARGETS = ["aabc", "b", "ca"]


def padded(head: CTCHead) -> torch.Tensor:
    return pad_sequence([head.encode(target) for target in TARGETS], batch_first=True, padding_value=IGNORE_INDEX)


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(index for index, _ in itertools.groupby(path) if index)


@pytest.mark.slow
@pytest.mark.parametrize("beam_width", [1, 4])
def test_head_overfits_a_batch(beam_width: int, tokens: Tokens) -> None:
    head, trunk = CTCHead("abc", D, beam_width=beam_width), Transformer(D, 1, 2, 20)
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        head.loss(trunk(tokens), padded(head)).backward()
        optimizer.step()
    predictions = head.predict(trunk(tokens))
    assert [head.describe(prediction) for prediction in predictions] == TARGETS
    assert head.checked_metrics(predictions, TARGETS) == {"error_rate": 0, "exact": 100}


@pytest.mark.parametrize("beam_width", [1, 3])
def test_loss_and_predictions_ignore_padding(
    beam_width: int, tokens: Tokens, single: Callable[[Tokens, int], Tokens]
) -> None:
    head = CTCHead("abc", D, beam_width=beam_width)
    losses: list[torch.Tensor] = []
    for b, prediction in enumerate(head.predict(tokens)):
        alone = single(tokens, b)
        assert torch.equal(head.predict(alone)[0], prediction)
        losses.append(head.loss(alone, head.encode(TARGETS[b])[None]))
    torch.testing.assert_close(head.loss(tokens, padded(head)), torch.stack(losses).mean())


def test_loss_and_beam_search_equal_sums_over_all_paths(random_tokens: Callable[..., Tokens]) -> None:
    head, tokens = CTCHead("ab", D), random_tokens((5, 5, 5, 5))
    for scores, example in zip(head.log_probabilities(tokens).detach(), tokens.matrix, strict=True):
        totals = defaultdict[tuple[int, ...], float](float)
        for path in itertools.product(range(3), repeat=5):
            totals[collapse(path)] += np.exp(scores[range(5), path].sum().item())
        assert tuple(prefix_beam_search(scores.numpy(), 100)) == max(totals, key=lambda labels: totals[labels])
        alone = Tokens(example[None], tokens.mask[:1], tokens.positions[:1])
        assert head.loss(alone, head.encode("aab")[None]).item() == pytest.approx(
            -np.log(totals[1, 1, 2]) / 3, rel=1e-4
        )


def test_error_rates_count_edits() -> None:
    head = CTCHead("abc", D)
    guesses = [head.encode("abc"), torch.tensor([], dtype=torch.long), head.encode("cba")]
    # One symbol is missing, one is missing, and one is inserted.
    assert head.checked_metrics(guesses, TARGETS) == {"error_rate": pytest.approx(100 * 3 / 7), "exact": 0}
    scores = [head.example_score(*pair) for pair in zip(guesses, TARGETS, strict=True)]
    assert sum(score * weight for score, weight in scores) / 7 == pytest.approx(100 * 3 / 7)
    assert CTCHead(("one", "two"), D).describe(torch.tensor([2, 1])) == "two one"


def test_targets_must_fit_the_frames() -> None:
    head, tokenizer = CTCHead("abc", D), WordTokenizer(Vocabulary.fit(["x"], size=260), D)
    for target, message in (
        ("aab", "3 symbols with 1 equal neighbors need 4 tokens, not 3"),
        ("ad", "'d'"),
        ("", "''"),
    ):
        with pytest.raises(InputError, match=f"example 0.*{message}"):
            encode_split([Example(("x", "x", "x"), target)], tokenizer, head)
    bad, good = Example(("x", "x", "x"), "aab"), Example(("x", "x", "x"), "aba")
    split, skipped = encode_split([bad, good], tokenizer, head, bad_examples="skip")
    assert (len(split), len(skipped)) == (1, 1)
