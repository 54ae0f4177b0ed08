"""Objectives: the targets come from the inputs, and the random numbers from the example, and in training the step."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import pytest
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, EvalDataLoader, Objective, TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.datasets import Digits
from unifier.experiment import Experiment, Task, Training
from unifier.heads.head import Head
from unifier.training.cost import flops_of_example
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, Tokens, Units


@final
class DropHalf(Objective):
    """Drop the second half of the tokens. The target is a random number."""

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        drawn = torch.stack([torch.randint(1 << 30, (1,), generator=generator) for generator in generators])
        n = batch.mask.shape[1] // 2
        return Batch(batch.values[..., :n], batch.positions[..., :n], batch.mask[:, :n], drawn, batch.example_indices)


@final
class DrawnHead(Head):
    """Return the targets of the objective as predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(16, 1)

    def encode(self, target: object) -> Tensor:
        return torch.tensor(0)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return self.out(tokens.matrix.mT).mean()

    def predict(self, tokens: Tokens) -> list[int]:
        return [0] * len(tokens.mask)

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[int]:
        return target[:, 0].tolist()

    def metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> Mapping[str, float]:
        return {"mean": float(sum(predictions)) / len(predictions)}


SPLIT = EncodedSplit(
    [Units(torch.randn(4, 8), torch.arange(8)[None]) for _ in range(6)], [torch.tensor(0)] * 6, range(6)
)


def train_targets(seed: int, steps: int, max_tokens: int = 16) -> list[dict[int, int]]:
    loader = TrainDataLoader(
        {"a": SPLIT}, max_tokens=max_tokens, seed=seed, budget={"steps": steps}, objectives={"a": DropHalf()}
    )
    return [dict(zip(b.example_indices.tolist(), b.target[:, 0].tolist(), strict=True)) for _, b in loader]


def eval_targets(max_tokens: int) -> dict[int, int]:
    loader = EvalDataLoader({"a": SPLIT}, max_tokens=max_tokens, objectives={"a": DropHalf()})
    return {
        i: drawn
        for _, batch in loader
        for i, drawn in zip(batch.example_indices.tolist(), batch.target[:, 0].tolist(), strict=True)
    }


def test_random_numbers_of_training_depend_on_seed_step_and_example() -> None:
    first = train_targets(0, 12)
    assert first == train_targets(0, 12)
    drawn = [number for batch in (*first, *train_targets(1, 12)) for number in batch.values()]
    assert len(set(drawn)) == len(drawn)


def test_random_numbers_of_evaluation_depend_on_the_example_alone() -> None:
    assert eval_targets(8) == eval_targets(1000)
    assert len(set(eval_targets(8).values())) == len(SPLIT)


def test_cost_counts_the_tokens_that_the_objective_leaves() -> None:
    def loss(batch: Batch) -> Tensor:
        return (batch.values.mT @ torch.ones(4, 2, requires_grad=True)).sum()

    whole, half = (flops_of_example(loss, SPLIT, None, objective) for objective in (None, DropHalf()))
    assert half(4, 1) / whole(8, 1) == pytest.approx(0.5)


def test_validation_scores_the_targets_of_the_objective() -> None:
    task = Task(Digits(), PatchTokenizer(16, channels=1), DrawnHead(), objective=DropHalf())
    model = UnifierModule(Experiment(Transformer(16, 1, 2, 16), {"a": task}, Training(steps=1)))
    units = task.tokenizer.encode(Digits().split("val")[0].input)
    loader = EvalDataLoader({"a": EncodedSplit([units], [torch.tensor(0)], [7])}, max_tokens=100)
    loader.objectives = {"a": DropHalf()}
    (batch,) = loader
    model.validation_step(batch, 0)
    assert model.predictions["a"] == {7: batch[1].target.item()}


def test_objective_and_test_time_augmentation_are_refused() -> None:
    with pytest.raises(InputError, match="tta"):
        Task(Digits(), PatchTokenizer(16, channels=1), DrawnHead(), objective=DropHalf(), tta=object())  # pyright: ignore[reportArgumentType]
