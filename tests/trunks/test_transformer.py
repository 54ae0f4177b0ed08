"""The trunk is torch's transformer, knows no order of columns, and is drawn from the seed alone."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier.nn.block import Activation, Block, DropPath, Norm
from unifier.trunks.transformer import SIZES, Size, Transformer
from unifier.trunks.trunk import isolated_seed
from unifier_tokenizers import NO_POSITION, InputError, Tokens

B, D, N, DEPTH, HEADS, HIDDEN = 3, 12, 7, 2, 3, 20
NORMS: list[Norm] = ["pre", "post"]


def tokens_of(lengths: list[int], axes: int = 1) -> Tokens:
    columns = max(lengths)
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    positions = torch.arange(columns).expand(len(lengths), axes, -1).masked_fill(~mask[:, None], NO_POSITION)
    return Tokens(torch.randn(len(lengths), D, columns), mask, positions)


def trunk_of(
    norm: Norm = "pre", activation: Activation = "gelu", rotary: bool = False, depth: int = DEPTH
) -> Transformer:
    return Transformer(D, depth, HEADS, HIDDEN, norm=norm, activation=activation, rotary=rotary)


def select(tokens: Tokens, columns: Tensor | slice) -> Tokens:
    return Tokens(tokens.matrix[:, :, columns], tokens.mask[:, columns], tokens.positions[:, :, columns])


def copy_into_torchs(block: nn.Module, peer: nn.TransformerEncoderLayer) -> None:
    assert isinstance(block, Block)
    own = block.attention
    with torch.no_grad():
        peer.self_attn.in_proj_weight.copy_(torch.cat([own.query.weight, own.key_value.weight]))
        peer.self_attn.in_proj_bias.copy_(torch.cat([own.query.bias, own.key_value.bias]))
    peer.self_attn.out_proj.load_state_dict(own.out.state_dict())
    peer.norm1.load_state_dict(block.attention_norm.state_dict())
    peer.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    peer.linear1.load_state_dict(block.feed_forward[0].state_dict())
    peer.linear2.load_state_dict(block.feed_forward[3].state_dict())


@pytest.mark.parametrize("lengths", [[N, N, N], [N, 3, 5]])
def test_a_compiler_sees_through_it(lengths: list[int]) -> None:
    """With and without padding, and breaks off to ask for neither."""
    trunk, tokens = trunk_of(), tokens_of(lengths)
    compiled = torch.compile(trunk, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens).matrix, trunk(tokens).matrix)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("mode", ["bidirectional", "causal"])
def test_a_stack_is_torchs_encoder_with_the_same_weights(
    norm: Norm, activation: Activation, mode: Literal["bidirectional", "causal"]
) -> None:
    trunk, tokens = trunk_of(norm, activation), tokens_of([N, 3, 5])
    for parameter in trunk.parameters():  # away from norms of 1 and biases of 0
        nn.init.normal_(parameter, std=0.3)
    x = tokens.matrix.mT
    for block in trunk.blocks:
        peer = nn.TransformerEncoderLayer(D, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre")
        copy_into_torchs(block, peer)
        future = ~torch.ones(N, N, dtype=torch.bool).tril() if mode == "causal" else None
        x = peer(x, src_mask=future, src_key_padding_mask=~tokens.mask)
    found = trunk(tokens, mode)
    assert found.matrix.shape == (B, D, N)
    torch.testing.assert_close(found.matrix, trunk.norm(x).mT, atol=1e-5, rtol=1e-4)
    assert torch.equal(found.mask, tokens.mask)
    assert torch.equal(found.positions, tokens.positions)


@pytest.mark.parametrize("norm", NORMS)
def test_permuted_columns_permute_the_output(norm: Norm) -> None:
    trunk, tokens, order = trunk_of(norm), tokens_of([N, 3, 5]), torch.randperm(N)
    torch.testing.assert_close(trunk(select(tokens, order)).matrix, trunk(tokens).matrix[:, :, order])


@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_reads_positions_and_not_the_order_of_columns(axes: int) -> None:
    trunk, tokens, order = trunk_of(rotary=True), tokens_of([N, N], axes), torch.randperm(N)
    answer = trunk(tokens).matrix
    torch.testing.assert_close(trunk(select(tokens, order)).matrix, answer[:, :, order])
    moved = tokens._replace(positions=tokens.positions + 5)
    torch.testing.assert_close(trunk(moved).matrix, answer, atol=1e-5, rtol=1e-4)
    turned = tokens._replace(positions=tokens.positions.flip(2))
    assert (trunk(turned).matrix - answer).abs().max() > 1e-3


@pytest.mark.parametrize("mode", ["bidirectional", "causal", "prefix"])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_padding_changes_nothing_real(mode: str, rotary: bool, norm: Norm) -> None:
    trunk, tokens = trunk_of(norm, rotary=rotary), tokens_of([N, 3, 5])
    rule: AttentionMode = (
        torch.tensor([2, 1, 4]) if mode == "prefix" else "causal" if mode == "causal" else "bidirectional"
    )
    together = trunk(tokens, rule)
    loud = tokens._replace(matrix=tokens.matrix.masked_fill(~tokens.mask[:, None], 1e3))
    assert torch.equal(trunk(loud, rule).matrix.mT[tokens.mask], together.matrix.mT[tokens.mask])
    assert together.matrix.isfinite().all()
    for b, length in enumerate((N, 3, 5)):
        alone = Tokens(*(part[b : b + 1, ..., :length] for part in tokens))
        own = rule[b : b + 1] if isinstance(rule, Tensor) else rule
        torch.testing.assert_close(together.matrix[b, :, :length], trunk(alone, own).matrix[0], atol=1e-5, rtol=1e-4)


def reaches(trunk: Transformer, tokens: Tokens, mode: AttentionMode) -> list[list[bool]]:
    """Of the first example: whether a change of column m (inner) alters column n (outer)."""
    before, table = trunk(tokens, mode).matrix[0], list[Tensor]()
    for m in range(N):
        matrix = tokens.matrix.clone()
        matrix[0, :, m] += torch.randn(D)
        table.append((trunk(tokens._replace(matrix=matrix), mode).matrix[0] != before).any(0))
    return torch.stack(table, 1).tolist()


@pytest.mark.parametrize("rotary", [False, True])
def test_a_change_reaches_those_who_may_see_it_and_nobody_else(rotary: bool) -> None:
    trunk, tokens = trunk_of(rotary=rotary), tokens_of([N, 3])
    assert all(map(all, reaches(trunk, tokens, "bidirectional")))
    assert reaches(trunk, tokens, "causal") == [[m <= n for m in range(N)] for n in range(N)]
    for prefix in (1, 4, N):
        expected = [[m <= n or m < prefix for m in range(N)] for n in range(N)]
        assert reaches(trunk, tokens, torch.tensor([prefix, 2])) == expected


def test_a_prefix_of_0_is_the_past_and_one_of_all_is_all() -> None:
    trunk, tokens = trunk_of(), tokens_of([N, 3])
    torch.testing.assert_close(trunk(tokens, torch.tensor([0, 0])).matrix, trunk(tokens, "causal").matrix)
    whole = trunk(tokens, torch.tensor([N, 3])).matrix, trunk(tokens, "bidirectional").matrix
    torch.testing.assert_close(whole[0].mT[tokens.mask], whole[1].mT[tokens.mask])


@pytest.mark.parametrize("mode", ["bidirectional", "causal"])
def test_recorded_attention_comes_with_the_same_answer(mode: Literal["bidirectional", "causal"]) -> None:
    trunk, tokens = trunk_of(), tokens_of([N, 3, 5])
    answer, weights = trunk.attention(tokens, mode)
    torch.testing.assert_close(answer.matrix, trunk(tokens, mode).matrix)
    assert [each.shape for each in weights] == [(B, HEADS, N, N)] * DEPTH
    assert not any(each.masked_select(~tokens.mask[:, None, None].expand_as(each)).any() for each in weights)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("mode", ["bidirectional", "causal"])
@pytest.mark.parametrize("depth", [0, 1, DEPTH])
def test_the_first_column_alone_is_that_of_all(
    norm: Norm, rotary: bool, mode: Literal["bidirectional", "causal"], depth: int
) -> None:
    trunk, tokens = Transformer(D, depth, HEADS, HIDDEN, norm=norm, rotary=rotary), tokens_of([N, 4, 5])
    tokens.matrix.requires_grad_()
    whole, first = trunk(tokens, mode), trunk.forward_first_token(tokens, mode)
    gradients: list[dict[str, Tensor | None]] = []
    for found in (whole, first):
        trunk.zero_grad()
        found.matrix[:, :, 0].square().sum().backward()
        gradients.append({name: one.grad for name, one in trunk.named_parameters()})
    torch.testing.assert_close(first.matrix, whole.matrix[:, :, :1])
    assert torch.equal(first.mask, tokens.mask[:, :1])
    assert torch.equal(first.positions, tokens.positions[:, :, :1])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_depth_0_passes_columns_through_the_norm_alone() -> None:
    tokens = tokens_of([N, 3])
    assert torch.equal(trunk_of("post", depth=0)(tokens).matrix, tokens.matrix)
    torch.testing.assert_close(
        trunk_of("pre", depth=0)(tokens).matrix, nn.functional.layer_norm(tokens.matrix.mT, (D,)).mT
    )
    assert trunk_of("post", depth=0).attention(tokens)[1] == []


def test_stochastic_depth_leaves_out_whole_examples_and_keeps_the_mean() -> None:
    x = torch.randn(5000, 2, 3)
    found = DropPath(0.3)(x)
    kept = found.flatten(1).any(1)
    torch.testing.assert_close(found[kept], x[kept] / 0.7)
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert DropPath(0.3).eval()(x) is x


@pytest.mark.parametrize("norm", NORMS)
def test_deeper_blocks_are_left_out_more_often_and_none_in_evaluation(norm: Norm) -> None:
    torch.manual_seed(1)
    plain = Transformer(D, 4, HEADS, HIDDEN, norm=norm)
    torch.manual_seed(1)
    trunk = Transformer(D, 4, HEADS, HIDDEN, norm=norm, drop_path=0.4)
    shares = [part.dropout.p for part in trunk.modules() if isinstance(part, DropPath)]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4])
    tokens = tokens_of([N, 3])
    assert not torch.equal(trunk(tokens).matrix, plain(tokens).matrix)
    assert torch.equal(trunk.eval()(tokens).matrix, plain(tokens).matrix)


def test_an_example_that_is_left_out_everywhere_passes_as_it_is() -> None:
    trunk, tokens = Transformer(D, 1, HEADS, HIDDEN, drop_path=0.5), tokens_of([N] * 400)
    untouched = (trunk(tokens).matrix - nn.functional.layer_norm(tokens.matrix.mT, (D,)).mT).abs().amax((1, 2)) < 1e-6
    assert untouched.float().mean().item() == pytest.approx(0.25, abs=0.07)  # attention and feed-forward, each apart


def test_what_cannot_be_built_or_read() -> None:
    for share in (-0.1, 1.0):
        with pytest.raises(InputError, match=f"drop_path={share}: a number from 0"):
            Transformer(D, 2, HEADS, HIDDEN, drop_path=share)
    with pytest.raises(InputError, match="ffn_dim=0: at least 1 is needed"):
        Transformer(D, 1, 2, 0)
    with pytest.raises(InputError, match="D = 0: at least 1 is needed"):
        Transformer(0, 1, 2, 8)
    with pytest.raises(InputError, match="a depth of -1 is none"):
        trunk_of(depth=-1)
    for heads in (5, 0):
        with pytest.raises(InputError, match=f"{heads} heads do not divide D = {D}"):
            Transformer(D, DEPTH, heads, HIDDEN)
    with pytest.raises(InputError, match=f"columns of D = {N} rows reach a trunk of D = {D}"):
        trunk_of()(tokens_of([N])._replace(matrix=torch.randn(1, N, D)))
    with pytest.raises(InputError, match=r"no size .huge.: choose one of tiny, small, base"):
        Transformer.preset("huge")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="an even head depth of at least 2, not 3"):
        Transformer(9, 1, 3, HIDDEN, rotary=True)(
            Tokens(torch.randn(1, 9, 2), torch.ones(1, 2) > 0, torch.zeros(1, 1, 2))
        )


@pytest.mark.parametrize("size", SIZES)
def test_presets_have_their_sizes(size: Size) -> None:
    with torch.device("meta"):
        trunk = Transformer.preset(size)
    width, depth, heads, hidden = SIZES[size]
    assert (trunk.dim, len(trunk.blocks)) == (width, depth)
    assert all(isinstance(block, Block) and block.attention.heads == heads for block in trunk.blocks)
    a_block = 4 * (width * width + width) + 2 * width * hidden + hidden + width + 4 * width
    assert sum(parameter.numel() for parameter in trunk.parameters()) == depth * a_block + 2 * width


def test_the_base_size_is_that_of_the_2017_transformer() -> None:
    peer = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048), 6, enable_nested_tensor=False)
    trunk = Transformer.preset("base", norm="post")
    assert sum(map(Tensor.numel, trunk.parameters())) == sum(map(Tensor.numel, peer.parameters()))


def test_quiet_residual_paths_end_in_weights_divided_by_the_root_of_their_number() -> None:
    torch.manual_seed(0)
    loud, quiet = (Transformer(64, 8, 4, 64, scaled_residual_init=quiet) for quiet in (False, True))
    for (name, one), other in zip(loud.named_parameters(), quiet.parameters(), strict=True):
        ends = name.endswith((".out.weight", "feed_forward.3.weight"))
        if one.ndim == 2:
            assert other.std().item() == pytest.approx(one.std().item() / (4 if ends else 1), rel=0.05), name


@pytest.mark.parametrize("built_before", [0, 1, 50])
def test_the_seed_alone_says_what_a_trunk_starts_from(built_before: int) -> None:
    torch.manual_seed(3)
    expected = trunk_of().state_dict()
    torch.manual_seed(3)
    if built_before:
        nn.Embedding(built_before, D)
    stream = torch.get_rng_state()
    found = trunk_of().state_dict()
    assert torch.equal(torch.get_rng_state(), stream)
    assert torch.initial_seed() == 3
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    torch.manual_seed(4)
    weight = "blocks.0.attention.out.weight"
    assert not torch.equal(trunk_of().state_dict()[weight], expected[weight])


def test_drawing_from_the_seed_leaves_every_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator's stream too, which torch.manual_seed would set back."""
    torch.manual_seed(5)
    fresh, seeded = torch.get_rng_state(), list[int]()
    torch.rand(3)
    stream = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    with isolated_seed():
        assert torch.equal(torch.get_rng_state(), fresh)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), stream)
    assert not seeded


def test_gradients_reach_every_parameter() -> None:
    for rotary in (False, True):
        trunk = trunk_of(rotary=rotary)
        (trunk(tokens_of([N, 3])).matrix * torch.randn(2, D, N)).sum().backward()
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in trunk.parameters())


REFUSED: dict[str, Callable[[], object]] = {
    "norm": lambda: Transformer(D, 1, HEADS, HIDDEN, norm="before"),  # pyright: ignore[reportArgumentType]
    "activation": lambda: Transformer(D, 1, HEADS, HIDDEN, activation="swish"),  # pyright: ignore[reportArgumentType]
    "mode": lambda: Transformer(D, 1, HEADS, HIDDEN)(tokens_of([3]), "causal"),  # pyright: ignore[reportArgumentType]
    "size": lambda: Transformer.preset("huge"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_is_none_is_refused_and_the_others_are_listed(option: str) -> None:
    with pytest.raises(InputError, match=f"no {option} .* choose one of"):
        REFUSED[option]()
