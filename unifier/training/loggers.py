"""Logs of a run's metrics: metrics.csv, Weights & Biases and TensorBoard."""

import atexit
import math
import os
import re
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal, Protocol, cast, final

from lightning.pytorch.loggers import Logger
from requests.utils import get_netrc_auth

from unifier.files import printable, read_csv, read_json, write_csv
from unifier.folders import lock_temporary, remove_unlocked
from unifier.models.folder import MODEL_FOLDER, list_model_files
from unifier_tokenizers.errors import one_line

TrackMode = Literal["online", "offline", "off"]
WandbMode = Literal["online", "offline", "disabled", "shared"]

CONNECT_SECONDS = 30.0
"""Maximum time in seconds to wait for W&B's server if $WANDB_INIT_TIMEOUT is not set."""

MAX_TAG, MAX_NAME = 64, 128
"""Maximum lengths of W&B's tags and names."""

MAX_ID, MAX_KEY = 56, 40
"""Maximum lengths of ids and of keys, because W&B joins an id, a key and a hash to the name of an artifact."""

ARTIFACT_CHARACTERS = re.compile(r"[^\w.-]", re.ASCII)
"""Characters that W&B refuses in the name of an artifact."""

RESERVED = re.compile(r"[/\\#?%:;,']")
"""Characters that W&B refuses in a run's id or in the name of a project."""


class RunLogger(Protocol):
    """Destination to which a run's metrics are logged."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        ...

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Log the existing samples, figures and report of a finished run."""
        ...

    def close(self, *, failed: bool) -> None:
        """Close the destination before the next run begins."""
        ...


@final
class RunLoggers(Logger):
    """Lightning logger that writes all metrics and the cost so far to several destinations.

    If a tracker fails, the logger prints a warning, removes the tracker, and training continues. If metrics.csv cannot
    be written, for example on a full disk, the run fails.
    """

    def __init__(self, folder: Path, budget: Callable[[], Mapping[str, float]]) -> None:
        """Create the logger for a run's folder. `budget` is a function that returns the cost so far."""
        super().__init__()
        self.folder, self.budget = folder, budget
        self.loggers: list[RunLogger] = []

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """The id of the run."""
        return self.folder.name

    def add(self, create: Callable[[], RunLogger]) -> None:
        """Create and add a destination."""
        self._guard(lambda: self.loggers.append(create()))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because settings.json and the W&B config contain the settings."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics together with the cost so far."""
        cost = self.budget()
        row = {name: value for name, value in metrics.items() if name != "epoch"}
        row |= {f"budget/{name}": cost[name] for name in ("tokens", "flops", "seconds")}
        for logger in tuple(self.loggers):
            self._guard(lambda logger=logger: logger.log(row, int(cost["steps"])), logger)

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Log the files of a finished run."""
        for logger in tuple(self.loggers):
            self._guard(lambda logger=logger: logger.log_artifacts(folder, metrics), logger)

    def close(self, *, failed: bool) -> None:
        """Close all destinations."""
        for logger in tuple(self.loggers):
            self._guard(lambda logger=logger: logger.close(failed=failed), logger)

    def _guard(self, action: Callable[[], None], logger: RunLogger | None = None) -> None:
        try:
            action()
        except Exception as error:
            if isinstance(logger, MetricsFile):
                raise
            warnings.warn(f"a tracker failed and receives no more metrics: {one_line(error)}", stacklevel=2)
            self.loggers = [other for other in self.loggers if other is not logger]
            if logger is not None:
                with suppress(Exception):  # An open W&B run would log the next run's metrics.
                    logger.close(failed=True)


@final
class MetricsFile:
    """Writer of metrics.csv, with a row for each call of `log` and a column for each metric."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        """Create the writer of metrics.csv.

        Args:
            path: The file. Each call of `log` writes all rows.
            rows: The list to which rows are appended. A checkpoint contains the rows, so a resumed run does not
                depend on the file.
        """
        self.path, self.rows = path, rows

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a row."""
        self.rows.append({"step": step, **metrics})
        write_csv(self.path, self.rows)

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Do nothing, because the files are already in the run's folder."""

    def close(self, *, failed: bool) -> None:
        """Do nothing, because metrics.csv is complete after each row."""


@final
class TensorBoard:
    """Writer of TensorBoard event files in the run's folder."""

    def __init__(self, folder: Path, done: int | None = None) -> None:
        """Open the event files. If the run resumes from step `done`, events of later steps are removed."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=None if done is None else done + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(printable(name), value, step)

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Do nothing, because the files are already in the run's folder."""

    def close(self, *, failed: bool) -> None:
        """Close the event files."""
        self.writer.close()


