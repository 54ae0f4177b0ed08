"""Logging of metrics: metrics.csv always, Weights & Biases, TensorBoard on request.

The words that a run is found by in Weights & Biases: its modalities, and its task."""

import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast, final

from lightning.pytorch.loggers import Logger
from requests.utils import get_netrc_auth

from unifier.experiment import Task
from unifier.files import read_csv, read_json, write_csv
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.text_generation import TextGenerationHead
from unifier_tokenizers import Mixture, PatchTokenizer, SubwordTokenizer, Tokenizer
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.errors import one_line

TrackMode = Literal["online", "offline", "off"]


WandbMode = Literal["online", "offline", "disabled", "shared"]


CONNECT_SECONDS = 30.0
"""Seconds that W&B's server is waited for, unless $WANDB_INIT_TIMEOUT says how many."""


class RunLogger(Protocol):
    """One place that figures go to."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep some figures of a step."""
        ...

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Keep what a finished run leaves in its folder: samples, figures, report, as far as there."""
        ...

    def close(self, *, failed: bool) -> None:
        """Finish, before the next run begins."""
        ...


@final
class MetricsFile:
    """metrics.csv: a row for each time something was logged, a column for each figure."""

    def __init__(self, path: Path) -> None:
        """A file that is there already is continued."""
        self.path = path
        self.earlier: list[Mapping[str, Any]] = []
        self.rows: list[Mapping[str, Any]] = []
        if path.exists():
            self.earlier = [{name: text for name, text in row.items() if text} for row in read_csv(path)]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        row = {"step": step, **metrics}
        # What was logged after the checkpoint that a run resumes from is logged anew.
        self.earlier = [
            old
            for old in self.earlier
            if int(old["step"]) < step or (int(old["step"]) == step and old.keys() != row.keys())
        ]
        self.rows.append(row)
        write_csv(self.path, [*self.earlier, *self.rows])

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Nothing more: it is all in the folder."""

    def close(self, *, failed: bool) -> None:
        """Nothing to finish: the file is whole after each row."""


@final
class TensorBoard:
    """Event files for TensorBoard, in the run's folder."""

    def __init__(self, folder: Path, done: int | None = None) -> None:
        """What was written after the step `done`, that a run resumes from, is purged: it comes again."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=None if done is None else done + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Nothing more: it is all in the folder."""

    def close(self, *, failed: bool) -> None:
        self.writer.close()


@final
class WeightsAndBiases:
    """One W&B run; figures stand over the tokens they cost."""

    unreachable = False
    """Whether the server has been waited for in vain: no later run of this process does so."""

    def __init__(
        self,
        folder: Path,
        *,
        project: str,
        group: str,
        job_type: str,
        tags: Sequence[str],
        config: Mapping[str, Any],
        mode: WandbMode,
    ) -> None:
        """Where the server cannot be reached, this run and all later ones of the process are kept offline."""
        import wandb
        from wandb.errors import CommError

        self.folder = folder
        opened = partial(
            wandb.init,
            project=project,
            group=group,
            job_type=job_type,
            tags=list(tags),
            config=dict(config),
            dir=folder,
            id=folder.name,
            name=folder.name,
            resume="allow",
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", CONNECT_SECONDS))
            ),
        )
        try:
            self.run = opened(mode="offline" if mode == "online" and WeightsAndBiases.unreachable else mode)
        except CommError as error:
            if mode != "online":
                raise
            WeightsAndBiases.unreachable = True
            warnings.warn(
                f"Weights & Biases cannot be reached ({one_line(error)}): this run and those after it are kept "
                "offline, and `wandb sync` sends them",
                stacklevel=2,
            )
            wandb.teardown()  # or its process says that the run goes on
            self.run = opened(mode="offline")
        self.run.define_metric("budget/tokens")
        self.run.define_metric("train/*", step_metric="budget/tokens", summary="min")
        self.run.define_metric("val/*", step_metric="budget/tokens", summary="max")
        self.run.define_metric("test/*", step_metric="budget/tokens")
        self.run.define_metric("budget/flops", step_metric="budget/tokens")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics))

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        import wandb

        samples = folder / "samples.json"
        for task, rows in (read_json(samples) if samples.exists() else {}).items():
            table = wandb.Table(columns=list(rows[0]), data=[_cells(row) for row in rows])
            self.run.log({f"samples/{task}": table})
        for numbers in sorted((folder / "figures").glob("*.csv")):
            if lines := read_csv(numbers):
                table = wandb.Table(columns=list(lines[0]), data=[list(line.values()) for line in lines])
                self.run.log({f"numbers/{numbers.stem}": table})
        for page in (*sorted((folder / "figures").glob("*.svg")), *folder.glob("report.html")):
            self.run.log({page.stem: wandb.Html(page.read_text(encoding="utf-8"), inject=False)})
        # The highest of validation is kept already, where a sweep does not look: only that needs the last as a number.
        plain = {name: value for name, value in metrics.items() if self.run.sweep_id or not name.startswith("val/")}
        self.run.summary.update(plain)

    def close(self, *, failed: bool) -> None:
        try:
            self._keep_checkpoints()
        finally:
            self.run.finish(exit_code=int(failed))

    def _keep_checkpoints(self) -> None:
        """As they are now: those of a run that was stopped too, which may go on."""
        import wandb

        if checkpoints := sorted((self.folder / "checkpoints").glob("*.ckpt")):
            artifact = wandb.Artifact(f"checkpoint-{self.run.id}", type="model")
            for checkpoint in checkpoints:
                artifact.add_file(str(checkpoint))
            self.run.log_artifact(artifact)


