"""fitted: what an experiment learns of its data before training, stored with the run.

Which parts of a model are trained, and which stay as they are.

Task, Training, Experiment: what is trained, and for how long."""

import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, cast, final, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  of 1, 2 and 3 axes

from unifier.data.dataloader import Augmentation, Batch, BudgetUnit, TestTimeAugmentation
from unifier.data.source import BadExamples, Source
from unifier.files import read_json, write_json
from unifier.heads.head import Head
from unifier.nn.block import FeedForward
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PositionalEncoding, Tokenizer, Tokens, Vocabulary
from unifier_tokenizers.errors import check_choice, check_fraction

Fitted = Vocabulary | float


FittedT = TypeVar("FittedT", Vocabulary, int, float)


class _Memory(NamedTuple):
    kept: dict[str, Fitted]
    """What a run kept."""
    asked: dict[str, Fitted]
    """What was asked for since."""


_memory: ContextVar[_Memory | None] = ContextVar("memory", default=None)


def fitted(name: str, fit: Callable[[], FittedT]) -> FittedT:
    """The vocabulary or number that `fit` learns; where a run is loaded or resumed, what it learned when the run began.

    An experiment's function asks for each under a name of its own.
    """
    memory = _memory.get()
    if memory is None:
        return fit()
    check_name(name)
    if name in memory.asked:
        raise InputError(f'two parts of the experiment learn what they call "{name}": give each its own name')
    found = cast("FittedT", memory.kept[name]) if name in memory.kept else fit()
    memory.asked[name] = found
    return found


@contextmanager
def recording_fitted(run: Path | None = None) -> Generator[dict[str, Fitted]]:
    """While an experiment is built: what is `fitted` comes from a run's folder where it is there.

    Gives what was asked for, by name.
    """
    files = (run / FOLDER).glob("*.json") if run else ()
    numbers: dict[str, float] = read_json(run / NUMBERS) if run and (run / NUMBERS).exists() else {}
    memory = _Memory({file.stem: Vocabulary.load(file) for file in files} | numbers, {})
    token = _memory.set(memory)
    try:
        yield memory.asked
    finally:
        _memory.reset(token)


FOLDER, NUMBERS = "vocabularies", "numbers.json"


def save_fitted(learned: dict[str, Fitted], run: Path) -> None:
    """Write what was `fitted` into a run's folder."""
    for name, one in learned.items():
        if isinstance(one, Vocabulary):
            (run / FOLDER).mkdir(exist_ok=True)
            one.save(run / FOLDER / f"{name}.json")
    if numbers := {name: one for name, one in learned.items() if not isinstance(one, Vocabulary)}:
        write_json(run / NUMBERS, numbers)


TrunkPart = Literal["norms", "attention", "feed_forward", "positions", "tokenizer", "head"]
"""The trunk's norms, feed-forward networks, and all the rest of it, by which its columns see each other (attention, or
recurrent cells, or kernels); positional encodings; tokenizers, their positions among them; heads."""


NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _BatchNorm)


PARTS: tuple[TrunkPart, ...] = get_args(TrunkPart)


def trunk_parts(trunk: Trunk) -> dict[TrunkPart, list[nn.Parameter]]:
    """A trunk's parameters, each in the one part it belongs to."""
    parts: dict[TrunkPart, list[nn.Parameter]] = {
        "norms": parameters_of(trunk, *NORMS),
        "feed_forward": parameters_of(trunk, FeedForward),
    }
    elsewhere = {parameter for parameters in parts.values() for parameter in parameters}
    parts["attention"] = [parameter for parameter in trunk.parameters() if parameter not in elsewhere]
    return parts


def parameters_of(module: nn.Module, *kinds: type[nn.Module]) -> list[nn.Parameter]:
    """The parameters of all modules of these kinds inside."""
    return [parameter for part in module.modules() if isinstance(part, kinds) for parameter in part.parameters()]


def freeze(
    parts: Sequence[TrunkPart], trunk: Trunk, tokenizers: Iterable[nn.Module], heads: Iterable[nn.Module]
) -> None:
    """Keep these parts of a model from learning, tables that two parts share among them.

    Raises InputError for a part that has no parameters here, since freezing it would change nothing.
    """
    tokenizers = nn.ModuleList(tokenizers)
    parameters = trunk_parts(trunk) | {
        "positions": parameters_of(tokenizers, PositionalEncoding),
        "tokenizer": list(tokenizers.parameters()),
        "head": list(nn.ModuleList(heads).parameters()),
    }
    for part in parts:
        if not parameters[check_choice("frozen", part, PARTS)]:
            raise InputError(f'frozen="{part}": this model has no such part with anything to learn')
        for parameter in parameters[part]:
            parameter.requires_grad_(False)
    whole = [*trunk.parameters(), *parameters["tokenizer"], *parameters["head"]]
    if parts and not any(parameter.requires_grad for parameter in whole):
        raise InputError(f"frozen={', '.join(parts)}: nothing of this model is left to learn")


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


