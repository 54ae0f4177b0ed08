"""The classes Task, Training and Experiment, which declare the model, the data and the training of a run.

`freeze` excludes parts of a model from training. `fitted` stores values that a recipe learns from its data, such as a
vocabulary. A loaded or resumed run reads the stored values from the run's folder.
"""

import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, final, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  Batch norms derive from it.

from unifier.data.dataloader import Augmentation, BudgetUnit, Objective, TestTimeAugmentation
from unifier.data.packed import PackedSource
from unifier.data.source import BadExamples, ScoreRange, Source, score_range_of
from unifier.files import read_json, write_json
from unifier.heads.head import Head
from unifier.nn.experts import MixtureOfExperts, mixtures_of
from unifier.nn.feed_forward import FeedForward
from unifier.nn.lora import add_lora
from unifier.settings import AnyFunction, Function
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PositionalEncoding, Tokenizer, Vocabulary
from unifier_tokenizers.errors import check_choice, check_fraction

Precision = Literal["float32", "bf16"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
Schedule = Literal["cosine", "inverse_sqrt", "constant"]
OptimizerName = Literal["adamw", "muon"]
LossWeighting = Literal["fixed", "uncertainty"]

ModelPart = Literal["norms", "attention", "feed_forward", "positions", "tokenizer", "head"]
"""A part of the model that the setting `frozen` may contain.

The trunk consists of "norms", "feed_forward" and "attention". All trunk parameters outside "norms" and "feed_forward"
belong to "attention", including recurrent cells and convolution kernels. "positions" means the positional encodings.
"tokenizer" and "head" mean whole modules.
"""
MODEL_PARTS: tuple[ModelPart, ...] = get_args(ModelPart)

Trainable = Literal["none", "norms", "lora", "all"]
"""The part of the trunk that is trained.

"norms" means only the trunk's norms (Lu et al. 2021, section 2). "lora" means low-rank updates of the trunk's linear
layers (Hu et al. 2022).
"""

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _BatchNorm)

VOCABULARY_FOLDER, NUMBERS_FILE = "vocabularies", "numbers.json"

MAX_FITTED = 10**9
"""Largest absolute value of a number that an experiment learns from its data, such as the length of a text."""

