"""What a run cost, against torch's own counter and against the machine."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unifier.augmentation.audio import augment_sounds
from unifier.data.dataloader import Batch, collate, lengths_read
from unifier.data.encoding import Encoded, encode_split
from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.experiment import Arm, Experiment, Training
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.transformer_decoder import TranslationHead
from unifier.nn.attention import PLAIN_BELOW
from unifier.training.cost import Ledger, Spent, count_parameters, distinct, flops_of_example, plain_memory
from unifier.training.lightning_module import Unifier
from unifier.trunks.convolutional import Convolutional
from unifier.trunks.mean_attention import Bag
from unifier.trunks.recurrent import Cell, Recurrent
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import FrameTokenizer, PatchTokenizer, Sound, SubwordTokenizer, Units, Vocabulary

D = 16


def text() -> tuple[Arm, list[Example]]:
    source = GrammarPairs(train=30, val=2, test=2)
    examples = list(source.split("train"))[:12]
    vocabulary = Vocabulary.fit((text for pair in examples for text in pair), size=300)
    tokenizer = SubwordTokenizer(vocabulary, D)
    head = TranslationHead(vocabulary, D, depth=1, heads=2, hidden=24, embedding=tokenizer.embedding)
    return Arm(source, tokenizer, head), examples


def pictures() -> tuple[Arm, list[Example]]:
    """Pictures of unlike size, through a convolutional stem."""
    source = Digits()
    examples = [
        Example(np.tile(picture, (1 + k % 3, 1 + k % 2)), label)
        for k, (picture, label) in enumerate(source.split("train")[:6])
    ]
    tokenizer = PatchTokenizer(D, patch=2, channels=1, stem="strided")
    return Arm(source, tokenizer, ClassificationHead(source.labels, D)), examples


def sounds() -> tuple[Arm, list[Example]]:
    """Most pieces are of one length, and a few of others, as in a folder of clips."""
    source = SyntheticMusic(train=4, val=1, test=1, seconds=1.0, task="tags")
    whole = source.split("train")[0]
    lengths = [8000] * 6 + [3000, 4000, 5500, 7000]
    examples = [Example(Sound(whole.input.waveform[..., :n], whole.input.rate), whole.target) for n in lengths]
    return Arm(source, FrameTokenizer(D, rate=8000, stack=4), TaggingHead(source.labels, D)), examples


Road = Callable[[], tuple[Arm, list[Example]]]


TRUNKS: dict[str, Callable[[], Trunk]] = {
    "transformer": lambda: Transformer(D, 2, 2, 24),
    "bag": lambda: Bag(D, 2, 24),
    "recurrent": lambda: Recurrent(D, 2),
    "convolutional": lambda: Convolutional(D, 2),
}


def built(road: Road, trunk: str = "transformer") -> tuple[Unifier, Encoded]:
    torch.manual_seed(0)
    arm, examples = road()
    model = Unifier(Experiment("cost", TRUNKS[trunk](), {"arm": arm}, Training(steps=1)))
    return model, encode_split(examples, arm.tokenizer, arm.head)[0]


def counted(model: Unifier, split: Encoded, row: int) -> int:
    with pytest.MonkeyPatch.context() as patch, plain_memory(), FlopCounterMode(display=False) as counter:
        patch.setitem(PLAIN_BELOW, torch.float32, 10**9)  # torch's counter is blind to the fused kernel on a CPU
        model.loss("arm", collate(split, [row])).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("road", [text, pictures, sounds])
def test_operations_are_those_that_torch_counts_one_example_at_a_time(road: Road, trunk: str) -> None:
    model, split = built(road, trunk)
    model.prepare({"arm": split})
    batch = collate(split, range(len(split)))
    assert not batch.mask.all(), "the batch has examples of unlike length"
    expected = sum(counted(model, split, row) for row in range(len(split)))
    model.training_step(model.transfer_batch_to_device(("arm", batch), model.device, 0), 0)
    spent = model.ledger.all()
    assert spent.flops == pytest.approx(expected, rel=1e-9)
    assert spent.examples == len(split)
    assert spent.tokens == sum(columns for columns, _ in split.lengths())


def test_counting_costs_no_gradient_and_no_random_number() -> None:
    model, split = built(text)
    before = torch.get_rng_state()
    model.prepare({"arm": split})
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_fused_attention_over_many_columns_is_counted_too() -> None:
    """The cost of attention grows as the square of the columns, on whatever kernel it runs."""
    trunk = Transformer(D, 1, 2, 8)
    arm, _ = pictures()
    rng = np.random.RandomState(0)
    examples = [Example(rng.randint(0, 255, (2, 2 * n), np.uint8), "0") for n in (40, 300, 600, 800)]
    tokenizer = PatchTokenizer(D, patch=2, channels=1, length=1000)
    model = Unifier(Experiment("cost", trunk, {"arm": Arm(arm.source, tokenizer, arm.head)}, Training(steps=1)))
    split, _ = encode_split(examples, tokenizer, arm.head)
    cost = flops_of_example(lambda batch: model.loss("arm", batch), split)
    below = counted(model, split, 1)
    assert cost(300, 1) == pytest.approx(below, rel=1e-9)
    scores = 3 * 2 * 2 * D * (800**2 - 2 * 400**2)  # two products of 2 D N^2, and twice as much backward
    assert cost(800, 1) - 2 * cost(400, 1) + cost(0, 1) == pytest.approx(scores, rel=1e-6)


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
def test_layers_of_memory_are_counted(cell: Cell, gates: int) -> None:
    """A trunk of one layer costs more than one of none by two products a column and a gate."""
    arm, examples = pictures()
    costs: list[float] = []
    for depth in (0, 1):
        trunk = Recurrent(D, depth, both_ways=False, cell=cell)
        head = ClassificationHead(Digits.labels, D)
        head.visible = "past"
        model = Unifier(Experiment("cost", trunk, {"arm": Arm(arm.source, arm.tokenizer, head)}, Training(steps=1)))
        split, _ = encode_split(examples, arm.tokenizer, head)
        costs.append(flops_of_example(lambda batch, model=model: model.loss("arm", batch), split)(40, 1).item())
    products = 3 * 2 * 2 * gates * D * D * 40  # twice as much backward as forward
    assert costs[1] - costs[0] == pytest.approx(products, rel=0.03)  # nothing goes back beyond the first state


def long_sounds() -> tuple[Arm, list[Example]]:
    """Songs of one length, and a few shorter ones, in columns of two bands each."""
    arm, examples = sounds()
    tokenizer = FrameTokenizer(D, rate=8000, patch=(4, 32))
    return Arm(arm.source, tokenizer, arm.head), examples


def large_pictures() -> tuple[Arm, list[Example]]:
    """Pictures of one size, through a stem that reads whole rows."""
    source, rng = Digits(), np.random.RandomState(0)
    tokenizer = PatchTokenizer(D, patch=2, channels=1, stem="pooled")
    examples = [Example(rng.randint(0, 255, (30, 26), np.uint8), "0")] * 2
    return Arm(source, tokenizer, ClassificationHead(source.labels, D)), examples


@pytest.mark.parametrize("road", [text, long_sounds, large_pictures])
def test_long_examples_are_told_from_their_beginnings(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never are more columns or tokens read than are said to be, and the cost of the whole is exact."""
    model, split = built(road)
    longest = {text: 8, long_sounds: 30, large_pictures: 140}[road]
    monkeypatch.setattr("unifier.training.cost.LONGEST", longest)
    read = list[int]()

    def loss(batch: Batch) -> torch.Tensor:
        read.extend(int(length) for lengths in batch.lengths() for length in lengths)
        return model.loss("arm", batch)

    cost = flops_of_example(loss, split)
    assert max(read) <= longest < split.lengths().max()
    for row in range(len(split)):
        assert cost(*split.lengths()[row]) == pytest.approx(counted(model, split, row), rel=1e-9)


