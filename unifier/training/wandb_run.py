"""A run in Weights & Biases: its metrics, its data, its model, its source, and messages to the user."""

import base64
import io
import math
import os
import re
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast, final

import soundfile
from PIL import Image
from requests.utils import get_netrc_auth

from unifier.files import printable, read_csv, read_json
from unifier.folders import own_temporary_folder
from unifier.models.folder import MODEL_FOLDER, list_model_files
from unifier.training.loggers import RunLogger, TrackedRun
from unifier_tokenizers.errors import one_line

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


TEMPORARY_PREFIX = f"unifier-wandb-{os.getuid()}-"
"""The first letters of the names of temporary folders for W&B."""


@final
class WeightsAndBiases(RunLogger):
    """W&B run with the number of tokens as x-axis of all charts.

    The variables WANDB_PROJECT, WANDB_RUN_GROUP and WANDB_NAME replace our values, and WANDB_TAGS adds tags. W&B itself
    reads the variables only once per process.
    """

    unreachable = False
    """True if W&B's server could not be reached. Later runs of the process start offline."""

    def __init__(self, tracked: TrackedRun, mode: WandbMode) -> None:
        """Start or resume the W&B run. If the server cannot be reached, the run is stored offline."""
        # W&B removes its temporary folders at the end of the process, but not after a SIGKILL.
        with nullcontext() if "wandb" in sys.modules else own_temporary_folder(TEMPORARY_PREFIX):
            import wandb
        from wandb.errors import CommError

        self.folder = tracked.folder
        tags = (*tracked.tags, *os.environ.get("WANDB_TAGS", "").split(","))
        init = partial(
            wandb.init,
            project=project_name(tracked.project),
            group=shorten_name(os.environ.get("WANDB_RUN_GROUP") or tracked.group),
            job_type=tracked.job_type,
            tags=list(dict.fromkeys(shorten_name(tag.strip(), MAX_TAG) for tag in tags if tag.strip())),
            config=dict(tracked.config),
            dir=tracked.folder,
            id=wandb_name(tracked.id, MAX_ID),
            name=shorten_name(_display_name(tracked)),
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
        for task, described in tracked.data.items():
            for metric in described.get("lower_is_better", ()):
                name = printable(f"val/{task}/{metric}")
                self.run.define_metric(name, step_metric="budget/tokens", summary="min")
        self.run.define_metric("test/*", step_metric="budget/tokens")
        self.run.define_metric("budget/flops", step_metric="budget/tokens")
        try:
            for described in tracked.data.values():
                self._log_data(described)
            self._log_source(tracked)
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

    def alert(self, title: str, text: str, *, failed: bool) -> None:
        """Send a message by e-mail or Slack, as the user has set in W&B."""
        self.run.alert(shorten_name(title, MAX_TAG - 1), printable(text), level="ERROR" if failed else "INFO")

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

    def _log_source(self, tracked: TrackedRun) -> None:
        """Log the copies of the experiment's files as the source of the run."""
        if not tracked.sources or self.run.disabled:
            return
        with self._staging_in_folder():
            self.run.log_code(
                str(tracked.folder),
                name=artifact_name(f"source-{tracked.project}"),
                include_fn=lambda path, root: os.path.relpath(path, root) in tracked.sources,
            )

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
        # Public methods, such as `log_code`, call the private method.
        variable, run = "WANDB_DATA_DIR", cast(Any, self.run)
        log_artifact = run._log_artifact
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
        run._log_artifact = log_relative
        try:
            yield
        finally:
            run._log_artifact = log_artifact
            if not is_set:
                del os.environ[variable]


def _table_row(sample: Mapping[str, str]) -> list[Any]:
    """Return a sample as a row of a W&B table, with pictures as `wandb.Image` and sounds as `wandb.Audio`."""
    import wandb

    row: list[Any] = []
    for name, value in sample.items():
        if name in ("image", "target_image", "prediction_image"):
            row.append(wandb.Image(Image.open(_read_data_url(value))))
        elif name in ("audio", "target_audio", "prediction_audio"):
            samples, rate = soundfile.read(_read_data_url(value))
            row.append(wandb.Audio(samples, sample_rate=rate))
        else:
            row.append(value)
    return row


def _read_data_url(url: str) -> io.BytesIO:
    return io.BytesIO(base64.b64decode(url.partition(",")[2]))


def _display_name(tracked: TrackedRun) -> str:
    """Return the name of a run in W&B. In a comparison, $WANDB_NAME precedes the condition of each trial."""
    given = os.environ.get("WANDB_NAME")
    return f"{given}: {tracked.name}" if given and tracked.in_comparison else given or tracked.name


def project_name(project: str) -> str:
    """Return $WANDB_PROJECT, or without the variable the name of the project, as W&B accepts it."""
    return wandb_name(os.environ.get("WANDB_PROJECT") or project)


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


def wandb_mode(track: str | None) -> WandbMode:
    """Return the requested W&B mode, else `$WANDB_MODE`, else "online" if an API key is found, else "offline"."""
    if track in ("online", "offline"):
        return track
    if mode := os.environ.get("WANDB_MODE"):  # W&B itself reads the variable only once per process.
        return cast(WandbMode, mode)
    url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return "online" if os.environ.get("WANDB_API_KEY") or get_netrc_auth(url) else "offline"
