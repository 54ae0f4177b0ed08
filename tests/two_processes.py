"""Two processes on one machine, connected by gloo, which train small experiments for tests."""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from socket import socket
from typing import Any, final

import numpy as np
import torch
from torch import nn

from unifier import (
    ClassificationHead,
    Experiment,
    PatchTokenizer,
    SegmentationHead,
    SubwordTokenizer,
    Task,
    Training,
    Transformer,
    TranslationHead,
    Vocabulary,
)
from unifier.data.packed import PackedSource
from unifier.data.source import Example, SplitName
from unifier.datasets import Digits, GrammarPairs
from unifier.distributed import world
from unifier.heads.hard_attention import HardAttentionHead
from unifier.heads.masked_language_modeling import MASK
from unifier.heads.replaced_token_detection import ReplacedTokenDetectionHead
from unifier.objectives.masked_tokens import MaskedTokens
from unifier.training.fit import fit
from unifier.training.lightning_module import UnifierModule, hash_tensors
from unifier.training.parallel import start_processes
from unifier.training.result import Interrupted, Result
from unifier.training.run_context import RunContext
from unifier.training.trainer import train_and_test
from unifier_tokenizers import Tokens
from unifier_tokenizers.shares import drawn_shape, own_rows

D, SECONDS = 8, 500
TEXTS = [text for example in GrammarPairs().split("train") for text in example]
VOCABULARY = Vocabulary.fit(TEXTS, size=300, extra=(MASK,))


@final
class Few:
    """The first examples of each split of a source."""

    def __init__(self, source: Any, train: int = 61, held_out: int = 23) -> None:
        self.source, self.name, self.labels = source, source.name, getattr(source, "labels", ())
        self.sizes = {"train": train, "val": held_out, "test": held_out}

    def split(self, name: SplitName) -> list[Example]:
        return [self.source.split(name)[k] for k in range(self.sizes[name])]


@final
class Masks:
    """Pictures of digits, with the mask of their bright pixels."""

    name = "masks"

    def split(self, name: SplitName) -> list[Example]:
        pictures = [np.asarray(Digits().split(name)[k].input) for k in range(23)]
        return [Example(picture, (picture > picture.mean()).reshape(picture.shape[:2]) + 0) for picture in pictures]


def replaced_words() -> Task:
    tokenizer = SubwordTokenizer(VOCABULARY, D)
    head = ReplacedTokenDetectionHead(VOCABULARY, D, embedding=tokenizer.embedding, generator_depth=1, dropout=0.1)
    return Task(Few(GrammarPairs()), tokenizer, head, objective=MaskedTokens(VOCABULARY))


TASKS: dict[str, Callable[[], Task]] = {
    "digits": lambda: Task(
        Few(Digits()), PatchTokenizer(D, channels=1, dropout=0.1), ClassificationHead(Digits.labels, D)
    ),
    "text": lambda: Task(
        Few(GrammarPairs()),
        SubwordTokenizer(VOCABULARY, D, dropout=0.1),
        TranslationHead(VOCABULARY, D, depth=1, heads=2, dropout=0.1, r_drop=0.5),
    ),
    "packed": lambda: Task(  # The few digits, packed at an address.
        PackedSource(os.environ["PACKED_DIGITS"]),
        PatchTokenizer(D, channels=1, dropout=0.1),
        ClassificationHead(Digits.labels, D),
    ),
    "hard": lambda: Task(
        Few(GrammarPairs()), SubwordTokenizer(VOCABULARY, D), HardAttentionHead(VOCABULARY, D, depth=1, dropout=0.1)
    ),
    "masks": lambda: Task(Masks(), PatchTokenizer(D, patch=4, channels=1), SegmentationHead("ab", D, patch=4)),
    "replaced": replaced_words,
    "rare": lambda: Task(
        Few(Digits(), held_out=1), PatchTokenizer(D, channels=1), ClassificationHead(Digits.labels, D)
    ),
}


@dataclass
class Trained:
    """A finished run, and what its process has seen."""

    result: Result
    hashes: list[str] = field(default_factory=list[str])
    """The hash of all weights after the run."""
    indices: list[list[int]] = field(default_factory=list[list[int]])
    """The indices of the examples in each training batch of this process."""
    predicted: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The indices of the predictions of the test split."""
    predictions: dict[str, dict[int, Any]] = field(default_factory=dict[str, dict[int, Any]])
    """For each task, the predictions of the test split, keyed by example index."""
    draws: list[float] = field(default_factory=list[float])
    """Random numbers that are drawn in the trunk for this process's training examples, one per example and step."""
    losses: list[float] = field(default_factory=list[float])
    """All logged losses."""


