"""A mixture of experts: the function of its networks, its router and its balance loss, and what it costs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import unifier as uf
from tests.small_models import save_model, small_model
from unifier.data.dataloader import collate
from unifier.data.encoding import encode_split
from unifier.datasets import Digits
from unifier.experiment import trunk_parts
from unifier.network import Network
from unifier.nn.experts import (
    MixtureOfExperts,
    balance_loss,
    collect_balance_losses,
    expert_shares,
    mixtures_of,
    record_experts,
)
from unifier.nn.feed_forward import FeedForward
from unifier_tokenizers import InputError, Tokens

B, N, D, F = 3, 7, 8, 12
LENGTHS = torch.tensor([7, 2, 5])
MASK = torch.arange(N) < LENGTHS[:, None]


def draw_tokens(batch: int = B) -> Tokens:
    mask = MASK[:batch]
    return Tokens(torch.randn(batch, D, N), mask, torch.arange(N).expand(batch, 1, N))


@pytest.mark.parametrize("training", [False, True])
def test_one_expert_is_a_plain_feed_forward_network(training: bool) -> None:
    mixture, plain = MixtureOfExperts(D, F, "gelu", 0.5, 1), FeedForward(D, F, "gelu", 0.5)
    mixture.experts[0].load_state_dict(plain.state_dict())
    x = torch.randn(B, N, D)
    outputs: list[Tensor] = []
    for part in (mixture, plain):
        torch.manual_seed(1)
        outputs.append(part.train(training)(x))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("per_token", [1, 2])
def test_output_is_the_weighted_sum_of_the_likeliest_experts(per_token: int) -> None:
    mixture, x = MixtureOfExperts(D, F, "gelu", 0.0, 4, per_token), torch.randn(B, N, D)
    probabilities = mixture.router(x).softmax(-1)
    outputs = torch.stack([expert(x) for expert in mixture.experts], -1)
    found = mixture(x, MASK)
    for b, n in MASK.nonzero().tolist():
        best = probabilities[b, n].argsort(descending=True)[:per_token]
        gates = probabilities[b, n, best]
        gates = gates if per_token == 1 else gates / gates.sum()
        torch.testing.assert_close(found[b, n], outputs[b, n][:, best] @ gates)
    assert not found[~MASK].any()


def test_padding_is_not_routed() -> None:
    mixture = MixtureOfExperts(D, F, "gelu", 0.0, 3, 2)
    with record_experts(mixture) as counts:
        assert counts()[0].tolist() == [0, 0, 0]
        mixture(torch.randn(B, N, D), MASK)
        mixture(torch.randn(B, N, D))
    assert counts()[0].sum() == 2 * (int(LENGTHS.sum()) + B * N)
    assert mixture.recorded is None


@pytest.mark.parametrize("per_token", [1, 2])
def test_graph_computes_the_routed_function(per_token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture, x = MixtureOfExperts(D, F, "relu", 0.0, 4, per_token), torch.randn(B, N, D)
    expected = mixture(x, MASK)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    torch.testing.assert_close(mixture(x, MASK), expected)


@pytest.mark.parametrize("per_token", [1, 2])
def test_balance_loss_is_1_for_equal_shares_and_largest_for_one_expert(per_token: int) -> None:
    uniform = torch.full((8, 4), 0.25)
    chosen = torch.arange(8 * per_token).view(8, per_token) % 4
    assert balance_loss(*expert_shares(uniform, chosen)).item() == pytest.approx(1)
    first = torch.tensor([1.0, 0, 0, 0]).expand(8, 4)
    chosen = torch.zeros(8, 1, dtype=torch.long)
    assert balance_loss(*expert_shares(first, chosen)).item() == pytest.approx(4)


def test_tasks_with_separate_experts_are_balanced() -> None:
    """Two tasks alternate. Each uses one of two experts, so the mean load is equal, and no batch is balanced."""
    mixture = MixtureOfExperts(D, F, "gelu", 0.0, 2)
    with torch.no_grad():
        mixture.router.weight[0], mixture.router.weight[1] = 5.0, -5.0
    loss = 0.0
    for _ in range(40):
        for sign in (1, -1):
            with collect_balance_losses([mixture]) as losses:
                mixture(sign * torch.ones(1, 16, D))
            loss = losses[0].item()
    assert loss == pytest.approx(mixture.balance_weight, rel=0.1)


def test_mean_load_is_changed_by_training_alone_and_is_a_part_of_the_model() -> None:
    mixture, x = MixtureOfExperts(D, F, "gelu", 0.0, 4), torch.randn(B, N, D)
    mixture(x)
    assert not mixture.load.any()
    with collect_balance_losses([mixture]), record_experts(mixture) as counts:
        mixture(x)
    torch.testing.assert_close(mixture.state_dict()["load"], counts()[0] / counts()[0].sum())


@pytest.mark.slow
def test_balance_loss_alone_spreads_the_tokens() -> None:
    mixture, x = MixtureOfExperts(D, F, "gelu", 0.0, 4, balance_weight=1.0), torch.randn(1, 64, D)
    with torch.no_grad():
        x[..., 0] = 1
        mixture.router.weight[0, 0] += 4
    optimizer = torch.optim.Adam(mixture.router.parameters(), lr=0.02)
    shares: list[float] = []
    for _ in range(400):
        with collect_balance_losses([mixture]) as losses, record_experts(mixture) as counts:
            mixture(x)
        shares.append(float(counts()[0].max() / counts()[0].sum()))
        losses[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert shares[0] > 0.9
    assert shares[-1] < 0.4


def network(**options: Any) -> tuple[Network, Any]:
    """Return a network for pictures in training mode, and a batch of pictures."""
    torch.manual_seed(0)
    tokenizer, head = uf.PatchTokenizer(D, channels=1), uf.ClassificationHead(Digits.labels, D)
    source = Digits()
    experiment = uf.Experiment(
        uf.Transformer(D, 2, 2, F, **options), {"digits": uf.Task(source, tokenizer, head)}, uf.Training(steps=1)
    )
    split, _ = encode_split([source.split("train")[k] for k in range(4)], tokenizer, head)
    return Network.from_experiment(experiment).train(), collate(split, range(4))


@pytest.mark.slow
def test_training_adds_the_balance_losses_of_all_layers() -> None:
    (plain, batch), (balanced, _) = (network(experts=3, balance_weight=weight) for weight in (0.0, 0.5))
    with collect_balance_losses(mixtures_of(balanced.trunk)) as losses:
        balanced.trunk(batch.embed(balanced.tasks["digits"].tokenizer))
    assert len(losses) == 2
    added = balanced.loss("digits", batch) - plain.loss("digits", batch)
    torch.testing.assert_close(added, torch.stack(losses).sum())
    torch.testing.assert_close(balanced.eval().loss("digits", batch), plain.eval().loss("digits", batch))


@pytest.mark.parametrize("weight", [0.0, 0.01])
def test_gradient_reaches_the_router(weight: float) -> None:
    model, batch = network(experts=3, balance_weight=weight)
    model.loss("digits", batch).backward()
    assert all(mixture.router.weight.grad.any() for mixture in mixtures_of(model))  # pyright: ignore


def test_expert_without_tokens_has_a_gradient_of_0() -> None:
    mixture = MixtureOfExperts(D, F, "gelu", 0.0, 3)
    with torch.no_grad():  # The third logit is never the largest.
        mixture.router.weight[1], mixture.router.weight[2] = -mixture.router.weight[0], 0.0
    mixture(torch.randn(B, N, D)).sum().backward()
    gradients = [parameter.grad for parameter in mixture.experts[2].parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def count_flops(trunk: uf.Transformer) -> int:
    with FlopCounterMode(display=False) as counter:
        trunk(draw_tokens(1))
    return counter.get_total_flops()


@pytest.mark.parametrize("per_token", [1, 2])
def test_flops_are_those_of_the_active_experts(per_token: int) -> None:
    plain, mixed = uf.Transformer(D, 2, 2, F), uf.Transformer(D, 2, 2, F, experts=4, experts_per_token=per_token)
    router, network = 2 * N * D * 4, 2 * N * 2 * D * F
    assert count_flops(mixed) - count_flops(plain) == 2 * (router + (per_token - 1) * network)


def test_scaled_residual_init_counts_branches_and_not_experts() -> None:
    trunk = uf.Transformer(64, 2, 4, 64, scaled_residual_init=True, experts=3)
    plain = uf.Transformer(64, 2, 4, 64, scaled_residual_init=True)
    for path in ("blocks.0.attention.out", "blocks.0.feed_forward.experts.2.3", "blocks.1.feed_forward.experts.0.3"):
        reference = path.replace("experts.2.", "").replace("experts.0.", "")
        expected = plain.get_submodule(reference).weight.std()  # pyright: ignore
        assert trunk.get_submodule(path).weight.std().item() == pytest.approx(expected.item(), rel=0.05)  # pyright: ignore


def test_router_is_a_part_of_the_feed_forward_network() -> None:
    trunk = uf.Transformer(D, 1, 2, F, experts=2)
    frozen = {id(parameter) for parameter in trunk_parts(trunk)["feed_forward"]}
    assert frozen == {id(parameter) for name, parameter in trunk.named_parameters() if ".feed_forward." in name}


def test_model_folder_keeps_the_experts_and_a_batch_changes_no_prediction(tmp_path: Path) -> None:
    model = uf.load(save_model(tmp_path, "text", experts=3))
    assert len(mixtures_of(model.network)[0].experts) == 3
    texts = ["one two three four five six", "six", "two one"]
    together = torch.stack(model.network.predict("text", texts))
    alone = torch.stack([model.network.predict("text", [text])[0] for text in texts])
    torch.testing.assert_close(together, alone)
    expected = small_model("text", experts=3)
    torch.testing.assert_close(model.network.trunk.state_dict(), expected.trunk.state_dict())


@pytest.mark.slow
def test_experts_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    trunk, tokens = uf.Transformer(D, 1, 2, F, experts=2), draw_tokens()
    compiled: nn.Module = torch.compile(trunk, backend="eager")  # pyright: ignore
    torch.testing.assert_close(compiled(tokens).matrix, trunk(tokens).matrix)


REFUSED: dict[str, Callable[[], object]] = {
    "experts=0": lambda: uf.Transformer(D, 1, 2, experts=0),
    "experts_per_token=3": lambda: uf.Transformer(D, 1, 2, experts=4, experts_per_token=3),
    "experts_per_token=2": lambda: uf.Transformer(D, 1, 2, experts_per_token=2),
    "balance_weight=-1": lambda: uf.Transformer(D, 1, 2, experts=2, balance_weight=-1.0),
    "experts": lambda: uf.create_trunk("gru", D, 1, experts=2),
    "experts=4.*batch_tokens=3": lambda: uf.Experiment(
        uf.Transformer(D, 1, 2, experts=4),
        {"digits": uf.Task(Digits(), uf.PatchTokenizer(D, channels=1), uf.ClassificationHead(Digits.labels, D))},
        uf.Training(steps=1, batch_tokens=3),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_impossible_experts_are_refused(message: str) -> None:
    with pytest.raises(InputError, match=message):
        REFUSED[message]()
