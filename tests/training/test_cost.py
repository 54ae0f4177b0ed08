"""Costs are those of torch's own counter, and are charged to the right tasks."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unifier import ConvolutionalTrunk, Example, MeanAttentionTrunk, Transformer, TranslationHead, Trunk
from unifier.augmentation.audio import augment_audio
from unifier.data.dataloader import Batch, collate, trained_lengths
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.datasets import Digits, GrammarPairs, SyntheticMusic
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.nn.attention import FUSED_MIN_KEYS
from unifier.training import cost
from unifier.training.cost import Cost, CostTracker, count_parameters, flops_of_example
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.recurrent import Cell, RecurrentTrunk
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
    """Return pictures of different sizes, with a convolutional stem."""
    source = Digits()
    examples = [
        Example(np.tile(picture, (1 + k % 3, 1 + k % 2)), label)
        for k, (picture, label) in enumerate(source.split("train")[:6])
    ]
    tokenizer = PatchTokenizer(D, patch=2, channels=1, stem="strided")
    return Task(source, tokenizer, ClassificationHead(source.labels, D)), examples


def sounds() -> tuple[Task, list[Example]]:
    """Return sounds of mostly one length, as in a folder of clips."""
    source = SyntheticMusic(train=4, val=1, test=1, seconds=1.0, target="tags")
    whole = source.split("train")[0]
    lengths = [8000] * 6 + [3000, 4000, 5500, 7000]
    examples = [Example(Audio(whole.input.waveform[..., :n], whole.input.sample_rate), whole.target) for n in lengths]
    return Task(source, FrameTokenizer(D, sample_rate=8000, stack=4), TaggingHead(source.labels, D)), examples


MakeTask = Callable[[], tuple[Task, list[Example]]]


TRUNKS: dict[str, Callable[[], Trunk]] = {
    "transformer": lambda: Transformer(D, 2, 2, 24),
    "mean_attention": lambda: MeanAttentionTrunk(D, 2, 24),
    "recurrent": lambda: RecurrentTrunk(D, 2),
    "convolutional": lambda: ConvolutionalTrunk(D, 2),
}


def model_of(trunk: Trunk, task: Task) -> UnifierModule:
    return UnifierModule(Experiment(trunk, {"task": task}, Training(steps=1), name="cost"))


def build(make: MakeTask, trunk: str = "transformer") -> tuple[UnifierModule, EncodedSplit]:
    torch.manual_seed(0)
    task, examples = make()
    return model_of(TRUNKS[trunk](), task), encode_split(examples, task.tokenizer, task.head)[0]


def count_with_torch(model: UnifierModule, split: EncodedSplit, row: int) -> int:
    with pytest.MonkeyPatch.context() as patch, cost.without_fused_rnn(), FlopCounterMode(display=False) as counter:
        patch.setitem(FUSED_MIN_KEYS, torch.float32, 10**9)  # torch does not count the fused kernel on a CPU.
        model.loss("task", collate(split, [row])).backward()
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("make", [text, pictures, sounds])
def test_flops_equal_torch_counter(make: MakeTask, trunk: str) -> None:
    model, split = build(make, trunk)
    before = torch.get_rng_state()
    model.prepare({"task": split})
    assert torch.equal(before, torch.get_rng_state()), "counting leaves no trace"
    assert all(parameter.grad is None for parameter in model.parameters())
    batch = collate(split, range(len(split)))
    assert not batch.mask.all(), "the batch has examples of different lengths"
    expected = sum(count_with_torch(model, split, row) for row in range(len(split)))
    model.training_step(model.transfer_batch_to_device(("task", batch), model.device, 0), 0)
    spent = model.cost_tracker.total()
    assert spent.flops == pytest.approx(expected, rel=1e-9)
    assert spent.examples == len(split)
    assert spent.tokens == sum(columns for columns, _ in split.lengths())


@pytest.mark.slow
def test_fused_attention_is_counted() -> None:
    (task, _), rng = pictures(), np.random.RandomState(0)
    examples = [Example(rng.randint(0, 255, (2, 2 * n), np.uint8), "0") for n in (40, 300, 600, 800)]
    tokenizer = PatchTokenizer(D, patch=2, channels=1, length=1000)
    model = model_of(Transformer(D, 1, 2, 8), Task(task.source, tokenizer, task.head))
    split, _ = encode_split(examples, tokenizer, task.head)
    count = flops_of_example(lambda batch: model.loss("task", batch), split)
    below = count_with_torch(model, split, 1)
    assert count(300, 1) == pytest.approx(below, rel=1e-9)
    scores = 3 * 2 * 2 * D * (800**2 - 2 * 400**2)  # Two products of 2 D N^2, and twice as much backward.
    assert count(800, 1) - 2 * count(400, 1) + count(0, 1) == pytest.approx(scores, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
def test_recurrent_layers_are_counted(cell: Cell, gates: int) -> None:
    task, examples = pictures()
    costs: list[float] = []
    for depth in (0, 1):
        trunk = RecurrentTrunk(D, depth, bidirectional=False, cell=cell)
        head = ClassificationHead(Digits.labels, D)
        head.attention_mode = "causal"
        model = model_of(trunk, Task(task.source, task.tokenizer, head))
        split, _ = encode_split(examples, task.tokenizer, head)
        costs.append(flops_of_example(lambda batch, model=model: model.loss("task", batch), split)(40, 1).item())
    products = 3 * 2 * 2 * gates * D * D * 40  # The backward pass takes twice as much.
    assert costs[1] - costs[0] == pytest.approx(products, rel=0.03)  # No gradient flows beyond the first state.


def long_sounds() -> tuple[Task, list[Example]]:
    """Return the sounds with two bands per frame."""
    task, examples = sounds()
    tokenizer = FrameTokenizer(D, sample_rate=8000, patch=(4, 32))
    return Task(task.source, tokenizer, task.head), examples


def large_pictures(width: int = 26) -> tuple[Task, list[Example]]:
    """Return pictures of one size, with a stem that reads whole rows."""
    source, rng = Digits(), np.random.RandomState(0)
    tokenizer = PatchTokenizer(D, patch=2, channels=1, stem="pooled")
    examples = [Example(rng.randint(0, 255, (30, width), np.uint8), "0")] * 2
    return Task(source, tokenizer, ClassificationHead(source.labels, D)), examples


@pytest.mark.slow
@pytest.mark.parametrize("make", [text, long_sounds, large_pictures])
def test_long_examples_are_counted_in_parts(make: MakeTask) -> None:
    model, split = build(make)
    longest = {text: 8, long_sounds: 30, large_pictures: 140}[make]
    read = list[int]()

    def loss(batch: Batch) -> torch.Tensor:
        read.extend(int(length) for lengths in batch.lengths() for length in lengths)
        return model.loss("task", batch)

    count = flops_of_example(loss, split, max_length=longest)
    assert max(read) <= longest < split.lengths().max()
    for row in range(len(split)):
        assert count(*split.lengths()[row]) == pytest.approx(count_with_torch(model, split, row), rel=1e-9)


@pytest.mark.slow
def test_pictures_are_counted_by_whole_rows() -> None:
    model, split = build(lambda: large_pictures(width=8))
    read = list[int]()

    def loss(batch: Batch) -> torch.Tensor:
        read.append(batch.mask.shape[1])
        return model.loss("task", batch)

    count = flops_of_example(loss, split, max_length=31)
    assert sorted(set(read)) == [4, 12, 28]  # 31, 15 and 7 tokens, without the 3 tokens of a cut row.
    assert count(*split.lengths()[0]) == pytest.approx(count_with_torch(model, split, 0), rel=1e-9)


@pytest.mark.parametrize(("lengths", "each"), [((40, 40), 0), ((40, 30, 36), 8)], ids=["flat", "labels of columns"])
def test_uncuttable_examples_are_counted_whole(lengths: tuple[int, ...], each: int) -> None:
    """A layer may read all tokens together, and a token may have several labels; then no part fits its target."""
    split, flat, labels = EncodedSplit(), nn.Linear(3 * 40, 2), nn.Linear(3, 8 * 5)
    for index, n in enumerate(lengths):
        units = Units(torch.zeros(3, n), torch.arange(n)[None])
        split.add(units, torch.zeros(n * each).long() if each else torch.tensor(1), index)

    def loss(batch: Batch) -> torch.Tensor:
        found = labels(batch.values.mT).view(-1, 5) if each else flat(batch.values.flatten(1))
        return nn.functional.cross_entropy(found, batch.target.flatten())

    count = flops_of_example(loss, split, max_length=20)
    for row in range(len(split)):
        with FlopCounterMode(display=False) as counter:
            loss(collate(split, [row])).backward()
        assert count(*split.lengths()[row]) == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_error_of_the_loss_is_raised() -> None:
    split = EncodedSplit([Units(torch.zeros(3, 40), torch.arange(40)[None])], [torch.tensor(1)], [0])
    with pytest.raises(RuntimeError, match="size 120"):
        flops_of_example(lambda batch: batch.values.view(7), split, max_length=20)


def test_distinct_lengths_in_blocks_equal_numpy() -> None:
    lengths = np.random.RandomState(0).randint(1, 9, (500, 2)).astype(np.int32)
    expected = np.unique(lengths, axis=0, return_index=True)
    for result, reference in zip(cost.distinct_lengths(lengths, block=70), expected, strict=True):
        assert result.tolist() == reference.tolist()


@pytest.mark.slow
def test_cropped_sound_is_counted_by_its_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter crops, such as those of stretched sounds, are exact too, although no example is as short."""
    task, examples = sounds()
    assert isinstance(task.tokenizer, FrameTokenizer)
    task = replace(task, augmentation=augment_audio(task.tokenizer, crop=0.25))
    model = model_of(TRUNKS["transformer"](), task)
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
        assert model.costs["task"](*piece.lengths()[0]) == pytest.approx(count_with_torch(model, piece, 0), rel=1e-9)


