"""Users' own heads, trunks, tokenizers and comparisons: what works, and the error for what does not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unifier import ClassificationHead, Comparison, Experiment, Transformer, Trunk, run
from unifier.data.dataloader import Augmentation, Batch, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.datasets import Digits
from unifier.experiment import ModelPart, Task, Training, trunk_parts
from unifier.heads.head import Head
from unifier.nn.attention import AttentionMode
from unifier.training.cost import flops_of_example
from unifier.training.lightning_module import UnifierModule
from unifier.trials.joint import shuffle
from unifier.trials.plan import plan_trials
from unifier_tokenizers import ContractError, InputError, PatchTokenizer, Tokenizer, Tokens, Units, check_tokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

D = 8
Metrics = Callable[[Sequence[str], Sequence[str]], dict[str, Any]]


class Own(Trunk):
    """A norm and a linear layer; it may return two tokens only, or a matrix."""

    norm: nn.Module

    def __init__(self, gives: str = "all") -> None:
        super().__init__()
        self.dim, self.map, self.gives = D, nn.Linear(D, D), gives

    def given(self, norm: nn.Module) -> Self:
        self.norm = norm
        return self

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Any:
        matrix = self.map(self.norm(tokens.matrix.mT.flatten(0, 1))).unflatten(0, (len(tokens.mask), -1)).mT
        if self.gives == "matrix":
            return matrix
        read = Tokens(matrix, tokens.mask, tokens.positions)
        return Tokens(*(part[..., :2] for part in read)) if self.gives == "two" else read


class Scored(Head):
    """A regression head with a given function as metrics."""

    own: Metrics

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(D, 1)

    def given(self, metrics: Metrics) -> Self:
        self.own = metrics
        return self

    def encode(self, target: str) -> Tensor:
        return torch.tensor(float(target))

    def level(self, tokens: Tokens) -> Tensor:
        return self.out(tokens.matrix.mean(2))[:, 0]

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return (self.level(tokens) - target).square().mean()

    def predict(self, tokens: Tokens) -> Sequence[Any]:
        return self.level(tokens).tolist()

    def metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
        return self.own(predictions, targets)


def create_experiment(trunk: Trunk | None = None, head: Head | None = None, *frozen: ModelPart) -> Experiment:
    source = Digits(val=10, test=10)
    task = Task(source, PatchTokenizer(D, channels=1), head or ClassificationHead(source.labels, D))
    training = Training(steps=1, batch_tokens=128, num_validations=1, num_workers=0, frozen=frozen)
    return Experiment(trunk or Transformer(D, 1, 2, 12), {"digits": task}, training, name="own")


def one(*, fold: int = 0) -> Experiment:
    return create_experiment()


def shared(*, share: float = 0.3) -> Experiment:
    return create_experiment()


def seeded(*, seed: int = 0) -> Experiment:
    return create_experiment()


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.float32, torch.tensor])
def test_metrics_may_be_numbers_of_any_library(tmp_path: Path, number: Callable[[float], Any]) -> None:
    def scored() -> Experiment:
        return create_experiment(None, Scored().given(lambda predictions, targets: {"own": number(0.5)}))

    [result] = run(scored, out=tmp_path, track="off")
    assert json.loads((result.folder / "result.json").read_text())["metrics"]["test/digits/own"] == 0.5


@pytest.mark.parametrize(
    ("found", "said"), [({}, "empty"), ({"own": "good"}, "'good'"), ({"own": torch.zeros(2)}, "single number")]
)
def test_metrics_without_numbers_are_refused(found: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"Scored.metrics .*{said}"):
        Scored().given(lambda predictions, targets: found).checked_metrics([], [])


@pytest.mark.parametrize(("gives", "said"), [("matrix", "Own .* Tensor"), ("two", r"Own .*\(3, 8, 2\)")])
def test_trunk_with_another_output_is_refused(gives: str, said: str) -> None:
    tokens = Tokens(torch.zeros(3, D, 4), torch.ones(3, 4, dtype=torch.bool), torch.zeros(3, 1, 4, dtype=torch.long))
    with pytest.raises(InputError, match=said):
        ClassificationHead(("a", "b"), D).run_trunk(Own(gives).given(nn.LayerNorm(D)), tokens)


@pytest.mark.parametrize("norm", [nn.LayerNorm(D), nn.RMSNorm(D), nn.GroupNorm(2, D), nn.BatchNorm1d(D)])
def test_norms_of_every_class_are_norms(norm: nn.Module) -> None:
    assert set(trunk_parts(Own().given(norm))["norms"]) == set(norm.parameters())


def test_parts_to_train_must_exist() -> None:
    experiment = create_experiment(Own().given(nn.Identity()))
    with pytest.raises(InputError, match='trainable="norms"'):
        replace(experiment, training=replace(experiment.training, trainable="norms"))
    with pytest.raises(InputError, match="frozen=attention, norms, tokenizer, head"):
        UnifierModule(create_experiment(Own().given(nn.LayerNorm(D)), None, "attention", "norms", "tokenizer", "head"))


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_norm_ignores_counting_and_freezing(frozen: bool) -> None:
    norm = nn.BatchNorm1d(D)
    model = UnifierModule(create_experiment(Own().given(norm), None, *(("norms",) if frozen else ()))).train()
    task = model.tasks["digits"]
    split, _ = encode_split(list(open_split(task.source, "train"))[:4], task.tokenizer, task.head)
    model.prepare({"digits": split})
    assert norm.num_batches_tracked == 0  # Counting FLOPs is not training.
    norm(torch.randn(4, D))
    assert (norm.num_batches_tracked == 0) == frozen


def test_shuffle_permutes_running_means() -> None:
    trunk = Own().given(nn.BatchNorm1d(D))
    learned = torch.arange(float(D))
    trunk.norm.running_mean = learned.clone()
    shuffle(trunk, 0)
    means = trunk.norm.running_mean
    assert isinstance(means, Tensor)
    assert not torch.equal(means, learned)
    assert torch.equal(means.sort().values, learned)


def test_comparison_takes_numpy_numbers() -> None:
    numbers: Any = np.arange(2)
    comparison = Comparison("numbers", [one], seeds=numbers, grid={"fold": numbers + 1}, budget_unit="steps")
    assert json.loads(json.dumps([trial.row()["varied"] for trial in plan_trials(comparison)])) == [
        {"fold": fold} for fold in (1, 1, 2, 2)
    ]


@pytest.mark.parametrize(("study", "name"), [(seeded, "'seed'"), (partial(one), "functools.partial")])
def test_function_that_cannot_be_run_is_refused(tmp_path: Path, study: Callable[..., Experiment], name: str) -> None:
    with pytest.raises(InputError, match=name):
        run(study, out=tmp_path, track="off")
    assert not list(tmp_path.iterdir())


def test_bools_of_several_lengths_are_refused() -> None:
    split = EncodedSplit()
    for index, length in enumerate((3, 3)):
        split.add(Units(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.long)), torch.ones(length).bool(), index)
    with pytest.raises(InputError, match=r"targets of 3 and of 2 torch\.bool cannot be padded"):
        split.add(Units(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.long)), torch.ones(2).bool(), 2)


@pytest.mark.slow
def test_predictions_are_one_per_example(tmp_path: Path) -> None:
    class Flat(Scored):
        def predict(self, tokens: Tokens) -> Sequence[Any]:
            return self.level(tokens).tolist() * 2

    def flat() -> Experiment:
        return create_experiment(None, Flat().given(lambda predictions, targets: {"own": 1.0}))

    with pytest.raises(InputError, match=r"Flat\.predict .*20 predictions for 10 examples"):
        run(flat, out=tmp_path, track="off")


@pytest.mark.slow
def test_predicted_numbers_of_views_are_averaged(tmp_path: Path) -> None:
    seen: dict[int, list[float]] = {1: [], 3: []}

    def viewed(*, views: int) -> Experiment:
        def measured(predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, Any]:
            seen[views] += [float(one) for one in predictions]
            return {"own": 1.0}

        experiment = create_experiment(None, Scored().given(measured))
        task = replace(experiment.tasks["digits"], tta=lambda batch: [batch] * views)
        return replace(experiment, tasks={"digits": task})

    for views in seen:
        run(viewed, out=tmp_path, track="off", views=views)
    assert len(set(seen[1])) > 10
    assert seen[3] == pytest.approx(seen[1], abs=1e-6)


def test_loss_is_a_scalar() -> None:
    class Many(Scored):
        def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
            return (self.level(tokens) - target).square()

    model = UnifierModule(create_experiment(None, Many().given(lambda predictions, targets: {})))
    task = model.tasks["digits"]
    split, _ = encode_split(list(open_split(task.source, "train"))[:4], task.tokenizer, task.head)
    with pytest.raises(InputError, match=r"Many\.loss .*\(4,\).*scalar"):
        model.loss("digits", collate(split, range(4)))


def test_max_score_is_above_0_or_of_a_single_task() -> None:
    head = Scored().given(lambda predictions, targets: {"own": -1.0})
    head.max_score = 0.0
    with pytest.raises(InputError, match=r'"digits".*max_score=0'):
        create_experiment(None, head)
    head.max_score = None
    alone = create_experiment(None, head)
    ((_, task),) = alone.tasks.items()
    with pytest.raises(InputError, match=r'"b".*max_score=None'):
        replace(alone, tasks={"a": replace(task, head=Scored().given(lambda predictions, targets: {})), "b": task})
    # The percentage of an error needs the error at chance.
    head.lower_is_better = frozenset({"accuracy"})
    assert task.error_at_chance() == task.error_at_chance("accuracy") == 10
    assert task.error_at_chance("own") is None
    replace(alone, tasks={"a": replace(task, head=Scored().given(lambda predictions, targets: {})), "b": task})


@pytest.mark.slow
def test_metrics_of_last_validation_are_kept(tmp_path: Path) -> None:
    sizes = iter(range(100))

    def scored() -> Experiment:
        return create_experiment(
            None, Scored().given(lambda predictions, targets: {"own": 1.0, f"own_{next(sizes)}": 1.0})
        )

    [result] = run(scored, out=tmp_path, track="off")
    found = json.loads((result.folder / "result.json").read_text())["metrics"]
    assert sorted(name.rpartition("_")[0] for name in found) == ["", "", "test/digits/own", "val/digits/own"]


def test_encoded_target_is_a_tensor() -> None:
    class Number(Scored):
        def encode(self, target: str) -> Any:
            return float(target)

    examples, tokenizer = list(Digits().split("train"))[:2], PatchTokenizer(D, channels=1)
    with pytest.raises(InputError, match=r"Number\.encode gives a float"):
        encode_split(examples, tokenizer, Number().given(lambda predictions, targets: {}))


class Slip(Tokenizer):
    """A tokenizer of pixel columns whose units pass through a given function."""

    give: Callable[[Tensor, Tensor], Any]

    def __init__(self) -> None:
        super().__init__(D)
        self.map = nn.Linear(8, D)

    def encode(self, raw: Any) -> Any:
        values = torch.as_tensor(raw).float()
        return self.give(values, torch.arange(values.shape[1])[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return self.map(values.mT).mT


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda values, positions: None, "a NoneType"),
        (lambda values, positions: values, "a Tensor"),
        (lambda values, positions: (values, positions), "a tuple"),
        (lambda values, positions: Units(values.numpy(), positions), "values are a ndarray"),
        (lambda values, positions: Units(values, positions.numpy()), "positions are a ndarray"),
        (lambda values, positions: Units(values.requires_grad_(), positions), "values require gradients"),
    ],
)
def test_tokenizer_without_units_is_refused(give: Callable[[Tensor, Tensor], Any], said: str) -> None:
    examples, tokenizer = list(Digits().split("train"))[:2], Slip()
    tokenizer.give = give
    with pytest.raises(InputError, match=rf"example 0: Slip\.encode.*{said}"):
        encode_split(examples, tokenizer, ClassificationHead(Digits.labels, D))
    with pytest.raises(ContractError, match=f"{said}.*example 0"):
        check_tokenizer(tokenizer, [example.input for example in examples])


def test_frozen_batch_norm_without_weights() -> None:
    norm = nn.BatchNorm1d(D, affine=False)
    assert norm.training
    UnifierModule(create_experiment(Own().given(norm), None, "attention")).train()
    assert not norm.training
    UnifierModule(create_experiment(Own().given(norm))).train()
    assert norm.training


def test_comparison_needs_functions_without_share() -> None:
    with pytest.raises(InputError, match=r"functools\.partial"):
        Comparison("partial", [partial(one)])
    with pytest.raises(InputError, match="'share'"):
        Comparison("shares", [shared], grid={"share": (0.5, 1)})


@pytest.mark.parametrize("clipped", [True, False])
def test_targets_per_token_are_counted(clipped: bool) -> None:
    split = EncodedSplit()
    for index, n in enumerate((1200, 1100, 300)):
        split.add(Units(torch.zeros(1, n), torch.arange(n)[None]), torch.zeros(n, dtype=torch.long), index)
    read: list[tuple[int, int]] = []
    weight = nn.Parameter(torch.ones(1, 1))

    def loss(batch: Batch) -> Tensor:
        read.append((batch.values.shape[-1], batch.target.shape[-1]))
        return (weight @ batch.values).sum()

    class Shortened(Augmentation):
        def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
            return batch

        def max_length(self) -> int | None:
            return 200 if clipped else None

    cost = flops_of_example(loss, split, Shortened())
    assert read
    assert all(n == length <= (200 if clipped else 1024) for n, length in read)
    assert cost(100, 100) == pytest.approx(100 * 4, rel=1e-3)
