"""Trunks that take the transformer's place: the same contract, each with a view of its own."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from unifier.heads.classification import ClassificationHead
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import CELLS, Cell, RecurrentTrunk, rnn_layers
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import NO_POSITION, InputError, Tokens

D, N, DEPTH = 12, 9, 2
View = Literal["bidirectional", "causal"]
Build = Callable[[View], Trunk]


def bag(_: View) -> Trunk:
    return MeanAttentionTrunk(D, DEPTH, 20)


def recurrent(view: View) -> Trunk:
    return RecurrentTrunk(D, DEPTH, bidirectional=view == "bidirectional")


def gated(view: View) -> Trunk:
    return RecurrentTrunk(D, DEPTH, bidirectional=view == "bidirectional", cell="gru")


def convolutional(_: View) -> Trunk:
    return ConvolutionalTrunk(D, DEPTH, kernel_size=3)


TRUNKS: list[Build] = [bag, recurrent, gated, convolutional]
VIEWS: list[View] = ["bidirectional", "causal"]


def tokens_of(lengths: list[int]) -> Tokens:
    columns = max(lengths)
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    positions = torch.arange(columns).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NO_POSITION)
    return Tokens(torch.randn(len(lengths), D, columns), mask, positions)


def reaches(trunk: Trunk, tokens: Tokens, view: View) -> Tensor:
    """Of the first example (N, N): whether a change of column m alters column n."""
    before, table = trunk(tokens, view).matrix[0], list[Tensor]()
    for m in range(tokens.mask.shape[1]):
        matrix = tokens.matrix.clone()
        matrix[0, :, m] += 1
        matrix[0, 0, m] -= 3
        table.append((trunk(tokens._replace(matrix=matrix), view).matrix[0] - before).abs().amax(0) > 1e-7)
    return torch.stack(table, 1)


@pytest.mark.parametrize("build", TRUNKS)
@pytest.mark.parametrize("view", VIEWS)
def test_padding_changes_nothing_real(build: Build, view: View) -> None:
    trunk, tokens = build(view).eval(), tokens_of([N, 3, 5])
    together = trunk(tokens, view)
    loud = tokens._replace(matrix=tokens.matrix.masked_fill(~tokens.mask[:, None], 1e3))
    torch.testing.assert_close(trunk(loud, view).matrix.mT[tokens.mask], together.matrix.mT[tokens.mask])
    assert torch.equal(together.mask, tokens.mask)
    assert torch.equal(together.positions, tokens.positions)
    for b, length in enumerate((N, 3, 5)):
        alone = Tokens(*(part[b : b + 1, ..., :length] for part in tokens))
        torch.testing.assert_close(together.matrix[b, :, :length], trunk(alone, view).matrix[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("build", [bag, recurrent, gated])
def test_a_change_reaches_all_or_those_that_come_after(build: Build) -> None:
    tokens = tokens_of([N, 3])
    assert reaches(build("bidirectional"), tokens, "bidirectional").all()
    assert torch.equal(reaches(build("causal"), tokens, "causal"), torch.ones(N, N, dtype=torch.bool).tril())


@pytest.mark.parametrize("view", VIEWS)
def test_a_convolution_reaches_as_far_as_it_says(view: View) -> None:
    width, depth = 5, 2
    distance = torch.arange(20)[:, None] - torch.arange(20)
    far = depth * (width - 1)
    expected = distance.abs() <= far // 2 if view == "bidirectional" else (distance >= 0) & (distance <= far)
    assert torch.equal(reaches(ConvolutionalTrunk(D, depth, kernel_size=width), tokens_of([20, 4]), view), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrent_layer_is_torchs_beside_a_residual_path(cell: Cell) -> None:
    trunk, tokens = RecurrentTrunk(D, 1, cell=cell), tokens_of([N, N])
    peer = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](D, D // 2, batch_first=True, bidirectional=True)
    peer.load_state_dict(trunk.layers[0].state_dict())
    x = tokens.matrix.mT
    expected = trunk.norm(x + peer(trunk.norms[0](x))[0])
    torch.testing.assert_close(trunk(tokens).matrix.mT, expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_an_lstm_begins_by_keeping_what_it_holds(both_ways: bool) -> None:
    """Of the four gates in torch's order the second is the one that forgets."""
    biases = {
        name: one.unflatten(0, (4, D))
        for name, one in rnn_layers("lstm", 3, D, 2, bidirectional=both_ways).named_parameters()
        if "bias" in name
    }
    sums = [biases[name] + biases[name.replace("ih", "hh")] for name in biases if "ih" in name]
    assert len(sums) == (4 if both_ways else 2)
    for inputs, forget, *_ in sums:
        assert torch.equal(forget, torch.ones(D))
        assert not torch.equal(inputs, torch.ones(D))


