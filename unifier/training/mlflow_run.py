"""A run in MLflow, on the server or in the database that $MLFLOW_TRACKING_URI names."""

import logging
import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import final

from lightning.pytorch.loggers import MLFlowLogger

from unifier.files import printable
from unifier.models.folder import MODEL_FOLDER
from unifier.training.loggers import RunLogger, TrackedRun

RUN_TAG = "unifier.run"
"""The tag with the id of the run, by which a resumed run finds its earlier metrics."""

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
"""Number of retries, and timeout in seconds, if the user has set none. MLflow's own 7 retries would take minutes."""

FILES = ("report.html", "samples.json", "predictions.csv", "figures", MODEL_FOLDER)
"""Files and folders of a finished run that become artifacts."""


@contextmanager
def _quiet() -> Generator[None]:
    """Silence messages about the creation of MLflow's database, and a warning that concerns only MLflow's authors."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="sqlalchemy|mlflow|alembic")
            warnings.filterwarnings("ignore", message=".*``noload`` loader strategy")
            yield
    finally:
        logger.setLevel(level)


@final
class MLflow(RunLogger):
    """Adapter of Lightning's `MLFlowLogger` that continues the run of a resumed run, and logs files as artifacts."""

    @_quiet()
    def __init__(self, tracked: TrackedRun) -> None:
        """Start or resume the MLflow run."""
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow

        uri, project = mlflow.get_tracking_uri(), printable(tracked.project)
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name(project)
        number = client.create_experiment(project) if experiment is None else experiment.experiment_id
        earlier = client.search_runs([number], f"tags.`{RUN_TAG}` = '{tracked.id}'", max_results=1)
        tags = {RUN_TAG: tracked.id, "group": tracked.group, "job_type": tracked.job_type}
        tags |= {"tags": ", ".join(tracked.tags), "folder": str(tracked.folder)}
        self.logger = MLFlowLogger(
            project,
            run_name=printable(tracked.name),
            tracking_uri=uri,
            tags={name: printable(value) for name, value in tags.items()},
            run_id=earlier[0].info.run_id if earlier else None,
        )
        if earlier:
            client.update_run(earlier[0].info.run_id, "RUNNING")
        else:
            self.logger.log_hyperparams(dict(tracked.config))  # MLflow refuses a second value, such as a new machine.
        for name in tracked.sources:
            self.logger.experiment.log_artifact(self.logger.run_id, str(tracked.folder / name))

    @_quiet()
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        self.logger.log_metrics({printable(name): value for name, value in metrics.items()}, step)

    @_quiet()
    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Log the model, the samples, the predictions, the figures and the report."""
        for path in (folder / name for name in FILES):
            if path.is_dir():
                self.logger.experiment.log_artifacts(self.logger.run_id, str(path), path.name)
            elif path.exists():
                self.logger.experiment.log_artifact(self.logger.run_id, str(path))

    @_quiet()
    def close(self, *, failed: bool) -> None:
        """End the MLflow run with the status FINISHED or FAILED."""
        self.logger.finalize("failed" if failed else "success")
