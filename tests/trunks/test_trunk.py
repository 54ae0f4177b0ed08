"""The contract that every trunk keeps: padding, visibility, the seed, gradients, bfloat16 and learning."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unifier import ClassificationHead, ConvolutionalTrunk, MeanAttentionTrunk, RecurrentTrunk, Transformer
from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import Trunk, isolated_seed
from unifier_tokenizers import InputError, Tokens

D, N, DEPTH = 12, 9, 2
Draw = Callable[..., Tokens]

TRUNKS: dict[str, Callable[[AttentionMode], Trunk]] = {
    "transformer": lambda _: Transformer(D, DEPTH, 3, 20),
    "post_norm": lambda _: Transformer(D, DEPTH, 3, 20, norm="post"),
    "rotary": lambda _: Transformer(D, DEPTH, 3, 20, rotary=True),
    "rotary_post_norm": lambda _: Transformer(D, DEPTH, 3, 20, rotary=True, norm="post"),
    "experts": lambda _: Transformer(D, DEPTH, 3, 20, experts=2),
    "two_experts_per_token": lambda _: Transformer(D, DEPTH, 3, 20, experts=3, experts_per_token=2),
    "mean_attention": lambda _: MeanAttentionTrunk(D, DEPTH, 20),
    "lstm": lambda mode: RecurrentTrunk(D, DEPTH, bidirectional=mode == "bidirectional"),
    "gru": lambda mode: RecurrentTrunk(D, DEPTH, bidirectional=mode == "bidirectional", cell="gru"),
    "convolutional": lambda _: ConvolutionalTrunk(D, DEPTH, kernel_size=3),
}
CASES: list[tuple[str, AttentionMode]] = [(name, mode) for name in TRUNKS for mode in ("bidirectional", "causal")]
EVERY_CASE = pytest.mark.parametrize(("name", "mode"), CASES)
EVERY_TRUNK = pytest.mark.parametrize("name", TRUNKS)
PREFIX_TRUNKS = [name for name in TRUNKS if name not in ("lstm", "gru", "convolutional")]


def visible_tokens(trunk: Trunk, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tensor:
    """Return (N, N) for the first example: True if a change of token m (column) alters output n (row)."""
    before, changes = trunk(tokens, mode).matrix[0], list[Tensor]()
    for m in range(tokens.mask.shape[1]):
        matrix = tokens.matrix.clone()
        matrix[0, :, m] += torch.randn(D)
        changes.append((trunk(tokens._replace(matrix=matrix), mode).matrix[0] - before).abs().amax(0) > 1e-7)
    return torch.stack(changes, 1)


@pytest.mark.parametrize(("name", "mode"), [*CASES, *((name, torch.tensor([2, 1, 4])) for name in PREFIX_TRUNKS)])
def test_padding_changes_no_real_output(name: str, mode: AttentionMode, random_tokens: Draw) -> None:
    trunk, tokens = TRUNKS[name](mode).eval(), random_tokens([N, 3, 5])
    batch = trunk(tokens, mode)
    noisy = tokens._replace(matrix=tokens.matrix.masked_fill(~tokens.mask[:, None], 1e3))
    torch.testing.assert_close(trunk(noisy, mode).matrix.mT[tokens.mask], batch.matrix.mT[tokens.mask])
    assert batch.matrix.isfinite().all()
    assert torch.equal(batch.mask, tokens.mask)
    assert torch.equal(batch.positions, tokens.positions)
    for b, length in enumerate(tokens.mask.sum(1).tolist()):
        single = Tokens(*(part[b : b + 1, ..., :length] for part in tokens))
        expected = trunk(single, mode[b : b + 1] if isinstance(mode, Tensor) else mode).matrix[0]
        torch.testing.assert_close(batch.matrix[b, :, :length], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in TRUNKS if name != "convolutional"])
def test_visibility_follows_the_mode(name: str, random_tokens: Draw) -> None:
    tokens = random_tokens([N, 3])
    assert visible_tokens(TRUNKS[name]("bidirectional"), tokens).all()
    past = torch.ones(N, N, dtype=torch.bool).tril()
    assert torch.equal(visible_tokens(TRUNKS[name]("causal"), tokens, "causal"), past)


@pytest.mark.parametrize("name", PREFIX_TRUNKS)
@pytest.mark.parametrize("prefix", [0, 1, 4, N])
def test_visibility_of_a_prefix(name: str, prefix: int, random_tokens: Draw) -> None:
    expected = torch.ones(N, N, dtype=torch.bool).tril() | (torch.arange(N) < prefix)
    visible = visible_tokens(TRUNKS[name]("causal"), random_tokens([N, 3]), torch.tensor([prefix, 2]))
    assert torch.equal(visible, expected)


@pytest.mark.parametrize("name", PREFIX_TRUNKS)
def test_permuted_tokens_permute_the_output(name: str, random_tokens: Draw) -> None:
    trunk, tokens, order = TRUNKS[name]("bidirectional"), random_tokens([N, 3, 5]), torch.randperm(N)
    permuted = Tokens(*(part[..., order] for part in tokens))
    torch.testing.assert_close(trunk(permuted).matrix, trunk(tokens).matrix[..., order])


@EVERY_CASE
def test_weights_depend_on_the_seed_alone(name: str, mode: AttentionMode) -> None:
    torch.manual_seed(3)
    first = TRUNKS[name](mode).state_dict()
    torch.manual_seed(3)
    nn.Embedding(50, 7)
    stream = torch.get_rng_state()
    second = TRUNKS[name](mode).state_dict()
    assert torch.equal(torch.get_rng_state(), stream)
    assert torch.initial_seed() == 3
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    torch.manual_seed(4)
    other = TRUNKS[name](mode).state_dict()
    assert any(not torch.equal(other[key], first[key]) for key in first)


def test_isolated_seed_restores_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the accelerator's stream too, which torch.manual_seed would reset."""
    torch.manual_seed(5)
    fresh, accelerator_seeds = torch.get_rng_state(), list[int]()
    torch.rand(3)
    stream = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", accelerator_seeds.append)
    with isolated_seed():
        assert torch.equal(torch.get_rng_state(), fresh)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), stream)
    assert not accelerator_seeds