@pytest.mark.parametrize(("lengths", "each"), [((40, 40), 0), ((40, 30, 36), 8)], ids=["flat", "labels of columns"])
def test_examples_whose_beginnings_cannot_be_read_are_counted_whole(
    lengths: tuple[int, ...], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One map reads all columns at once, or a column has several labels, so that no beginning fits its target."""
    monkeypatch.setattr("unifier.training.cost.LONGEST", 20)
    split, flat, labels = Encoded(), nn.Linear(3 * 40, 2), nn.Linear(3, 8 * 5)
    for index, n in enumerate(lengths):
        units = Units(torch.zeros(3, n), torch.arange(n)[None])
        split.add(units, torch.zeros(n * each).long() if each else torch.tensor(1), index)

    def loss(batch: Batch) -> torch.Tensor:
        found = labels(batch.values.mT).view(-1, 5) if each else flat(batch.values.flatten(1))
        return nn.functional.cross_entropy(found, batch.target.flatten())

    cost = flops_of_example(loss, split)
    for row in range(len(split)):
        with FlopCounterMode(display=False) as counter:
            loss(collate(split, [row])).backward()
        assert cost(*split.lengths()[row]) == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_a_loss_that_fails_of_whole_examples_too_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unifier.training.cost.LONGEST", 20)
    split = Encoded([Units(torch.zeros(3, 40), torch.arange(40)[None])], [torch.tensor(1)], [0])

    def loss(batch: Batch) -> torch.Tensor:
        raise ValueError(f"of {batch.mask.shape[1]} columns")

    with pytest.raises(ValueError, match="of 40 columns"):
        flops_of_example(loss, split)


def test_examples_are_told_apart_in_blocks_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.RandomState(0).randint(1, 9, (500, 2)).astype(np.int32)
    expected = np.unique(lengths, axis=0, return_index=True)
    monkeypatch.setattr("unifier.training.cost.BLOCK", 70)
    for found, wanted in zip(distinct(lengths), expected, strict=True):
        assert found.tolist() == wanted.tolist()


def test_of_a_cropped_sound_no_more_than_a_piece_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a piece is exact, and that of one that stretching made shorter, though no example is as short."""
    arm, examples = sounds()
    assert isinstance(arm.tokenizer, FrameTokenizer)
    arm = replace(arm, augment=augment_sounds(arm.tokenizer, crop=0.25))
    model = Unifier(Experiment("cost", TRUNKS["transformer"](), {"arm": arm}, Training(steps=1)))
    split, own = encode_split(examples, arm.tokenizer, arm.head)[0], model.loss
    read = list[int]()

    def loss(arm: str, batch: Batch) -> torch.Tensor:
        read.append(batch.mask.shape[1])
        return own(arm, batch)

    monkeypatch.setattr(model, "loss", loss)
    model.prepare({"arm": split})
    assert max(read) == lengths_read(split, arm.augment)[:, 0].max() < split.lengths()[:, 0].min()
    for columns in range(2, max(read) + 1):
        units = [Units(*(part[..., :columns] for part in split.units(0)))]
        piece = Encoded(units, [split.target(0)], [0])
        assert model.costs["arm"](*piece.lengths()[0]) == pytest.approx(counted(model, piece, 0), rel=1e-9)


def test_parameters_that_two_parts_share_count_once() -> None:
    arm, _ = text()
    trunk = Transformer(D, 2, 2, 24)
    experiment = Experiment("cost", trunk, {"one": arm, "again": arm}, Training(steps=1))
    counts = count_parameters(experiment)
    model = Unifier(experiment)
    assert counts["total"] == sum(counts[part] for part in ("tokenizer", "trunk", "head"))
    assert counts["total"] == sum(parameter.numel() for parameter in model.parameters())  # torch's own, each once
    assert counts["trunk"] == sum(parameter.numel() for parameter in trunk.parameters())
    assert isinstance(arm.tokenizer, SubwordTokenizer)
    table = arm.tokenizer.embedding.weight.numel()
    assert counts["tokenizer"] >= table
    assert counts["head"] == sum(parameter.numel() for parameter in arm.head.parameters()) - table


def test_parameters_of_several_arms_add_up() -> None:
    arms = {"text": text()[0], "pictures": pictures()[0], "sounds": sounds()[0]}
    counts = count_parameters(Experiment("cost", Transformer(D, 1, 2, 8), arms, Training(steps=1)))
    parts: list[nn.Module] = [part for arm in arms.values() for part in (arm.tokenizer, arm.head)]
    distinct = {parameter for part in parts for parameter in part.parameters()}
    assert counts["tokenizer"] + counts["head"] == sum(parameter.numel() for parameter in distinct)


def test_a_ledger_keeps_each_arm_by_itself_and_goes_on_from_what_it_kept() -> None:
    _, split = built(pictures)
    batch = collate(split, [0, 1])
    ledger = Ledger({"a": Spent(), "b": Spent()})
    ledger.go_on()
    for arm, flops in (("a", 10), ("b", 1), ("a", 5)):
        ledger.count(arm, batch.lengths()[0], flops)
        ledger.clock(arm)
    resumed = Ledger({arm: Spent(**kept) for arm, kept in ledger.by_arm().items()})  # pyright: ignore[reportArgumentType]
    resumed.count("b", batch.lengths()[0], 1)
    assert [resumed.arms[arm].flops for arm in ("a", "b")] == [15, 2]
    assert (resumed.all().examples, resumed.all().flops) == (8, 17)
    assert resumed.all().tokens == 4 * int(batch.mask.sum())
    assert resumed.all().seconds == ledger.all().seconds == sum(spent.seconds for spent in ledger.arms.values()) > 0


def test_a_step_that_arms_share_counts_for_each_and_once_for_all() -> None:
    _, split = built(pictures)
    batch = collate(split, [0])
    ledger = Ledger({"a": Spent(), "b": Spent()}, steps=10)
    for arms in (("a", "b"), ("a", "a"), ("b",)):
        for arm in arms:
            ledger.count(arm, batch.lengths()[0], 1)
        ledger.step()
    assert (ledger.arms["a"].steps, ledger.arms["b"].steps, ledger.all().steps) == (2, 2, 13)


def test_arms_share_the_time_that_is_of_both() -> None:
    ledger = Ledger({"a": Spent(), "b": Spent(), "c": Spent()})
    ledger.go_on()
    time.sleep(0.01)
    ledger.clock("a", "c")
    assert ledger.arms["a"].seconds == ledger.arms["c"].seconds == ledger.all().seconds / 2 > 0


def test_the_clock_stands_while_training_pauses() -> None:
    ledger = Ledger({"a": Spent()})
    ledger.go_on()
    ledger.clock("a")
    ledger.pause()
    before = ledger.all().seconds
    time.sleep(0.05)
    ledger.go_on()
    ledger.go_on()  # a second call starts nothing anew
    ledger.clock("a")
    assert before < ledger.all().seconds < before + 0.05