TEMPORARY_PREFIX = f"unifier-wandb-{os.getuid()}-"
"""The first letters of the names of temporary folders for W&B."""


@contextmanager
def own_temporary_folder() -> Generator[None]:
    """Let W&B create its temporary folders in a folder of this process during W&B's import.

    W&B removes its folders at the end of the process, but not after a SIGKILL. The folder is locked by this process, so
    that a later process removes it if this process was killed.
    """
    if "wandb" in sys.modules:
        yield
        return
    parent = Path(tempfile.gettempdir())
    remove_unlocked(parent, TEMPORARY_PREFIX)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    stack = ExitStack()
    with suppress(OSError):  # Some file systems have no locks.
        stack.enter_context(lock_temporary(folder))
    stack.callback(rmtree, folder, ignore_errors=True)
    atexit.register(stack.close)
    previous, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = previous


@final
class WeightsAndBiases:
    """W&B run with the number of tokens as x-axis of all charts."""

    unreachable = False
    """True if W&B's server could not be reached. Later runs of the process start offline."""

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
        data: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Start or resume the W&B run. If the server cannot be reached, the run is stored offline.

        Args:
            folder: The run's folder. The name of the folder is the id of the W&B run. A long id is shortened.
            project: The name of the W&B project.
            group: The group of runs in W&B.
            job_type: "train", "pretrain", "transfer" or "evaluate".
            tags: The modalities and task types of the run.
            config: The settings of the run, and facts such as the seed and the data sets.
            mode: The mode of W&B.
            data: Name, hash and sizes of each task's data set, and the metrics that are errors. W&B shows the run as a
                user of these data sets.
        """
        with own_temporary_folder():
            import wandb
        from wandb.errors import CommError

        self.folder = folder
        init = partial(
            wandb.init,
            project=wandb_name(project),
            group=shorten_name(group),
            job_type=job_type,
            tags=list(dict.fromkeys(shorten_name(tag, MAX_TAG) for tag in tags if tag)),
            config=dict(config),
            dir=folder,
            id=wandb_name(folder.name, MAX_ID),
            name=shorten_name(folder.name),
            resume="allow",
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", CONNECT_SECONDS))
            ),
        )
        try:
            self.run = init(mode="offline" if mode == "online" and WeightsAndBiases.unreachable else mode)
        except CommError as error:
            if mode != "online":
                raise
            WeightsAndBiases.unreachable = True
            warnings.warn(
                f"Weights & Biases cannot be reached ({one_line(error)}): this run and later runs are stored "
                "offline; upload them with `wandb sync`",
                stacklevel=2,
            )
            wandb.teardown()  # Without `teardown`, W&B's process would continue the failed attempt.
            self.run = init(mode="offline")
        self.run.define_metric("budget/tokens")
        self.run.define_metric("train/*", step_metric="budget/tokens", summary="min")
        self.run.define_metric("val/*", step_metric="budget/tokens", summary="max")
        for task, described in (data or {}).items():
            for metric in described.get("lower_is_better", ()):
                name = printable(f"val/{task}/{metric}")
                self.run.define_metric(name, step_metric="budget/tokens", summary="min")
        self.run.define_metric("test/*", step_metric="budget/tokens")
        self.run.define_metric("budget/flops", step_metric="budget/tokens")
        try:
            for described in (data or {}).values():
                self._log_data(described)
        except BaseException:
            self.close(failed=True)  # An open W&B run would log the next run's metrics.
            raise

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        self.run.log({printable(name): value for name, value in metrics.items()})

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Log the model, the samples, the figures with their numbers, and the report. Update the summary of the run."""
        with self._staging_in_folder():
            self._log_model(metrics)
            self._log_files(folder)
        # The summary already contains the best validation scores. Sweeps need the last score as a plain number.
        summary = {name: value for name, value in metrics.items() if self.run.sweep_id or not name.startswith("val/")}
        self.run.summary.update(summary)

    def close(self, *, failed: bool) -> None:
        """Finish the W&B run."""
        self.run.finish(exit_code=int(failed))

    def _log_files(self, folder: Path) -> None:
        import wandb

        samples = folder / "samples.json"
        for task, rows in (read_json(samples) if samples.exists() else {}).items():
            table = wandb.Table(columns=list(rows[0]), data=[_table_row(row) for row in rows])
            self.run.log({f"samples/{shorten_name(task, MAX_KEY)}": table})
        for numbers in sorted((folder / "figures").glob("*.csv")):
            if lines := read_csv(numbers):
                table = wandb.Table(columns=list(lines[0]), data=[list(line.values()) for line in lines])
                self.run.log({f"numbers/{shorten_name(numbers.stem, MAX_KEY)}": table})
        for page in (*sorted((folder / "figures").glob("*.svg")), *folder.glob("report.html")):
            content = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
            self.run.log({shorten_name(page.stem, MAX_KEY): content})

    def _log_data(self, described: Mapping[str, Any]) -> None:
        """Log a data set as an artifact that contains only its hash, and mark the artifact as an input of the run."""
        import wandb
        from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry
        from wandb.sdk.lib.paths import LogicalPath

        if self.run.disabled:  # A disabled run has none of the internals that the artifact needs.
            return
        artifact = wandb.Artifact(artifact_name(f"data-{described['name']}"), type="dataset", metadata=dict(described))
        reference = f"sha256:{described['sha256']}"
        # W&B's method `add_reference` would warn that it cannot check the hash of the reference.
        artifact.manifest.add_entry(ArtifactManifestEntry(path=LogicalPath("sha256"), ref=reference, digest=reference))
        # W&B's public method `use_artifact` waits for the server, and fails offline.
        self.run._log_artifact(artifact, use_after_commit=True)  # pyright: ignore[reportPrivateUsage]

    def _log_model(self, scores: Mapping[str, float]) -> None:
        """Log the model's folder as an artifact with the scores as metadata."""
        import wandb

        folder = self.folder / MODEL_FOLDER
        if not folder.is_dir():
            return
        finite = {name: value for name, value in scores.items() if math.isfinite(value)}
        artifact = wandb.Artifact(f"model-{self.run.id}", type="model", metadata=finite)
        for name in list_model_files(folder):
            # The files of a finished run do not change, so W&B needs no copy of them.
            artifact.add_file(str(folder / name), name, policy="immutable")
        self.run.log_artifact(artifact, aliases=["best", "latest"])

    @contextmanager
    def _staging_in_folder(self) -> Generator[None]:
        """Store the files that W&B uploads later in the run's folder, with relative paths, if the run is offline.

        A relative path also holds in a copy of the run's folder.
        """
        if not self.run.offline:
            yield
            return
        variable, log_artifact = "WANDB_DATA_DIR", self.run.log_artifact
        is_set = variable in os.environ
        if not is_set:
            os.environ[variable] = str(self.folder / "wandb")

        def log_relative(artifact: Any, **options: Any) -> Any:
            folder = os.path.abspath(self.folder)  # noqa: PTH100  Path.resolve would follow links.
            for entry in artifact.manifest.entries.values():
                path = os.path.relpath(entry.local_path, folder)
                if not path.startswith(os.pardir):
                    entry.local_path = path
            return log_artifact(artifact, **options)

        # W&B has no option for the paths, and logs the files of a table itself.
        self.run.log_artifact = log_relative  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            self.run.log_artifact = log_artifact  # pyright: ignore[reportAttributeAccessIssue]
            if not is_set:
                del os.environ[variable]


