"""What is frozen stays as it is, and all else learns."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from unifier.data.dataloader import collate
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.datasets.digits import Digits
from unifier.experiment import PARTS, Experiment, Task, Training, TrunkPart
from unifier.heads.classification import ClassificationHead
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PatchTokenizer

D = 8


def transformer() -> Trunk:
    return Transformer(D, 2, 2, 12)


def model(trunk: Trunk, *frozen: TrunkPart) -> UnifierModule:
    source = Digits(val=10, test=10)
    task = Task(source, PatchTokenizer(D, channels=1, positions="learned"), ClassificationHead(source.labels, D))
    return UnifierModule(Experiment(trunk, {"digits": task}, Training(steps=1, frozen=frozen), name="frozen"))


def moved(one: UnifierModule) -> set[str]:
    """The parameters that a step changes."""
    task = one.tasks["digits"]
    split, _ = encode_split(list(open_split(task.source, "train"))[:8], task.tokenizer, task.head)
    before = {name: parameter.detach().clone() for name, parameter in one.named_parameters()}
    one.loss("digits", collate(split, range(8))).backward()
    found = one.configure_optimizers()  # its scheduler is what holds the optimizer
    found["optimizer"].step()
    return {name for name, parameter in one.named_parameters() if not torch.equal(parameter, before[name])}


def of(part: TrunkPart, name: str) -> bool:
    """Whether a parameter of the model above belongs to a part, by its name alone."""
    if not name.startswith("trunk."):
        return name.startswith(f"{part}s.") or (part == "positions" and ".encoding." in name)
    here = "norms" if "norm" in name else "feed_forward" if "feed_forward" in name else "attention"
    return part == here


@pytest.mark.parametrize("part", PARTS)
def test_a_frozen_part_stays_and_all_else_learns(part: TrunkPart) -> None:
    everything = {name for name, _ in model(transformer()).named_parameters()}
    still = everything - moved(model(transformer(), part))
    assert still == {name for name in everything if of(part, name)} != set()


@pytest.mark.parametrize(
    "make",
    [transformer, lambda: MeanAttentionTrunk(D, 2, 12), lambda: RecurrentTrunk(D, 2), lambda: ConvolutionalTrunk(D, 2)],
    ids=["transformer", "bag", "recurrent", "convolutional"],
)
def test_three_parts_are_the_whole_of_any_trunk(make: Callable[[], Trunk]) -> None:
    parts: tuple[TrunkPart, ...] = (
        ("norms", "attention", "feed_forward") if hasattr(make(), "blocks") else ("norms", "attention")
    )
    assert not any(name.startswith("trunk.") for name in moved(model(make(), *parts)))
    assert any(name.startswith("trunk.") for name in moved(model(make(), *parts[1:])))


def test_freezing_what_is_not_there_changes_nothing_and_is_refused() -> None:
    with pytest.raises(InputError, match='frozen="feed_forward": this model has no such part'):
        model(RecurrentTrunk(D, 1), "feed_forward")
    with pytest.raises(InputError, match="nroms"):
        model(transformer(), "nroms")  # pyright: ignore[reportArgumentType]


def test_what_is_frozen_costs_fewer_operations() -> None:
    def cost(*frozen: TrunkPart) -> float:
        one = model(transformer(), *frozen)
        task = one.tasks["digits"]
        one.prepare({"digits": encode_split(list(open_split(task.source, "train"))[:4], task.tokenizer, task.head)[0]})
        return float(one.costs["digits"](16, 1))

    # Of a product's three (forward, to its input, to its weight) the last is left out.
    assert 0.6 < cost("attention", "feed_forward") / cost() < 0.8


def test_a_shared_table_is_frozen_once_and_for_both() -> None:
    one = model(transformer())
    embedding = nn.Embedding(3, D)
    one.tokenizers["digits"].register_module("table", embedding)
    one.heads["digits"].register_module("table", embedding)
    from unifier.experiment import freeze

    freeze(("tokenizer",), one.trunk, one.tokenizers.values(), one.heads.values())
    assert not embedding.weight.requires_grad
