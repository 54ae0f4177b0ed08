"""What a run cost, against torch's own counter and against the machine."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unifier.augmentation.audio import augment_audio
from unifier.data.dataloader import Batch, collate, trained_lengths
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.transformer_decoder import TranslationHead
from unifier.nn.attention import FUSED_MIN_KEYS
from unifier.training.cost import (
    Cost,
    CostTracker,
    count_parameters,
    distinct_lengths,
    flops_of_example,
    unprepacked_memory,
)
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import Cell, RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import Audio, FrameTokenizer, PatchTokenizer, SubwordTokenizer, Units, Vocabulary

D = 16


def text() -> tuple[Task, list[Example]]:
    source = GrammarPairs(train=30, val=2, test=2)
    examples = list(source.split("train"))[:12]
    vocabulary = Vocabulary.fit((text for pair in examples for text in pair), size=300)
    tokenizer = SubwordTokenizer(vocabulary, D)
    head = TranslationHead(vocabulary, D, depth=1, heads=2, ffn_dim=24, embedding=tokenizer.embedding)
    return Task(source, tokenizer, head), examples


def pictures() -> tuple[Task, list[Example]]:
    """Pictures of unlike size, through a convolutional stem."""
    source = Digits()
    examples = [
        Example(np.tile(picture, (1 + k % 3, 1 + k % 2)), label)
        for k, (picture, label) in enumerate(source.split("train")[:6])
    ]
    tokenizer = PatchTokenizer(D, patch=2, channels=1, stem="strided")
    return Task(source, tokenizer, ClassificationHead(source.labels, D)), examples


def sounds() -> tuple[Task, list[Example]]:
    """Most pieces are of one length, and a few of others, as in a folder of clips."""
    source = SyntheticMusic(train=4, val=1, test=1, seconds=1.0, target="tags")
    whole = source.split("train")[0]
    lengths = [8000] * 6 + [3000, 4000, 5500, 7000]
    examples = [Example(Audio(whole.input.waveform[..., :n], whole.input.rate), whole.target) for n in lengths]
    return Task(source, FrameTokenizer(D, sample_rate=8000, stack=4), TaggingHead(source.labels, D)), examples


Road = Callable[[], tuple[Task, list[Example]]]


TRUNKS: dict[str, Callable[[], Trunk]] = {
    "transformer": lambda: Transformer(D, 2, 2, 24),
    "bag": lambda: MeanAttentionTrunk(D, 2, 24),
    "recurrent": lambda: RecurrentTrunk(D, 2),
    "convolutional": lambda: ConvolutionalTrunk(D, 2),
}


def built(road: Road, trunk: str = "transformer") -> tuple[UnifierModule, EncodedSplit]:
    torch.manual_seed(0)
    task, examples = road()
    model = UnifierModule(Experiment(TRUNKS[trunk](), {"task": task}, Training(steps=1), name="cost"))
    return model, encode_split(examples, task.tokenizer, task.head)[0]


def counted(model: UnifierModule, split: EncodedSplit, row: int) -> int:
    with pytest.MonkeyPatch.context() as patch, unprepacked_memory(), FlopCounterMode(display=False) as counter:
        patch.setitem(FUSED_MIN_KEYS, torch.float32, 10**9)  # torch's counter is blind to the fused kernel on a CPU
        model.loss("task", collate(split, [row])).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("road", [text, pictures, sounds])
def test_operations_are_those_that_torch_counts_one_example_at_a_time(road: Road, trunk: str) -> None:
    model, split = built(road, trunk)
    model.prepare({"task": split})
    batch = collate(split, range(len(split)))
    assert not batch.mask.all(), "the batch has examples of unlike length"
    expected = sum(counted(model, split, row) for row in range(len(split)))
    model.training_step(model.transfer_batch_to_device(("task", batch), model.device, 0), 0)
    spent = model.cost_tracker.total()
    assert spent.flops == pytest.approx(expected, rel=1e-9)
    assert spent.examples == len(split)
    assert spent.tokens == sum(columns for columns, _ in split.lengths())


def test_counting_costs_no_gradient_and_no_random_number() -> None:
    model, split = built(text)
    before = torch.get_rng_state()
    model.prepare({"task": split})
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_fused_attention_over_many_columns_is_counted_too() -> None:
    """The cost of attention grows as the square of the columns, on whatever kernel it runs."""
    trunk = Transformer(D, 1, 2, 8)
    task, _ = pictures()
    rng = np.random.RandomState(0)
    examples = [Example(rng.randint(0, 255, (2, 2 * n), np.uint8), "0") for n in (40, 300, 600, 800)]
    tokenizer = PatchTokenizer(D, patch=2, channels=1, length=1000)
    model = UnifierModule(
        Experiment(trunk, {"task": Task(task.source, tokenizer, task.head)}, Training(steps=1), name="cost")
    )
    split, _ = encode_split(examples, tokenizer, task.head)
    cost = flops_of_example(lambda batch: model.loss("task", batch), split)
    below = counted(model, split, 1)
    assert cost(300, 1) == pytest.approx(below, rel=1e-9)
    scores = 3 * 2 * 2 * D * (800**2 - 2 * 400**2)  # two products of 2 D N^2, and twice as much backward
    assert cost(800, 1) - 2 * cost(400, 1) + cost(0, 1) == pytest.approx(scores, rel=1e-6)


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
def test_layers_of_memory_are_counted(cell: Cell, gates: int) -> None:
    """A trunk of one layer costs more than one of none by two products a column and a gate."""
    task, examples = pictures()
    costs: list[float] = []
    for depth in (0, 1):
        trunk = RecurrentTrunk(D, depth, bidirectional=False, cell=cell)
        head = ClassificationHead(Digits.labels, D)
        head.attention_mode = "causal"
        model = UnifierModule(
            Experiment(trunk, {"task": Task(task.source, task.tokenizer, head)}, Training(steps=1), name="cost")
        )
        split, _ = encode_split(examples, task.tokenizer, head)
        costs.append(flops_of_example(lambda batch, model=model: model.loss("task", batch), split)(40, 1).item())
    products = 3 * 2 * 2 * gates * D * D * 40  # twice as much backward as forward
    assert costs[1] - costs[0] == pytest.approx(products, rel=0.03)  # nothing goes back beyond the first state


def long_sounds() -> tuple[Task, list[Example]]:
    """Songs of one length, and a few shorter ones, in columns of two bands each."""
    task, examples = sounds()
    tokenizer = FrameTokenizer(D, sample_rate=8000, patch=(4, 32))
    return Task(task.source, tokenizer, task.head), examples


def large_pictures() -> tuple[Task, list[Example]]:
    """Pictures of one size, through a stem that reads whole rows."""
    source, rng = Digits(), np.random.RandomState(0)
    tokenizer = PatchTokenizer(D, patch=2, channels=1, stem="pooled")
    examples = [Example(rng.randint(0, 255, (30, 26), np.uint8), "0")] * 2
    return Task(source, tokenizer, ClassificationHead(source.labels, D)), examples


@pytest.mark.parametrize("road", [text, long_sounds, large_pictures])
def test_long_examples_are_told_from_their_beginnings(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never are more columns or tokens read than are said to be, and the cost of the whole is exact."""
    model, split = built(road)
    longest = {text: 8, long_sounds: 30, large_pictures: 140}[road]
    monkeypatch.setattr("unifier.training.cost.LONGEST", longest)
    read = list[int]()

    def loss(batch: Batch) -> torch.Tensor:
        read.extend(int(length) for lengths in batch.lengths() for length in lengths)
        return model.loss("task", batch)

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
    split, flat, labels = EncodedSplit(), nn.Linear(3 * 40, 2), nn.Linear(3, 8 * 5)
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
    split = EncodedSplit([Units(torch.zeros(3, 40), torch.arange(40)[None])], [torch.tensor(1)], [0])

    def loss(batch: Batch) -> torch.Tensor:
        raise ValueError(f"of {batch.mask.shape[1]} columns")

    with pytest.raises(ValueError, match="of 40 columns"):
        flops_of_example(loss, split)