def _table_row(sample: Mapping[str, str]) -> list[Any]:
    """Return a sample as a row of a W&B table. A picture is shown as an image, and a sound as an audio player."""
    import wandb

    elements = {"image": '<img src="{}">', "audio": '<audio controls src="{}"></audio>'}
    return [
        wandb.Html(elements[name].format(value), inject=False) if name in elements else value
        for name, value in sample.items()
    ]


def shorten_name(name: str, max_length: int = MAX_NAME) -> str:
    """Escape control characters. If the name is too long, replace its end with a hash of the name."""
    name = printable(name)
    if len(name) <= max_length:
        return name
    return f"{name[: max_length - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def wandb_name(name: str, max_length: int = MAX_NAME) -> str:
    """Return an id or a project's name that W&B accepts: short, and without reserved characters and outer spaces."""
    return shorten_name(RESERVED.sub("_", name.strip()) or "_", max_length)


def artifact_name(name: str) -> str:
    """Return a name for an artifact that W&B accepts."""
    return shorten_name(ARTIFACT_CHARACTERS.sub("_", printable(name)), MAX_NAME)


def wandb_mode(track: TrackMode | None) -> WandbMode:
    """Return the requested W&B mode, else `$WANDB_MODE`, else "online" if an API key is found, else "offline"."""
    if track in ("online", "offline"):
        return track
    if mode := os.environ.get("WANDB_MODE"):  # W&B itself reads the variable only once per process.
        return cast(WandbMode, mode)
    url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return "online" if os.environ.get("WANDB_API_KEY") or get_netrc_auth(url) else "offline"