Precision = Literal["float32", "bf16"]


CompileMode = Literal["default", "reduce-overhead", "max-autotune"]


Schedule = Literal["cosine", "inverse_sqrt", "constant"]


OptimizerName = Literal["adamw", "muon"]


LossWeighting = Literal["fixed", "uncertainty"]


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how: `seconds`, or of `epochs`, `steps`, `tokens` and `flops` what is reached first.

    Budgets are those of all tasks together.
    """

    epochs: float | None = None
    """Passes over the training split, of several tasks all of theirs together."""
    steps: int | None = None
    """Optimizer steps."""
    tokens: int | None = None
    """Columns of examples, without padding. R-Drop's second pass over a batch is not counted."""
    flops: float | None = None
    """Operations of products and convolutions, forward and backward, padding not counted."""
    seconds: float | None = None
    """Training time, without validations. A run with this budget is not reproducible from its seed."""
    batch_tokens: int = 4096
    """The most columns, or target tokens, in a batch, padding counted."""
    grad_accumulation: int = 1
    """Batches whose gradients are averaged for each step, where one as large does not fit into memory."""
    optimizer: OptimizerName = "adamw"
    """"muon" is for the hidden matrices alone, beside AdamW for the rest."""
    learning_rate: float = 1e-3
    """The highest one, reached after the warm-up."""
    warmup_ratio: float = 0.1
    """Share of the budget in which the learning rate rises from 0."""
    schedule: Schedule = "cosine"
    """How it falls afterwards: to 0 by a cosine, by the inverse square root of the step, or not at all."""
    weight_decay: float = 0.01
    """On matrices only."""
    grad_clip: float = 1.0
    """The largest norm of the gradient of losses of weight 1; it grows and falls with their weights."""
    ema_decay: float = 0.0
    """The decay a step of an exponential mean of the weights, which is validated and kept; 0 takes none."""
    average_last: int = 1
    """How many validations' weights are averaged, to be validated and kept."""
    precision: Precision = "float32"
    """"bf16" computes products in bfloat16 where the processor can, with weights and optimizer in float32."""
    compile: CompileMode | None = None
    """How torch compiles a step's forward and backward pass, by its own name for it; "reduce-overhead" records CUDA
    graphs, for small models on a GPU. It takes a minute or more at first, and on a CPU hardly pays for itself."""
    num_validations: int = 8
    """How often the validation split is scored at most, the last time at the end; the best one's weights are tested."""
    refit: bool = False
    """Whether to train on the validation split too, once settings are chosen: then the last weights are tested."""
    bad_examples: BadExamples = "stop"
    """Whether an example that cannot be read stops the run, or is skipped and counted."""
    num_workers: int | None = None
    """Processes that encode; None takes one for each thread of torch's, where that saves time."""
    frozen: tuple[TrunkPart, ...] = ()
    """Parts that stay as they are."""
    sampling_temperature: float = math.inf
    """Sampling temperature T: an task's share of the budget is proportional to its number of examples to the power 1/T.
    Infinity (the default) means equal shares. A budget in epochs allows only the default."""
    loss_weighting: LossWeighting = "fixed"
    """How their losses are weighted: by the tasks' own `weight`, or times what is learned (uncertainty)."""

    def __post_init__(self) -> None:
        if not self.budget and self.seconds is None:
            raise InputError("training needs a budget: give it epochs, steps, tokens, flops or seconds")
        if self.budget and self.seconds is not None:
            raise InputError(f"seconds={self.seconds} and {self.budget}: a budget in seconds stands alone")
        for name in ("steps", "tokens", "batch_tokens", "grad_accumulation", "average_last", "num_validations"):
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
        options = {
            "optimizer": OptimizerName,
            "schedule": Schedule,
            "precision": Precision,
            "bad_examples": BadExamples,
            "loss_weighting": LossWeighting,
        }
        for name, known in options.items():
            check_choice(name, getattr(self, name), get_args(known))
        if self.compile is not None:
            check_choice("compile", self.compile, get_args(CompileMode))
            if self.grad_accumulation > 1 and self.compile != "default":
                raise InputError(
                    f"compile={self.compile}: the CUDA graphs that it records cannot add up the gradients of "
                    f"{self.grad_accumulation} batches; take compile=default"
                )
        for part in self.frozen:
            check_choice("frozen", part, PARTS)
        if not self.sampling_temperature > 0:
            raise InputError(f"sampling_temperature={self.sampling_temperature}: a number above 0 is needed")
        if self.sampling_temperature < math.inf and next(iter(self.budget), None) == "epochs":
            raise InputError(
                f"sampling_temperature={self.sampling_temperature} with epochs={self.epochs}: every task makes as many epochs, in "
                "proportion to its examples; take a budget in tokens, steps or flops"
            )
        if not 0 <= self.warmup_ratio <= 1:
            raise InputError(f"warmup_ratio={self.warmup_ratio}: a share of the budget, from 0 to 1, is expected")
        check_fraction("ema_decay", self.ema_decay)
        if self.average_last > self.num_validations:
            raise InputError(
                f"average_last={self.average_last}: of the weights at {self.num_validations} validations no more can be averaged"
            )
        if self.ema_decay and self.average_last > 1:
            raise InputError(
                f"ema_decay={self.ema_decay} and average_last={self.average_last}: the weights are averaged in one way"
            )

    @property
    def budget(self) -> dict[BudgetUnit, float]:
        """What is counted before training, by its unit."""
        given: dict[BudgetUnit, float | None] = {unit: getattr(self, unit) for unit in get_args(BudgetUnit)}
        return {unit: amount for unit, amount in given.items() if amount is not None}