MAX_WORKERS = 1000
"""Largest number of worker processes. Each process takes hundreds of megabytes."""


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training loop.

    Training stops when the first of the budgets `epochs`, `steps`, `tokens` and `flops` is used up. A budget in
    `seconds` cannot be combined with another budget. All tasks of the experiment share the budget.
    """

    epochs: float | None = None
    """Budget in passes over the training examples of all tasks."""
    steps: int | None = None
    """Budget in optimizer steps."""
    tokens: int | None = None
    """Budget in tokens, without padding."""
    flops: float | None = None
    """Budget in floating-point operations of forward and backward passes, without padding."""
    seconds: float | None = None
    """Budget in seconds of training, without validation; a run with this budget is not reproducible."""
    batch_tokens: int = 4096
    """Largest number of input tokens in a batch, and largest number of target tokens, including padding."""
    grad_accumulation: int = 1
    """Number of batches whose gradients are averaged for one optimizer step."""
    optimizer: OptimizerName | AnyFunction = "adamw"
    """"adamw", "muon" (Muon for the matrices of the blocks, AdamW for other parameters), or a function.

    A function or a class, such as torch.optim.SGD, is called with the parameter groups and with the keyword argument
    `lr`. Each group has its weight decay.
    """
    learning_rate: float = 1e-3
    """Highest learning rate, which is reached at the end of the warm-up."""
    warmup_ratio: float = 0.1
    """Share of the budget during which the learning rate increases from 0 to its highest value."""
    schedule: Schedule | AnyFunction = "cosine"
    """Learning rate after the warm-up: a "cosine" that ends at 0, "inverse_sqrt", "constant", or a function.

    "inverse_sqrt" is 1 / sqrt(step). A function of the step and the number of steps returns the factor of the learning
    rate. The function also replaces the warm-up.
    """
    weight_decay: float = 0.01
    """Weight decay, which is applied only to parameters that are matrices."""
    grad_clip: float = 1.0
    """Largest norm of the gradient for losses of weight 1; the loss weights of a step scale the limit."""
    ema_decay: float = 0.0
    """Decay per step of a moving average of the weights, which is validated and saved; 0 means no average."""
    average_last: int = 1
    """Number of recent validations whose weights are averaged; the average is validated and saved."""
    precision: Precision = "float32"
    """"bf16" computes matrix products in bfloat16 if bfloat16 is fast on the device; weights stay in float32."""
    compile: CompileMode | None = None
    """Mode of torch.compile; None turns compilation off. On a CPU, runs without compilation are usually faster."""
    num_validations: int = 8
    """Number of validations in a run; the weights with the best validation score are tested."""
    patience: int | None = None
    """Stop after this number of validations without a better score; None turns early stopping off."""
    refit: bool = False
    """Train on the training split and on the validation split, and test the last weights."""
    bad_examples: BadExamples = "stop"
    """"stop" ends the run at an unreadable example; "skip" leaves out and counts unreadable examples."""
    num_workers: int | None = None
    """Number of processes that encode examples; None means one process per torch thread if processes save time."""
    frozen: tuple[ModelPart, ...] = ()
    """Parts of the model that are not trained: norms, attention, feed_forward, positions, tokenizer or head."""
    trainable: Trainable = "all"
    """Part of the trunk that is trained: "all", low-rank updates ("lora"), only the "norms", or "none"."""
    lora_rank: int = 8
    """Rank of the low-rank updates of trainable=lora; 0 freezes the trunk."""
    start: str | None = None
    """Trained model whose weights training starts from: the folder of a run or a model, or hub:USER/NAME."""
    start_tokenizers: bool = True
    """Start tokenizers, and heads that write texts, from the trained model too, if shapes and vocabulary are equal."""
    sampling_temperature: float = math.inf
    """Temperature T; a task with n examples gets a share of the budget that is proportional to n ** (1 / T)."""
    loss_weighting: LossWeighting = "fixed"
    """"fixed" multiplies each loss by the task's loss_weight; "uncertainty" learns an additional factor per task."""

    def __post_init__(self) -> None:
        if self.budget and self.seconds is not None:
            others = " and ".join(f"{unit}={amount:,}" for unit, amount in self.budget.items())
            fix = " ".join(f"{unit}=none" for unit in self.budget)
            raise InputError(f"seconds={self.seconds} with {others}: a run has one kind of budget; add {fix}")
        for name in (
            *("steps", "tokens", "batch_tokens", "grad_accumulation"),
            *("average_last", "num_validations", "patience"),
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise InputError(f"{name}={value}: a finite number of at least 1 is needed")
        for name in ("learning_rate", "grad_clip", "flops", "epochs", "seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name}={value}: a number above 0 is needed")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay={self.weight_decay}: 0 or more is needed")
        if self.lora_rank < 0:
            raise InputError(f"lora_rank={self.lora_rank}: 0 or more is needed")
        if not 0 <= (self.num_workers or 0) <= MAX_WORKERS:
            raise InputError(f"num_workers={self.num_workers}: a number from 0 to {MAX_WORKERS:,} is needed")
        choices = {
            "optimizer": OptimizerName,
            "schedule": Schedule,
            "precision": Precision,
            "bad_examples": BadExamples,
            "trainable": Trainable,
            "loss_weighting": LossWeighting,
        }
        for name, choice in choices.items():
            if not callable(value := getattr(self, name)):
                check_choice(name, value, get_args(choice))
            elif not isinstance(value, Function):
                with suppress(InputError):  # A lambda is possible if it is not the value of a setting.
                    object.__setattr__(self, name, Function.of(value))
        if self.compile is not None:
            check_choice("compile", self.compile, get_args(CompileMode))
            if self.grad_accumulation > 1 and self.compile != "default":
                raise InputError(
                    f"compile={self.compile}: the CUDA graphs of this mode do not support "
                    f"grad_accumulation={self.grad_accumulation}; set compile=default"
                )
        for part in self.frozen:
            check_choice("frozen", part, MODEL_PARTS)
        if self.patience is not None and self.refit:
            raise InputError(
                f"patience={self.patience} with refit=true: early stopping needs a validation split; set refit=false"
            )
        if not self.sampling_temperature > 0:
            raise InputError(f"sampling_temperature={self.sampling_temperature}: a number above 0 is needed")
        if self.sampling_temperature < math.inf and next(iter(self.budget), None) == "epochs":
            raise InputError(
                f"sampling_temperature={self.sampling_temperature} with epochs={self.epochs}: in epochs, each task's "
                "share is proportional to its number of examples; give a budget in tokens, steps or flops"
            )
        if not 0 <= self.warmup_ratio <= 1:
            raise InputError(f"warmup_ratio={self.warmup_ratio}: a share of the budget, from 0 to 1, is expected")
        check_fraction("ema_decay", self.ema_decay)
        if self.average_last > self.num_validations:
            raise InputError(
                f"average_last={self.average_last}: a number of at most num_validations={self.num_validations} is "
                "needed"
            )
        if self.ema_decay and self.average_last > 1:
            raise InputError(
                f"ema_decay={self.ema_decay} and average_last={self.average_last}: set only one of the two averages"
            )

    @property
    def budget(self) -> dict[BudgetUnit, float]:
        """The amount of the budget in each given unit. For a budget in seconds, the mapping is empty."""
        amounts: dict[BudgetUnit, float | None] = {unit: getattr(self, unit) for unit in get_args(BudgetUnit)}
        return {unit: amount for unit, amount in amounts.items() if amount is not None}

    def sized_for(self, source: Source, name: str, *, minimum: float = 30.0, batch_examples: float = 0.0) -> "Training":
        """Return the settings. If the settings have no budget, add the budget of `sufficient_epochs`.

        Args:
            source: The data set.
            name: The prefix of the name "NAME-epochs", under which the run stores the number of epochs.
            minimum: The smallest number of epochs.
            batch_examples: See `sufficient_epochs`.
        """
        if self.budget or self.seconds is not None:
            return self
        epochs = fitted(
            f"{name}-epochs", lambda: sufficient_epochs(source, minimum=minimum, batch_examples=batch_examples)
        )
        return replace(self, epochs=epochs)


def sufficient_epochs(source: Source, *, minimum: float = 30.0, batch_examples: float = 0.0) -> float:
    """Return a number of epochs that is sufficient for the size of the training split.

    Training reads at least 50,000 examples, so a small split gets more epochs. With `batch_examples`, training makes at
    least 1,500 steps.

    Args:
        source: The data set.
        minimum: The smallest number of epochs.
        batch_examples: The number of examples per step. With 0, the number of steps has no minimum.
    """
    count = max(len(source.split("train")), 1)
    return max(minimum, max(50_000, 1_500 * min(batch_examples, count)) / count)


@final
@dataclass(frozen=True)
class Task:
    """Task of an experiment: a data source, a tokenizer and a head."""

    source: Source
    tokenizer: Tokenizer
    head: Head
    loss_weight: float = 1.0
    """The factor that multiplies the loss of the task."""
    augmentation: Augmentation | None = None
    """Random changes of the training batches. Each batch uses new random numbers."""
    objective: Objective | None = None
    """Definition of the targets for a head that predicts parts of the input, such as hidden tokens."""
    tta: TestTimeAugmentation | None = None
    """Test-time augmentation: validation and test average the predictions for several views of an example.

    With None, validation and test use only the example itself.
    """
    score_range: ScoreRange | None = None
    """The chance score and the reference score of the task.

    None means the score range of the source. With an objective, None means that the task has no score range. An
    objective replaces the targets of the source, to which the score range of the source belongs.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.loss_weight < math.inf:
            raise InputError(f"loss_weight={self.loss_weight}: a finite number of at least 0 is needed")
        if not isinstance(self.augmentation, Augmentation | None):
            raise InputError(
                f"augmentation={self.augmentation!r}: an instance of a class derived from "
                "unifier.data.dataloader.Augmentation is expected"
            )
        if self.objective is not None and self.tta is not None:
            raise InputError("objective and tta: give a task either an objective or test-time augmentation")

    @property
    def resolved_score_range(self) -> ScoreRange | None:
        """The score range of the task, or None if it is not known."""
        if self.score_range is not None or self.objective is not None:
            return self.score_range
        return score_range_of(self.source)

    def error_at_chance(self, metric: str | None = None) -> float | None:
        """Return the error of a chance-level prediction from the score range, or None if it is unknown.

        Args:
            metric: The name of the error, or None for the metric of the score range.
        """
        score_range = self.resolved_score_range
        if score_range is None or score_range.metric not in self.head.lower_is_better or score_range.chance <= 0:
            return None
        return score_range.chance if metric in (None, score_range.metric) else None


@final
@dataclass(frozen=True)
class Experiment:
    """Tasks that are trained together on one trunk."""

    trunk: Trunk
    tasks: Mapping[str, Task]
    training: Training
    name: str | None = None
    """The name of the folder that contains the runs. None means the name of the experiment's function."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("tasks={}: an experiment needs at least one task, as in tasks={'digits': Task(...)}")
        if self.name is not None:
            check_name(self.name)
        if not self.training.budget and self.training.seconds is None:
            raise InputError("training needs a budget: set epochs, steps, tokens, flops or seconds")
        experts = max((len(mixture.experts) for mixture in mixtures_of(self.trunk)), default=1)
        if experts > self.training.batch_tokens:
            raise InputError(
                f"experts={experts}, but a batch has only batch_tokens={self.training.batch_tokens} tokens: set fewer "
                "experts, or more tokens"
            )
        if self.training.trainable == "norms" and not trunk_parts(self.trunk)["norms"]:
            raise InputError('trainable="norms": the trunk has no norms with weights; set "none" or "all"')
        for name, task in self.tasks.items():
            self._check_task(name, task)
            task.head.attach_trunk(self.trunk)
            task.head.attach_tokenizer(task.tokenizer)

    def _check_task(self, name: str, task: Task) -> None:
        """Raise InputError if a task cannot be combined with the trunk or with the other tasks."""
        if not re.fullmatch(r"[\w-]+", name) or hasattr(nn.ModuleDict(), name):
            raise InputError(
                f'"{name}" is not a valid name of a task: use letters, digits, "_" and "-", '
                f"but not an attribute of torch's ModuleDict, such as keys or pop"
            )
        if task.tokenizer.dim != self.trunk.dim:
            raise InputError(
                f'task "{name}": the tokenizer has dim={task.tokenizer.dim}, '
                f"but the trunk has dim={self.trunk.dim}: give tokenizer and trunk the same dim"
            )
        if (dim := getattr(task.head, "dim", self.trunk.dim)) != self.trunk.dim:
            raise InputError(
                f'task "{name}": the head has dim={dim}, but the trunk has dim={self.trunk.dim}: give head and trunk '
                "the same dim"
            )
        if task.head.memory:
            self._check_memory(name, task)
        max_score = task.head.max_score
        if max_score is None and len(self.tasks) > 1 and task.error_at_chance() is None:
            raise InputError(
                f'task "{name}": the head has max_score=None, but joint training needs the best possible score of each '
                "task; use a metric with an upper bound, such as R2 in percent, or give the task the score_range of "
                "an error"
            )
        if max_score is not None and not max_score > 0:
            raise InputError(
                f'task "{name}": the head has max_score={max_score:g}; give a number above 0, '
                "or None if the metric has no best value above 0, such as an error"
            )

    def _check_memory(self, name: str, task: Task) -> None:
        """Raise InputError if a head with a memory cannot read the pieces of sequences one after another."""
        start = f'task "{name}": memory={task.head.memory}'
        if task.head.memory < 0:
            raise InputError(f"{start}: 0 or more tokens are needed")
        if task.head.attention_mode != "causal" or task.head.num_passes > 1:
            raise InputError(f"{start}: only a causal head with one pass has a memory; set memory=0")
        if task.augmentation is not None or task.tta is not None:
            raise InputError(f"{start}: pieces of a sequence must stay complete; leave out augmentation and tta")
        if self.training.compile is not None:
            raise InputError(
                f"{start} with compile={self.training.compile}: torch.compile keeps no memory; leave it out"
            )


def check_name(name: str) -> None:
    """Raise InputError if the name cannot be used as the name of a folder."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise InputError(
            f'"{name}" is not a valid name of a folder: use letters, digits, "_", "-" and ".", but no "." at the start'
        )


def check_seed(seed: int) -> int:
    """Return the seed, or raise InputError if random number generators do not accept the seed."""
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: a number from 0 to {2**32 - 1} is expected")
    return seed


def trunk_parts(trunk: Trunk) -> dict[ModelPart, list[nn.Parameter]]:
    """Return the trunk's parameters in three groups: norms, feed-forward networks and attention (see `ModelPart`)."""
    parts: dict[ModelPart, list[nn.Parameter]] = {
        "norms": _parameters_of(trunk, *NORMS),
        "feed_forward": _parameters_of(trunk, FeedForward, MixtureOfExperts),
    }
    assigned = {parameter for parameters in parts.values() for parameter in parameters}
    parts["attention"] = [parameter for parameter in trunk.parameters() if parameter not in assigned]
    return parts


def freeze(training: Training, trunk: Trunk, tokenizers: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
    """Turn off the gradients of the parts that `frozen` and `trainable` exclude from training.

    A parameter that belongs to two parts is frozen if at least one of the parts is frozen.

    Raises:
        InputError: If a part in `frozen` has no parameters, or if all parameters of the model are frozen.
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
            raise InputError(f'frozen="{part}": this model has no parameters in this part; leave the part out')
    trainable = {"none": (), "norms": ("norms",), "lora": (), "all": tuple(parts)}[training.trainable]
    for part in {*training.frozen, *(part for part in parts if part not in trainable)}:
        for parameter in parameters[part]:
            parameter.requires_grad_(False)
    if training.trainable == "lora":
        add_lora(trunk, training.lora_rank)
    model = [*trunk.parameters(), *parameters["tokenizer"], *parameters["head"]]
    if (training.frozen or training.trainable != "all") and not any(parameter.requires_grad for parameter in model):
        raise InputError(
            f"frozen={', '.join(training.frozen) or '()'} trainable={training.trainable}: "
            "no parameter of this model is left to train; freeze fewer parts"
        )


def hold_frozen_statistics(model: nn.Module) -> None:
    """Set frozen batch norms to evaluation mode, so their running statistics do not change.

    A batch norm without weights is treated as frozen if the module that contains the batch norm is frozen.
    """
    for part in model.modules():
        weights = list(part.parameters())
        if weights and not any(parameter.requires_grad for parameter in weights):
            for norm in part.modules():
                if isinstance(norm, _BatchNorm):
                    norm.eval()


def _parameters_of(module: nn.Module, *classes: type[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of all submodules that are instances of `classes`."""
    return [parameter for part in module.modules() if isinstance(part, classes) for parameter in part.parameters()]


Fitted = Vocabulary | float
FittedT = TypeVar("FittedT", Vocabulary, int, float)


class _FittedRecord(NamedTuple):
    stored: dict[str, Fitted]
    """Names and values that were read from a run's folder."""
    used: dict[str, Fitted]
    """Names and values that `fitted` has returned since the recording began."""


_record: ContextVar[_FittedRecord | None] = ContextVar("record", default=None)


def fitted(name: str, fit: Callable[[], FittedT], source: Source | None = None) -> FittedT:
    """Return the vocabulary or number that `fit` learns from the data.

    For a loaded or resumed run, return the value that is stored in the run's folder. For a packed source, return the
    value that was learned when the data were packed.

    Args:
        name: The name under which the run stores the value. Each value of an experiment needs a different name.
        fit: A function that learns the value from the data.
        source: The data.
    """
    record, packed = _record.get(), source.fitted if isinstance(source, PackedSource) else {}
    if record is None:
        return cast("FittedT", packed[name]) if name in packed else fit()
    check_name(name)
    if name in record.used:
        raise InputError(
            f'two fitted values of the experiment have the name "{name}": give each value a different name'
        )
    known = {**packed, **record.stored}
    value = cast("FittedT", known[name]) if name in known else fit()
    record.used[name] = value
    return value


@contextmanager
def recording_fitted(
    run: Path | None = None, known: Mapping[str, Fitted] | None = None
) -> Generator[dict[str, Fitted]]:
    """Record the values that `fitted` returns, and yield a mapping from names to recorded values.

    Args:
        run: The folder of a run. `fitted` returns the values that are stored in this folder.
        known: Further values that `fitted` returns.
    """
    files = (run / VOCABULARY_FOLDER).glob("*.json") if run else ()
    numbers: dict[str, float] = read_json(run / NUMBERS_FILE) if run and (run / NUMBERS_FILE).exists() else {}
    if run and not all(type(number) in (int, float) and abs(number) <= MAX_FITTED for number in numbers.values()):
        raise InputError(f"{run / NUMBERS_FILE}: broken (each value must be a number of at most {MAX_FITTED:,})")
    record = _FittedRecord({file.stem: Vocabulary.load(file) for file in files} | numbers | dict(known or {}), {})
    token = _record.set(record)
    try:
        yield record.used
    finally:
        _record.reset(token)


def save_fitted(values: dict[str, Fitted], run: Path) -> None:
    """Write a mapping from names to fitted values into a run's folder."""
    for name, value in values.items():
        if isinstance(value, Vocabulary):
            (run / VOCABULARY_FOLDER).mkdir(exist_ok=True)
            value.save(run / VOCABULARY_FOLDER / f"{name}.json")
    if numbers := {name: value for name, value in values.items() if not isinstance(value, Vocabulary)}:
        write_json(run / NUMBERS_FILE, numbers)


def hash_fitted(run: Path) -> dict[str, str]:
    """Return the SHA-256 hash of each file in a run's folder that holds a fitted value, by the name of the file."""
    files = [path for path in (*sorted((run / VOCABULARY_FOLDER).glob("*.json")), run / NUMBERS_FILE) if path.exists()]
    return {path.relative_to(run).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files}


def check_fitted(run: Path, stored: Mapping[str, Any]) -> None:
    """Raise InputError if a file of fitted values has changed. `stored` is the content of the run's settings.json."""
    hashes, found = stored.get("fitted", {}), hash_fitted(run)
    for name in hashes:
        if found.get(name) != hashes[name]:
            raise InputError(f"{run / name}: missing, or changed since the run wrote it; restore the file")
