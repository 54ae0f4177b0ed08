"""Task, Training and Experiment: the declaration of what is trained, and for how long.

Two helpers belong to the declaration. `freeze` keeps parts of a model fixed. `fitted` stores values that a recipe
learns from its data, such as a vocabulary, so that a run can be loaded and resumed without learning them again.
"""

import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, cast, final, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  the base of all batch norms

from unifier.data.dataloader import Augmentation, Batch, BudgetUnit, TestTimeAugmentation
from unifier.data.source import BadExamples, Source
from unifier.files import read_json, write_json
from unifier.heads.head import Head
from unifier.nn.block import FeedForward
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PositionalEncoding, Tokenizer, Tokens, Vocabulary
from unifier_tokenizers.errors import check_choice, check_fraction

Precision = Literal["float32", "bf16"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
Schedule = Literal["cosine", "inverse_sqrt", "constant"]
OptimizerName = Literal["adamw", "muon"]
LossWeighting = Literal["fixed", "uncertainty"]

ModelPart = Literal["norms", "attention", "feed_forward", "positions", "tokenizer", "head"]
"""A part that `frozen=` can name.

"norms", "feed_forward" and "attention" divide the trunk; "attention" is all of it that is in neither of the others,
such as recurrent cells or kernels. "positions" are the positional encodings, "tokenizer" and "head" the whole modules.
"""
MODEL_PARTS: tuple[ModelPart, ...] = get_args(ModelPart)

Trainable = Literal["none", "norms", "all"]
"""The part of the trunk that trains. With "norms", only its norms do (Lu et al. 2021, section 2)."""

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _BatchNorm)