def own_rank() -> int:
    """Return the rank of this process, also for a naive trainer."""
    return int(os.environ.get("RANK", "0"))


def nothing(_: Experiment) -> None:
    """Leave an experiment as it is."""


def train(
    folder: Path,
    tasks: Sequence[str],
    wrap: Callable[[Experiment], object] = nothing,
    resume: Path | None = None,
    experts: int = 1,
    **training: Any,
) -> Trained:
    """Train a small experiment.

    Args:
        folder: The folder of runs.
        tasks: Keys of `TASKS`.
        wrap: A function that changes the experiment.
        resume: The folder of the run to resume.
        experts: The number of feed-forward networks in the trunk.
        training: Settings of the training.
    """
    seen = Trained(None)  # pyright: ignore[reportArgumentType]

    def build() -> Experiment:
        settings: dict[str, Any] = {
            "batch_tokens": 200,
            "num_validations": 2,
            "num_workers": 0,
            "precision": "float32",
            **training,
        }
        named = {name: TASKS[name]() for name in tasks}
        experiment = Experiment(
            Transformer(D, 1, 2, 8, dropout=0.1, experts=experts), named, Training(**settings), name="small"
        )
        wrap(experiment)
        return experiment

    def observe(model: UnifierModule, *args: Any, **options: Any) -> dict[str, float]:
        step = model.training_step

        def training_step(batch: Any, batch_idx: int) -> Any:
            seen.indices.append(batch[1].example_indices.tolist())
            return step(batch, batch_idx)

        def draw(trunk: nn.Module, given: tuple[Tokens, ...]) -> None:
            if trunk.training:
                seen.draws.extend(own_rows(torch.rand(drawn_shape(given[0].mask.shape[:1]))).tolist())

        model.training_step = training_step
        model.trunk.register_forward_pre_hook(draw)
        scores = train_and_test(model, *args, **options)
        seen.hashes.append(hash_tensors(model.state_dict().values()))
        seen.predictions = dict(model.predictions)
        seen.predicted = {task: list(predictions) for task, predictions in model.predictions.items()}
        seen.losses = [row[name] for row in model.logged for name in row if name.endswith("/loss")]
        return scores

    context = RunContext(folder, "study", wandb="off")
    seen.result = fit(build, {}, 0, context, resume=resume, train=observe)
    return seen


def stop(folder: Path, tasks: Sequence[str], *, rank: int, step: int, sent: int = signal.SIGTERM, **given: Any) -> Path:
    """Train like `train`, with a signal to one process in one of its steps. Return the folder of the stopped run."""
    steps = count(1)

    def press(trunk: Any, inputs: Any, output: Any) -> None:
        training = torch.is_grad_enabled() and trunk.training and len(output.mask) > 1
        if training and own_rank() == rank and next(steps) == step:
            os.kill(os.getpid(), sent)

    try:
        train(folder, tasks, lambda experiment: experiment.trunk.register_forward_hook(press), **given)
    except Interrupted as stopped:
        return stopped.folder
    raise AssertionError("the run was not stopped")


def normalize(experiment: Experiment) -> None:
    """Add a batch norm behind the trunk."""
    experiment.trunk.added = nn.BatchNorm1d(D)
    experiment.trunk.register_forward_hook(
        lambda trunk, _, tokens: tokens._replace(matrix=trunk.added(tokens.matrix))  # pyright: ignore
    )


def slow(experiment: Experiment) -> None:
    """Slow down rank 1, and give it other scores."""
    head = experiment.tasks["digits"].head
    head.metrics = lambda *_: {"accuracy": 50 + own_rank()}  # pyright: ignore[reportAttributeAccessIssue]
    experiment.trunk.register_forward_hook(lambda *_: time.sleep(0.02 * own_rank()))


@final
class Pair:
    """Two processes that call functions together."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pipes, self.processes = [], []
        for rank in (0, 1):
            pipe, theirs = spawn.Pipe()
            self.processes.append(spawn.Process(target=serve, args=(rank, port, theirs), daemon=True))
            self.processes[-1].start()
            self.pipes.append(pipe)

    def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Call a function in both processes, and return the two results. An error of a process is raised."""
        for pipe in self.pipes:
            pipe.send((function, args, options))
        results: list[Any] = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(SECONDS), f"process {rank} does not answer"
            results.append(pipe.recv())
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def close(self) -> None:
        """End both processes."""
        for process in self.processes:
            process.kill()
            process.join()


def serve(rank: int, port: int, pipe: Any) -> None:
    """Connect a process with the other process, and call the functions that arrive."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    start_processes()
    assert world().size == 2
    while True:
        function, args, options = pipe.recv()
        try:
            pipe.send(function(*args, **options))
        except BaseException:
            pipe.send(RuntimeError(traceback.format_exc()))