def _cells(sample: Mapping[str, str]) -> list[Any]:
    """A sample as a line of W&B's table: its picture is shown, its sound is played."""
    import wandb

    kinds = {"image": '<img src="{}">', "audio": '<audio controls src="{}"></audio>'}
    return [
        wandb.Html(kinds[name].format(value), inject=False) if name in kinds else value
        for name, value in sample.items()
    ]


def wandb_mode(track: TrackMode | None) -> WandbMode:
    """The mode to ask W&B for: what was said, else `$WANDB_MODE`, else online where a key is known."""
    if track in ("online", "offline"):
        return track
    if mode := os.environ.get("WANDB_MODE"):  # W&B itself reads it once in a process
        return cast(WandbMode, mode)
    home = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return "online" if os.environ.get("WANDB_API_KEY") or get_netrc_auth(home) else "offline"


@final
class RunLoggers(Logger):
    """Lightning's logger for all sinks at once: each figure with the budget it cost.

    A sink that fails is named in a warning and left out from then on; training goes on.
    """

    def __init__(self, folder: Path, budget: Callable[[], Mapping[str, float]]) -> None:
        super().__init__()
        self.folder, self.budget = folder, budget
        self.sinks: list[RunLogger] = []

    @property
    def name(self) -> str:
        return self.folder.parent.name

    @property
    def version(self) -> str:
        return self.folder.name

    def add(self, open_sink: Callable[[], RunLogger]) -> None:
        """Open one more sink, if it can be opened."""
        self._guard(lambda: self.sinks.append(open_sink()))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: settings.json and each sink's start hold them."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        spent = self.budget()
        row = {name: value for name, value in metrics.items() if name != "epoch"}
        row |= {f"budget/{name}": spent[name] for name in ("tokens", "flops", "seconds")}
        for sink in tuple(self.sinks):
            self._guard(lambda sink=sink: sink.log(row, int(spent["steps"])), sink)

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Give each sink what the finished run leaves."""
        for sink in tuple(self.sinks):
            self._guard(lambda sink=sink: sink.log_artifacts(folder, metrics), sink)

    def close(self, *, failed: bool) -> None:
        """Finish every sink."""
        for sink in tuple(self.sinks):
            self._guard(lambda sink=sink: sink.close(failed=failed), sink)

    def _guard(self, act: Callable[[], None], sink: RunLogger | None = None) -> None:
        try:
            act()
        except Exception as error:  # whatever a tracker raises is not worth a training run
            if isinstance(sink, MetricsFile):
                raise  # a disk that is full is
            warnings.warn(f"tracking fails and is left out from here on: {one_line(error)}", stacklevel=2)
            self.sinks = [other for other in self.sinks if other is not sink]
            if sink is not None:
                with suppress(Exception):  # or W&B would take the next run for this one
                    sink.close(failed=True)


MODALITY_TAGS = {SubwordTokenizer: "text", PatchTokenizer: "image", AudioTokenizer: "audio"}


TASK_TAGS = {TextGenerationHead: "translation", ClassificationHead: "classification", TaggingHead: "tagging"}


def run_tags(tasks: Iterable[Task]) -> list[str]:
    """What the tasks read, each member of a mixture, and what they answer; of kinds not known here the class's name."""
    tasks = list(tasks)
    read = [_word(one, MODALITY_TAGS) for task in tasks for one in _members(task.tokenizer)]
    return list(dict.fromkeys([*read, *(_word(task.head, TASK_TAGS) for task in tasks)]))


def _members(tokenizer: Tokenizer) -> list[Tokenizer]:
    if not isinstance(tokenizer, Mixture):
        return [tokenizer]
    return [one for member in tokenizer.members.values() for one in _members(member)]


def _word(part: object, known: Mapping[type, str]) -> str:
    return next((word for kind, word in known.items() if isinstance(part, kind)), type(part).__name__)