def test_examples_are_told_apart_in_blocks_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.RandomState(0).randint(1, 9, (500, 2)).astype(np.int32)
    expected = np.unique(lengths, axis=0, return_index=True)
    monkeypatch.setattr("unifier.training.cost.BLOCK", 70)
    for found, wanted in zip(distinct_lengths(lengths), expected, strict=True):
        assert found.tolist() == wanted.tolist()


def test_of_a_cropped_sound_no_more_than_a_piece_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a piece is exact, and that of one that stretching made shorter, though no example is as short."""
    task, examples = sounds()
    assert isinstance(task.tokenizer, FrameTokenizer)
    task = replace(task, augment=augment_audio(task.tokenizer, crop=0.25))
    model = UnifierModule(Experiment(TRUNKS["transformer"](), {"task": task}, Training(steps=1), name="cost"))
    split, own = encode_split(examples, task.tokenizer, task.head)[0], model.loss
    read = list[int]()

    def loss(task: str, batch: Batch) -> torch.Tensor:
        read.append(batch.mask.shape[1])
        return own(task, batch)

    monkeypatch.setattr(model, "loss", loss)
    model.prepare({"task": split})
    assert max(read) == trained_lengths(split, task.augmentation)[:, 0].max() < split.lengths()[:, 0].min()
    for columns in range(2, max(read) + 1):
        units = [Units(*(part[..., :columns] for part in split.units(0)))]
        piece = EncodedSplit(units, [split.target(0)], [0])
        assert model.costs["task"](*piece.lengths()[0]) == pytest.approx(counted(model, piece, 0), rel=1e-9)


def test_parameters_that_two_parts_share_count_once() -> None:
    task, _ = text()
    trunk = Transformer(D, 2, 2, 24)
    experiment = Experiment(trunk, {"one": task, "again": task}, Training(steps=1), name="cost")
    counts = count_parameters(experiment)
    model = UnifierModule(experiment)
    assert counts["total"] == sum(counts[part] for part in ("tokenizer", "trunk", "head"))
    assert counts["total"] == sum(parameter.numel() for parameter in model.parameters())  # torch's own, each once
    assert counts["trunk"] == sum(parameter.numel() for parameter in trunk.parameters())
    assert isinstance(task.tokenizer, SubwordTokenizer)
    table = task.tokenizer.embedding.weight.numel()
    assert counts["tokenizer"] >= table
    assert counts["head"] == sum(parameter.numel() for parameter in task.head.parameters()) - table


def test_parameters_of_several_tasks_add_up() -> None:
    tasks = {"text": text()[0], "pictures": pictures()[0], "sounds": sounds()[0]}
    counts = count_parameters(Experiment(Transformer(D, 1, 2, 8), tasks, Training(steps=1), name="cost"))
    parts: list[nn.Module] = [part for task in tasks.values() for part in (task.tokenizer, task.head)]
    distinct = {parameter for part in parts for parameter in part.parameters()}
    assert counts["tokenizer"] + counts["head"] == sum(parameter.numel() for parameter in distinct)


def test_a_ledger_keeps_each_task_by_itself_and_goes_on_from_what_it_kept() -> None:
    _, split = built(pictures)
    batch = collate(split, [0, 1])
    ledger = CostTracker({"a": Cost(), "b": Cost()})
    ledger.start()
    for task, flops in (("a", 10), ("b", 1), ("a", 5)):
        ledger.count(task, batch.lengths()[0], flops)
        ledger.clock(task)
    resumed = CostTracker({task: Cost(**kept) for task, kept in ledger.by_task().items()})  # pyright: ignore[reportArgumentType]
    resumed.count("b", batch.lengths()[0], 1)
    assert [resumed.tasks[task].flops for task in ("a", "b")] == [15, 2]
    assert (resumed.total().examples, resumed.total().flops) == (8, 17)
    assert resumed.total().tokens == 4 * int(batch.mask.sum())
    assert (
        resumed.total().seconds == ledger.total().seconds == sum(spent.seconds for spent in ledger.tasks.values()) > 0
    )


def test_a_step_that_tasks_share_counts_for_each_and_once_for_all() -> None:
    _, split = built(pictures)
    batch = collate(split, [0])
    ledger = CostTracker({"a": Cost(), "b": Cost()}, steps=10)
    for tasks in (("a", "b"), ("a", "a"), ("b",)):
        for task in tasks:
            ledger.count(task, batch.lengths()[0], 1)
        ledger.step()
    assert (ledger.tasks["a"].steps, ledger.tasks["b"].steps, ledger.total().steps) == (2, 2, 13)


def test_tasks_share_the_time_that_is_of_both() -> None:
    ledger = CostTracker({"a": Cost(), "b": Cost(), "c": Cost()})
    ledger.start()
    time.sleep(0.01)
    ledger.clock("a", "c")
    assert ledger.tasks["a"].seconds == ledger.tasks["c"].seconds == ledger.total().seconds / 2 > 0


def test_the_clock_stands_while_training_pauses() -> None:
    ledger = CostTracker({"a": Cost()})
    ledger.start()
    ledger.clock("a")
    ledger.pause()
    before = ledger.total().seconds
    time.sleep(0.05)
    ledger.start()
    ledger.start()  # a second call starts nothing anew
    ledger.clock("a")
    assert before < ledger.total().seconds < before + 0.05