VOCABULARY_FOLDER, NUMBERS_FILE = "vocabularies", "numbers.json"


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training loop.

    Training stops at the budget that is reached first: `epochs`, `steps`, `tokens` or `flops`. `seconds` is a budget
    by itself. A budget is shared by all tasks of the experiment.
    """

    epochs: float | None = None
    """Budget in passes over the training split; over those of all tasks together if there are several."""
    steps: int | None = None
    """Budget in optimizer steps."""
    tokens: int | None = None
    """Budget in tokens read, without padding."""
    flops: float | None = None
    """Budget in floating-point operations, forward and backward, without padding."""
    seconds: float | None = None
    """Budget in seconds of training, without validation; such a run is not reproducible from its seed."""
    batch_tokens: int = 4096
    """The largest number of tokens, or of target tokens, in a batch, with padding."""
    grad_accumulation: int = 1
    """Number of batches whose gradients are averaged for one optimizer step."""
    optimizer: OptimizerName = "adamw"
    """"adamw", or "muon" for the matrices of the blocks and AdamW for all other parameters."""
    learning_rate: float = 1e-3
    """The peak learning rate, reached after the warm-up."""
    warmup_ratio: float = 0.1
    """Share of the budget in which the learning rate rises from 0 to its peak."""
    schedule: Schedule = "cosine"
    """Decay after the warm-up: "cosine" to 0, "inverse_sqrt" of the step, or "constant"."""
    weight_decay: float = 0.01
    """Weight decay, applied to matrices only."""
    grad_clip: float = 1.0
    """Largest norm of the gradient, multiplied by the weights of the losses in the step."""
    ema_decay: float = 0.0
    """Decay per step of an exponential average of the weights, which is validated and kept; 0 turns it off."""
    average_last: int = 1
    """Number of recent validations whose weights are averaged; the average is validated and kept."""
    precision: Precision = "float32"
    """"bf16" computes products in bfloat16 if the device is fast at it; weights stay in float32."""
    compile: CompileMode | None = None
    """Mode of torch.compile for the loss; None does not compile, which is usually faster on a CPU."""
    num_validations: int = 8
    """Number of validations in a run, the last one at its end; the best weights are tested."""
    patience: int | None = None
    """Stop after this number of validations without a better score; None never stops early."""
    refit: bool = False
    """Train on the validation split too, and test the last weights."""
    bad_examples: BadExamples = "stop"
    """"stop" the run at an example that cannot be read, or "skip" it and count it."""
    num_workers: int | None = None
    """Number of processes that encode examples; None chooses one per torch thread if that saves time."""
    frozen: tuple[ModelPart, ...] = ()
    """Parts of the model that are not trained: norms, attention, feed_forward, positions, tokenizer, head."""
    trainable: Trainable = "all"
    """Part of the trunk that is trained: "all", its "norms" only, or "none"."""
    sampling_temperature: float = math.inf
    """Temperature T: a task's share of the budget is proportional to its number of examples to the power 1/T."""
    loss_weighting: LossWeighting = "fixed"
    """"fixed" weights the losses by each task's loss_weight; "uncertainty" also by learned factors."""

    def __post_init__(self) -> None:
        if self.budget and self.seconds is not None:
            raise InputError(f"seconds={self.seconds} and {self.budget}: take seconds alone, or the other budgets")
        for name in (
            *("steps", "tokens", "batch_tokens", "grad_accumulation"),
            *("average_last", "num_validations", "patience"),
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise InputError(f"{name}={value}: at least 1 is needed, a finite number")
        for name in ("learning_rate", "grad_clip", "flops", "epochs", "seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name}={value}: a number above 0 is needed")
        for name in ("weight_decay", "num_workers"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise InputError(f"{name}={getattr(self, name)}: 0 or more is needed")
        choices = {
            "optimizer": OptimizerName,
            "schedule": Schedule,
            "precision": Precision,
            "bad_examples": BadExamples,
            "trainable": Trainable,
            "loss_weighting": LossWeighting,
        }
        for name, choice in choices.items():
            check_choice(name, getattr(self, name), get_args(choice))
        if self.compile is not None:
            check_choice("compile", self.compile, get_args(CompileMode))
            if self.grad_accumulation > 1 and self.compile != "default":
                raise InputError(
                    f"compile={self.compile}: its CUDA graphs cannot add up the gradients of "
                    f"grad_accumulation={self.grad_accumulation} batches; take compile=default"
                )
        for part in self.frozen:
            check_choice("frozen", part, MODEL_PARTS)
        if self.patience is not None and self.refit:
            raise InputError(f"patience={self.patience} with refit=true: no validation split is left to stop by")
        if not self.sampling_temperature > 0:
            raise InputError(f"sampling_temperature={self.sampling_temperature}: a number above 0 is needed")
        if self.sampling_temperature < math.inf and next(iter(self.budget), None) == "epochs":
            raise InputError(
                f"sampling_temperature={self.sampling_temperature} with epochs={self.epochs}: in epochs, each task's "
                "share is proportional to its examples; take a budget in tokens, steps or flops"
            )
        if not 0 <= self.warmup_ratio <= 1:
            raise InputError(f"warmup_ratio={self.warmup_ratio}: a share of the budget, from 0 to 1, is expected")
        check_fraction("ema_decay", self.ema_decay)
        if self.average_last > self.num_validations:
            raise InputError(
                f"average_last={self.average_last}: there are only num_validations={self.num_validations} to average"
            )
        if self.ema_decay and self.average_last > 1:
            raise InputError(
                f"ema_decay={self.ema_decay} and average_last={self.average_last}: take one of the two averages"
            )

    @property
    def budget(self) -> dict[BudgetUnit, float]:
        """The amounts of the budget by unit; empty for a budget in seconds."""
        amounts: dict[BudgetUnit, float | None] = {unit: getattr(self, unit) for unit in get_args(BudgetUnit)}
        return {unit: amount for unit, amount in amounts.items() if amount is not None}

    def sized_for(
        self, source: Source, name: str, *, minimum: float = 30.0, batch_examples: float = 0.0
    ) -> "Training":
        """Return these settings with a budget in epochs that suits the data, unless a budget is set.

        Args:
            source: The data set.
            name: The name under which a run remembers the number of epochs.
            minimum: The fewest epochs.
            batch_examples: Number of examples per step; 0 if it does not matter.
        """
        if self.budget or self.seconds is not None:
            return self
        epochs = fitted(
            f"{name}-epochs", lambda: sufficient_epochs(source, minimum=minimum, batch_examples=batch_examples)
        )
        return replace(self, epochs=epochs)


def sufficient_epochs(source: Source, *, minimum: float = 30.0, batch_examples: float = 0.0) -> float:
    """Return a number of epochs that suits a training split of any size.

    A small split gets more epochs, so that 50,000 examples are read and, if `batch_examples` is given, 1,500 steps
    are made.

    Args:
        source: The data set.
        minimum: The fewest epochs.
        batch_examples: Number of examples per step.
    """
    count = max(len(source.split("train")), 1)
    return max(minimum, max(50_000, 1_500 * min(batch_examples, count)) / count)


@final
@dataclass(frozen=True)
class Task:
    """A data source, a tokenizer and a head on a trunk."""

    source: Source
    tokenizer: Tokenizer
    head: Head
    loss_weight: float = 1.0
    """The weight of its loss beside the other tasks' losses."""
    augmentation: Augmentation | None = None
    """Random changes of training batches, drawn for each batch."""
    tta: TestTimeAugmentation | None = None
    """The views of an example whose predictions are averaged in validation and test; None takes the example as is."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss_weight < math.inf:
            raise InputError(f"loss_weight={self.loss_weight}: 0 or more is needed")
        if not isinstance(self.augmentation, Augmentation | None):
            raise InputError(
                f"augmentation={self.augmentation!r}: an instance of a class derived from "
                "unifier.data.dataloader.Augmentation is expected"
            )

    def embed(self, batch: Batch) -> Tokens:
        """Embed a batch as the Tokens (B, D, N) that the trunk reads."""
        return Tokens(self.tokenizer.embed(batch.values, batch.positions), batch.mask, batch.positions)


@final
@dataclass(frozen=True)
class Experiment:
    """Tasks that are trained together on one trunk."""

    trunk: Trunk
    tasks: Mapping[str, Task]
    training: Training
    name: str | None = None
    """The folder of its runs; None becomes the name of the function that returns the experiment."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("tasks={}: an experiment needs at least one task, as in tasks={'digits': Task(...)}")
        if self.name is not None:
            check_name(self.name)
        if not self.training.budget and self.training.seconds is None:
            raise InputError("training needs a budget: set epochs, steps, tokens, flops or seconds")
        if self.training.trainable == "norms" and not trunk_parts(self.trunk)["norms"]:
            raise InputError('trainable="norms": the trunk has no norms with weights; take "none" or "all"')
        for name, task in self.tasks.items():
            self._check_task(name, task)
            task.head.attach_trunk(self.trunk)

    def _check_task(self, name: str, task: Task) -> None:
        """Raise InputError if a task does not fit the trunk or the other tasks."""
        if not re.fullmatch(r"[\w-]+", name) or hasattr(nn.ModuleDict(), name):
            raise InputError(
                f'"{name}" cannot name a task: take letters, digits, "_" and "-", '
                f"and no attribute of torch's ModuleDict, such as keys or pop"
            )
        if task.tokenizer.dim != self.trunk.dim:
            raise InputError(
                f'task "{name}": its tokenizer has dim={task.tokenizer.dim}, '
                f"and the trunk has dim={self.trunk.dim}: give both the same dim"
            )
        if (dim := getattr(task.head, "dim", self.trunk.dim)) != self.trunk.dim:
            raise InputError(
                f'task "{name}": its head has dim={dim}, and the trunk has dim={self.trunk.dim}: give both the same dim'
            )
        max_score = task.head.max_score
        if max_score is None and len(self.tasks) > 1:
            raise InputError(
                f'task "{name}": its head sets max_score=None, but joint training combines tasks by their best '
                "possible score; use a bounded metric, such as R2 in percent"
            )
        if max_score is not None and not max_score > 0:
            raise InputError(
                f'task "{name}": its head sets max_score={max_score:g}; it must be above 0, '
                "or None if the metric has no best value, such as a negated error"
            )


def check_name(name: str) -> None:
    """Raise InputError if the name cannot be that of a folder."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise InputError(f'"{name}" names a folder: take letters, digits, "_", "-" and ".", and no "." first')


def check_seed(seed: int) -> int:
    """Return the seed; raise InputError if random number generators do not accept it."""
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: a number from 0 to {2**32 - 1} is expected")
    return seed


def trunk_parts(trunk: Trunk) -> dict[ModelPart, list[nn.Parameter]]:
    """Return the trunk's parameters, divided into norms, feed-forward networks and attention."""
    parts: dict[ModelPart, list[nn.Parameter]] = {
        "norms": _parameters_of(trunk, *NORMS),
        "feed_forward": _parameters_of(trunk, FeedForward),
    }
    assigned = {parameter for parameters in parts.values() for parameter in parameters}
    parts["attention"] = [parameter for parameter in trunk.parameters() if parameter not in assigned]
    return parts


def freeze(training: Training, trunk: Trunk, tokenizers: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
    """Turn off the gradients of the parts that `frozen` and `trainable` exclude.

    A parameter that belongs to two parts is frozen if one of them is.

    Raises:
        InputError: If a part in `frozen` has no parameters, or nothing is left to train.
    """
    modules = nn.ModuleList(tokenizers)
    parts = trunk_parts(trunk)
    parameters = parts | {
        "positions": _parameters_of(modules, PositionalEncoding),
        "tokenizer": list(modules.parameters()),
        "head": list(nn.ModuleList(heads).parameters()),
    }
    for part in training.frozen:
        if not parameters[part]:
            raise InputError(f'frozen="{part}": this model has no parameters in that part; leave it out')
    trainable = {"none": (), "norms": ("norms",), "all": tuple(parts)}[training.trainable]
    for part in {*training.frozen, *(part for part in parts if part not in trainable)}:
        for parameter in parameters[part]:
            parameter.requires_grad_(False)
    model = [*trunk.parameters(), *parameters["tokenizer"], *parameters["head"]]
    if (training.frozen or training.trainable != "all") and not any(parameter.requires_grad for parameter in model):
        raise InputError(
            f"frozen={', '.join(training.frozen) or '()'} trainable={training.trainable}: "
            "no parameter of this model is left to train"
        )


def hold_frozen_statistics(model: nn.Module) -> None:
    """Keep frozen batch norms in evaluation mode, so that their running statistics stay fixed.

    A batch norm without weights counts as frozen if the module around it is.
    """
    for part in model.modules():
        weights = list(part.parameters())
        if weights and not any(parameter.requires_grad for parameter in weights):
            for norm in part.modules():
                if isinstance(norm, _BatchNorm):
                    norm.eval()


def _parameters_of(module: nn.Module, *classes: type[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of all submodules of these classes."""
    return [parameter for part in module.modules() if isinstance(part, classes) for parameter in part.parameters()]


Fitted = Vocabulary | float
FittedT = TypeVar("FittedT", Vocabulary, int, float)


class _FittedRecord(NamedTuple):
    stored: dict[str, Fitted]
    """Values read from a run's folder."""
    used: dict[str, Fitted]
    """Values that `fitted` returned since recording began."""


_record: ContextVar[_FittedRecord | None] = ContextVar("record", default=None)


def fitted(name: str, fit: Callable[[], FittedT]) -> FittedT:
    """Return the vocabulary or number that `fit` learns from the data.

    If a run is loaded or resumed, return the value that was learned when the run began.

    Args:
        name: Its name among the run's files; each value of an experiment needs its own.
        fit: Learns the value.
    """
    record = _record.get()
    if record is None:
        return fit()
    check_name(name)
    if name in record.used:
        raise InputError(f'two fitted values of the experiment have the name "{name}": give each its own name')
    value = cast("FittedT", record.stored[name]) if name in record.stored else fit()
    record.used[name] = value
    return value


@contextmanager
def recording_fitted(run: Path | None = None) -> Generator[dict[str, Fitted]]:
    """Record the values that `fitted` returns while an experiment is built, and yield them by name.

    `run` is the folder of a run whose stored values are used instead of fitting again.
    """
    files = (run / VOCABULARY_FOLDER).glob("*.json") if run else ()
    numbers: dict[str, float] = read_json(run / NUMBERS_FILE) if run and (run / NUMBERS_FILE).exists() else {}
    record = _FittedRecord({file.stem: Vocabulary.load(file) for file in files} | numbers, {})
    token = _record.set(record)
    try:
        yield record.used
    finally:
        _record.reset(token)


def save_fitted(values: dict[str, Fitted], run: Path) -> None:
    """Write fitted values into a run's folder."""
    for name, value in values.items():
        if isinstance(value, Vocabulary):
            (run / VOCABULARY_FOLDER).mkdir(exist_ok=True)
            value.save(run / VOCABULARY_FOLDER / f"{name}.json")
    if numbers := {name: value for name, value in values.items() if not isinstance(value, Vocabulary)}:
        write_json(run / NUMBERS_FILE, numbers)