def test_shared_parameters_count_once() -> None:
    task, _ = text()
    trunk = Transformer(D, 2, 2, 24)
    experiment = Experiment(trunk, {"one": task, "again": task}, Training(steps=1), name="cost")
    counts = count_parameters(experiment)
    model = UnifierModule(experiment)
    assert counts["total"] == sum(counts[part] for part in ("tokenizer", "trunk", "head"))
    # torch counts each parameter once.
    assert counts["total"] == sum(map(torch.numel, model.parameters()))
    assert counts["trunk"] == sum(map(torch.numel, trunk.parameters()))
    assert isinstance(task.tokenizer, SubwordTokenizer)
    table = task.tokenizer.embedding.weight.numel()
    assert counts["tokenizer"] >= table
    assert counts["head"] == sum(map(torch.numel, task.head.parameters())) - table
    tasks = {"text": text()[0], "pictures": pictures()[0], "sounds": sounds()[0]}
    counts = count_parameters(Experiment(Transformer(D, 1, 2, 8), tasks, Training(steps=1), name="cost"))
    parts: list[nn.Module] = [part for task in tasks.values() for part in (task.tokenizer, task.head)]
    distinct = {parameter for part in parts for parameter in part.parameters()}
    assert counts["tokenizer"] + counts["head"] == sum(map(torch.numel, distinct)), "those of several tasks add up"