@EVERY_CASE
def test_gradients_reach_every_parameter(name: str, mode: AttentionMode, random_tokens: Draw) -> None:
    trunk = TRUNKS[name](mode)
    (trunk(random_tokens([N, 4]), mode).matrix * torch.randn(2, D, N)).sum().backward()
    for key, parameter in trunk.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all() & parameter.grad.any(), key


@EVERY_TRUNK
def test_bfloat16_is_close_to_float32(name: str, random_tokens: Draw) -> None:
    trunk, tokens = TRUNKS[name]("bidirectional"), random_tokens([N, 4])
    with torch.autocast("cpu", torch.bfloat16):
        output = trunk(tokens).matrix.float()
    expected = trunk(tokens).matrix
    assert (output - expected).norm() < 0.03 * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "mean_attention", "lstm", "gru", "convolutional"])
def test_trunk_learns_to_find_a_marked_token(name: str) -> None:
    trunk, head = TRUNKS[name]("bidirectional"), ClassificationHead(["no", "yes"], D)
    is_marked = torch.arange(64) % 2
    matrix = torch.randn(64, D, 5) / 4
    matrix[torch.arange(64), 0, torch.randint(5, (64,))] += 3 * is_marked
    tokens = Tokens(matrix, torch.ones(64, 5, dtype=torch.bool), torch.arange(5).expand(64, 1, -1))
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=0.01)
    for _ in range(60):
        head.loss(trunk(tokens), is_marked).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert head.loss(trunk(tokens), is_marked) < 0.1


@EVERY_TRUNK
def test_tokens_of_another_dim_are_refused(name: str, random_tokens: Draw) -> None:
    tokens = random_tokens([4])
    with pytest.raises(InputError, match=f"D = {2 * D} .* D = {D}"):
        TRUNKS[name]("bidirectional")(tokens._replace(matrix=tokens.matrix.repeat(1, 2, 1)))


@pytest.mark.parametrize("build", [MeanAttentionTrunk, ConvolutionalTrunk, RecurrentTrunk, Transformer])
def test_negative_depth_is_refused(build: Callable[[int, int], Trunk]) -> None:
    with pytest.raises(InputError, match="depth=-1"):
        build(D, -1)
