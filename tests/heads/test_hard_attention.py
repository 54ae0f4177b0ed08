"""Hard attention: the gradient of REINFORCE on average, its baseline, and its choice in inference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.heads.conftest import randomize
from unifier.heads.classification import masked_mean
from unifier.heads.hard_attention import HardAttentionHead, reinforce
from unifier.heads.text_generation import shift_right
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.subwords import BOS, EOS

D = 12


@pytest.fixture
def head(vocabulary: Vocabulary) -> HardAttentionHead:
    return randomize(HardAttentionHead(vocabulary, D, depth=1))


def test_reinforce_gradient_is_right_on_average(
    head: HardAttentionHead, random_tokens: Callable[..., Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples of two text tokens over two trunk tokens are enumerated, each with its probability."""
    tokens, target = random_tokens((2,)), torch.tensor([[5, EOS]])
    states, _ = head.rnn(head.embed(shift_right(target)), head.rnn.initial_state(tokens.matrix.mean(2)))
    values, keys, mask = head.score.precompute_keys(tokens)
    weights = head.score(states, keys, mask)[0]
    by_value: list[Tensor] = []
    for value in values[0]:
        hidden = head.out(torch.cat([value.expand(2, -1), states[0]], 1)).tanh()
        loss = nn.CrossEntropyLoss(reduction="none", label_smoothing=head.label_smoothing)
        by_value.append(loss(head.project(hidden), target[0]))
    exact = (weights * torch.stack(by_value, 1)).sum(1).mean()
    expected = torch.autograd.grad(exact, list(head.parameters()))
    gradients, mean = [torch.zeros_like(gradient) for gradient in expected], 0.0
    head.train()
    for samples in torch.cartesian_prod(*[torch.arange(2)] * 4).view(-1, 2, 2):
        monkeypatch.setattr(torch, "searchsorted", lambda *_, samples=samples: samples[None])
        probability = weights.gather(1, samples).prod().item()
        loss = head.loss(tokens, target)
        mean += probability * loss.item()
        for total, gradient in zip(gradients, torch.autograd.grad(loss, list(head.parameters())), strict=True):
            total += probability * gradient
    assert mean == pytest.approx(exact.item(), rel=1e-4)
    torch.testing.assert_close(gradients, list(expected), atol=1e-5, rtol=1e-3)


def test_baseline_is_the_mean_of_other_losses() -> None:
    losses, log_probs = torch.rand(3, 4), torch.randn(3, 4, requires_grad=True)
    equal = reinforce(losses[:, :1].expand(3, 4), log_probs)
    torch.testing.assert_close(torch.autograd.grad(equal, log_probs)[0], torch.zeros(3, 4))
    value = reinforce(losses, log_probs)
    assert value.item() == pytest.approx(losses.mean().item())
    baselines = torch.stack([torch.cat([losses[:, :k], losses[:, k + 1 :]], 1).mean(1) for k in range(4)], 1)
    torch.testing.assert_close(torch.autograd.grad(value, log_probs)[0], (losses - baselines) / 12)


@torch.no_grad()
def test_inference_reads_the_most_likely_token(head: HardAttentionHead, tokens: Tokens) -> None:
    ids = torch.tensor([[BOS, 5, 7, 4], [BOS, 6, 6, 5], [BOS, 4, 8, 6]])
    states, _ = head.rnn(head.embed(ids), head.rnn.initial_state(masked_mean(tokens)))
    for b, indices in enumerate(head.attention(tokens, ids).argmax(-1)):
        expected = head.out(torch.cat([tokens.matrix[b, :, indices].T, states[b]], 1)).tanh()
        torch.testing.assert_close(head.hidden_states(tokens, ids)[b], expected)


def test_r_drop_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(InputError, match=r"r_drop=2\.0"):
        HardAttentionHead(vocabulary, D, depth=1, r_drop=2.0)