def test_tracker_resumes_each_task() -> None:
    _, split = build(pictures)
    batch = collate(split, [0, 1])
    tracker = CostTracker({"a": Cost(), "b": Cost()})
    tracker.start()
    for task, flops in (("a", 10), ("b", 1), ("a", 5)):
        tracker.count(task, batch.lengths()[0], flops)
        tracker.clock(task)
    resumed = CostTracker({task: Cost(**kept) for task, kept in tracker.by_task().items()})  # pyright: ignore[reportArgumentType]
    resumed.count("b", batch.lengths()[0], 1)
    assert [resumed.tasks[task].flops for task in ("a", "b")] == [15, 2]
    assert (resumed.total().examples, resumed.total().flops) == (8, 17)
    assert resumed.total().tokens == 4 * int(batch.mask.sum())
    seconds = sum(spent.seconds for spent in tracker.tasks.values())
    assert resumed.total().seconds == tracker.total().seconds == seconds > 0


def test_shared_step_counts_once_in_total() -> None:
    _, split = build(pictures)
    batch = collate(split, [0])
    tracker = CostTracker({"a": Cost(), "b": Cost()}, steps=10)
    for tasks in (("a", "b"), ("a", "a"), ("b",)):
        for task in tasks:
            tracker.count(task, batch.lengths()[0], 1)
        tracker.step()
    assert (tracker.tasks["a"].steps, tracker.tasks["b"].steps, tracker.total().steps) == (2, 2, 13)


def test_clock_divides_time_and_may_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: sum(passed))
    tracker = CostTracker({"a": Cost(), "b": Cost(), "c": Cost()})
    tracker.start()
    passed.append(3.0)
    tracker.clock("a", "c")
    tracker.pause()
    passed.append(10.0)
    tracker.start()
    passed.append(2.0)
    tracker.start()  # The clock runs already, and is not set back.
    tracker.clock("a")
    assert [tracker.tasks[task].seconds for task in "abc"] == [3.5, 0, 1.5]
    assert tracker.total().seconds == 5