def sufficient_epochs(source: Source, *, least: float = 30.0, together: float = 0.0) -> float:
    """Passes over a training split that suit any size: at least so many, and of a small one those that make enough.

    Enough are 50,000 examples read and, where a step reads `together` of them, 1,500 steps.
    """
    count = max(len(source.split("train")), 1)
    return max(least, max(50_000, 1_500 * min(together, count)) / count)


@final
@dataclass(frozen=True)
class Task:
    """FittedT task on the trunk: a data source, a tokenizer and a head."""

    source: Source
    tokenizer: Tokenizer
    head: Head
    loss_weight: float = 1.0
    """What its loss counts for beside the other tasks'."""
    augmentation: Augmentation | None = None
    """What is done to its training batches, each time anew."""
    tta: TestTimeAugmentation | None = None
    """The ways in which validation and test look at each example; None is once, as it is."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss_weight < math.inf:
            raise InputError(f"weight={self.loss_weight}: 0 or more is needed")

    def embed(self, batch: Batch) -> Tokens:
        """A batch as the trunk takes it: Tokens (B, D, N)."""
        return Tokens(self.tokenizer.embed(batch.values, batch.positions), batch.mask, batch.positions)


@final
@dataclass(frozen=True)
class Experiment:
    """Tasks that are trained together on one trunk."""

    name: str
    trunk: Trunk
    tasks: Mapping[str, Task]
    training: Training

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError(f'the experiment "{self.name}" has no task')
        check_name(self.name)
        for name, task in self.tasks.items():
            if not re.fullmatch(r"[\w-]+", name) or hasattr(nn.ModuleDict(), name):
                raise InputError(
                    f'"{name}" cannot name an task: letters, digits, "_" and "-" only, '
                    f"and no name that torch's ModuleDict uses itself, such as keys or pop"
                )
            if task.tokenizer.dim != self.trunk.dim:
                raise InputError(
                    f'the tokenizer of task "{name}" makes columns of D = {task.tokenizer.dim}, '
                    f"and the trunk reads D = {self.trunk.dim}: give both the same dim"
                )
            if (dim := getattr(task.head, "dim", self.trunk.dim)) != self.trunk.dim:
                raise InputError(
                    f'the head of task "{name}" reads columns of D = {dim}, '
                    f"and the trunk makes D = {self.trunk.dim}: give both the same dim"
                )
            perfect = task.head.max_score
            if perfect is None and len(self.tasks) > 1:
                raise InputError(
                    f'the head of task "{name}" knows no perfect score, by whose shares tasks that are trained together '
                    "are scored: give it a metric that has one, as R2 in percent"
                )
            if perfect is not None and not perfect > 0:
                raise InputError(
                    f'the head of task "{name}" says that a perfect score is {perfect:g}: it must be above 0, as of R2 '
                    "in percent, or None where none is known, as of an error with a minus"
                )
            task.head.attach_trunk(self.trunk)


def check_name(name: str) -> None:
    """Raise InputError where a name cannot be a folder's."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise InputError(f'"{name}" names a folder: letters, digits, "_", "-" and "." only, and no "." first')


def check_seed(seed: int) -> int:
    """The seed; raises InputError for one that generators of random numbers do not take."""
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: a number from 0 to {2**32 - 1} is expected")
    return seed


Trainable = Literal["none", "norms", "all"]
"""What of a trunk is trained: nothing; its norms, with the positions and the rest of the tokenizer (Lu et al. 2021,
section 2); everything."""