def test_a_bag_knows_no_order_but_that_of_the_past() -> None:
    trunk, tokens, turned = bag("bidirectional"), tokens_of([N]), torch.randperm(N)
    moved = Tokens(*(part[..., turned] for part in tokens))
    torch.testing.assert_close(trunk(moved).matrix, trunk(tokens).matrix[..., turned])


def test_a_bag_serves_a_prefix() -> None:
    trunk, tokens = bag("bidirectional"), tokens_of([N, N])
    some = trunk(tokens, torch.tensor([0, N])).matrix
    torch.testing.assert_close(some[0], trunk(tokens, "causal").matrix[0])
    torch.testing.assert_close(some[1], trunk(tokens, "bidirectional").matrix[1])


@pytest.mark.parametrize("build", TRUNKS)
@pytest.mark.parametrize("view", VIEWS)
def test_gradients_reach_every_parameter_and_the_seed_alone_says_where_they_start(build: Build, view: View) -> None:
    torch.manual_seed(3)
    first = build(view)
    torch.manual_seed(3)
    nn.Embedding(50, 7)
    second = build(view)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    first(tokens_of([N, 4]), view).matrix.square().sum().backward()
    for name, parameter in first.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("build", TRUNKS)
def test_bfloat16_answers_nearly_as_float32(build: Build) -> None:
    trunk, tokens = build("bidirectional"), tokens_of([N, 4])
    with torch.autocast("cpu", torch.bfloat16):
        found = trunk(tokens).matrix.float()
    wanted = trunk(tokens).matrix
    assert (found - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.parametrize("build", TRUNKS)
def test_each_learns_what_its_columns_hold(build: Build) -> None:
    """Whether some column of five is marked: no trunk needs to know more than its columns."""
    trunk, head = build("bidirectional"), ClassificationHead(["no", "yes"], D)
    marked = torch.arange(64) % 2
    matrix = torch.randn(64, D, 5) / 4
    matrix[torch.arange(64), 0, torch.randint(5, (64,))] += 3 * marked
    tokens = Tokens(matrix, torch.ones(64, 5, dtype=torch.bool), torch.arange(5).expand(64, 1, -1))
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=0.01)
    for _ in range(60):
        head.loss(trunk(tokens), marked).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert head.loss(trunk(tokens), marked) < 0.1


@pytest.mark.parametrize("build", TRUNKS)
def test_columns_of_another_width_are_refused(build: Build) -> None:
    tokens = tokens_of([4])
    with pytest.raises(InputError, match=f"columns of D = {2 * D} rows reach a trunk of D = {D}"):
        build("bidirectional")(tokens._replace(matrix=tokens.matrix.repeat(1, 2, 1)))


def test_what_a_trunk_cannot_show_is_refused_with_the_way_out() -> None:
    tokens = tokens_of([4])
    with pytest.raises(InputError, match=r"columns see all.*bidirectional=False the past"):
        recurrent("bidirectional")(tokens, "causal")
    with pytest.raises(InputError, match="columns see past"):
        recurrent("causal")(tokens, "bidirectional")
    with pytest.raises(InputError, match="none a prefix"):
        recurrent("causal")(tokens, torch.tensor([2]))
    with pytest.raises(InputError, match="ask for all or the past"):
        convolutional("bidirectional")(tokens, torch.tensor([2]))
    with pytest.raises(InputError, match="no cell 'rnn'"):
        RecurrentTrunk(D, 1, cell="rnn")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="D = 7 does not split"):
        RecurrentTrunk(7, 1)
    for width in (0, 4):
        with pytest.raises(InputError, match=f"a kernel of {width} columns has no middle"):
            ConvolutionalTrunk(D, 1, kernel_size=width)


@pytest.mark.parametrize("build", [MeanAttentionTrunk, ConvolutionalTrunk, RecurrentTrunk])
def test_fewer_layers_than_none(build: Any) -> None:
    with pytest.raises(InputError, match="a depth of -1 is none: take 0 or more"):
        build(D, -1, **({"ffn_dim": 8} if build is MeanAttentionTrunk else {}))
