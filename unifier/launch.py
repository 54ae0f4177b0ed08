"""The function `run`, which runs an experiment or a comparison."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unifier.comparison import Comparison, ExperimentFn
from unifier.config import (
    build_comparison,
    build_described,
    check_settings,
    experiment_reference,
    parse_setting,
    split_reference,
)
from unifier.data.source import use_data_folder, use_starting_folders
from unifier.distributed import failing_together, from_main, is_launched, world
from unifier.experiment import Experiment, check_name
from unifier.files import print_status, read_json
from unifier.folders import TRIALS_FOLDER
from unifier.models.folder import forget_downloads
from unifier.training.named_runs import check_same_settings, find_named_folder, read_finished
from unifier.training.result import Result
from unifier.trials.plan import cross_validation
from unifier_tokenizers import InputError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from unifier.training.lightning_options import GivenCallback, GivenTrainer
    from unifier.training.trackers import CreateLogger, TrackMode
    from unifier.trials.ray import RayOptions


def run(
    experiment: Callable[..., Experiment | Comparison],
    *,
    seed: int | None = None,
    data_folder: str | Path | None = None,
    out: str | Path | None = None,
    track: "TrackMode | None" = None,
    tensorboard: bool = False,
    loggers: "Sequence[Logger | CreateLogger]" = (),
    callbacks: "Sequence[GivenCallback]" = (),
    trainer: "GivenTrainer | None" = None,
    resume: str | Path | None = None,
    name: str | None = None,
    devices: "int | str | None" = None,
    nodes: int | None = None,
    ray: str | None = None,
    trial_cpus: int | None = None,
    trial_gpus: float | None = None,
    **settings: Any,
) -> list[Result]:
    """Run an experiment or a comparison, and return the result of each run.

    Args:
        experiment: A function that returns an `Experiment` or a `Comparison`.
        seed: The random seed, 0 by default. A comparison has its own seeds.
        data_folder: The folder of data sets. The default is $UNIFIER_DATA.
        out: The folder in which the run's folder is created, "runs" by default.
        track: The mode of Weights & Biases, or "mlflow" or "trackio" for another tracker. The default is $WANDB_MODE.
            If $WANDB_MODE is not set, the default is online with an API key, and offline without an API key.
        tensorboard: True to write event files for TensorBoard.
        loggers: Lightning loggers, or functions that create the logger of a run, such as
            `lambda run: CSVLogger(run.folder)`. A comparison needs functions.
        callbacks: Lightning callbacks, or functions that create them. A comparison needs functions.
        trainer: Arguments of Lightning's Trainer that do not change the plan of the run, such as
            `{"profiler": "simple"}`, or a function that returns the arguments.
        resume: The folder of an interrupted run or comparison. The resumed run or comparison keeps its folder, settings
            and seed. With "auto", an unfinished run of the given name is resumed, and a finished run is only returned.
        name: The name of the run's folder. The default is a unique name.
        devices: The number of devices of each machine that train the model together, or "auto" for all accelerators.
            Each device has one process, for which Lightning runs this program again. The default is the number of
            processes that torchrun or srun has started, or 1.
        nodes: The number of machines. The program is started once on each machine, with $MASTER_ADDR, $MASTER_PORT and
            $NODE_RANK, or by torchrun or srun.
        ray: "local" runs the trials of a comparison at the same time on this machine, with Ray. HOST:PORT is the
            address of a Ray cluster, and "auto" finds a Ray that is running. By default, one trial runs after another.
        trial_cpus: With `ray`, the number of CPUs and threads of each trial, by default 1.
        trial_gpus: With `ray`, the number of GPUs of each trial, such as 0.5. The default is 1 if there are GPUs.
        settings: The keyword arguments of the function. With `folds=5`, the experiment is trained and tested once for
            each of five folds and for each seed in `seeds`.

    Raises:
        InputError: The input is wrong. The error message describes how to correct the input.
        Interrupted: The user pressed Ctrl-C.
        RunFailed: Training diverged, or an unexpected error occurred.
    """
    with use_data_folder(data_folder), failing_together():
        return run_in_folder(
            experiment,
            settings,
            seed=seed,
            out=out,
            track=track,
            tensorboard=tensorboard,
            loggers=loggers,
            callbacks=callbacks,
            trainer=trainer,
            resume=resume,
            name=name,
            devices=devices,
            nodes=nodes,
            ray=ray,
            trial_cpus=trial_cpus,
            trial_gpus=trial_gpus,
        )[0]


def run_in_folder(
    experiment: Callable[..., Experiment | Comparison],
    settings: Mapping[str, Any],
    *,
    seed: int | None,
    out: str | Path | None,
    track: "TrackMode | None",
    tensorboard: bool,
    resume: str | Path | None,
    loggers: "Sequence[Logger | CreateLogger]" = (),
    callbacks: "Sequence[GivenCallback]" = (),
    trainer: "GivenTrainer | None" = None,
    name: str | None = None,
    devices: int | str | None = None,
    nodes: int | None = None,
    ray: str | None = None,
    trial_cpus: int | None = None,
    trial_gpus: float | None = None,
) -> tuple[list[Result], Path]:
    """Run an experiment or a comparison like `run`. Return the results and their folder."""
    if not inspect.isfunction(experiment):
        raise InputError(f"{experiment!r} is not a function: give a function that returns an Experiment")
    forget_downloads()
    signature = inspect.signature(experiment, eval_str=True)
    runs, is_automatic = Path("runs" if out is None else out), resume == "auto"
    if devices not in (None, 1, "1") or nodes not in (None, 1) or is_launched(os.environ):
        from unifier.training.parallel import start_processes

        start_processes(devices, nodes)
    resume_folder = from_main(lambda: _find_resumed(runs, resume, name, experiment.__name__))
    earlier: dict[str, Any] = {}
    is_comparison = signature.return_annotation is Comparison
    if resume_folder is not None and is_automatic:
        earlier = _read_earlier(resume_folder, experiment.__name__)
    elif resume_folder is not None:
        if given := [*settings, *(["seed"] if seed is not None else [])]:
            raise InputError(f"{resume}: a resumed run keeps its settings; leave out {', '.join(given)}")
        is_comparison = is_comparison or (resume_folder / "comparison.json").exists()
        earlier = _read_earlier(resume_folder, experiment.__name__)
        settings, seed = earlier["settings"], earlier.get("seed")
    with use_starting_folders(earlier):
        number = 0 if seed is None else parse_setting("seed", seed, int)
        if "folds" in settings and "folds" not in signature.parameters and signature.return_annotation is Experiment:
            comparison, checked = cross_validation(cast("ExperimentFn", experiment), settings, number)
        elif is_comparison:
            if seed is not None:
                raise InputError(f"seed={seed}: a comparison has its own seeds; change its setting instead")
            comparison, checked = build_comparison(experiment, settings)
        else:
            comparison, checked = None, check_settings(experiment, settings)
            if not earlier:
                _check_effect(settings, checked)
        if resume_folder is not None and is_automatic:
            check_same_settings(resume_folder, checked, None if comparison else number)
            if (results := read_finished(resume_folder)) is not None:
                print_status(f"{resume_folder}: the run has already finished, so there is nothing to train")
                return results, resume_folder
        # The trainer takes seconds to import, so it is imported only after the checks above. In Jupyter, transformers
        # imports a progress bar that warns about missing widgets, which unifier does not use.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")
            from unifier.training.fit import fit
            from unifier.training.run_context import RunContext
        from unifier.training.lightning_options import LightningOptions
        from unifier.training.trackers import check_trackers
        from unifier.trials.runner import compare

        check_trackers(track, loggers, several_runs=comparison is not None)
        options = LightningOptions(callbacks, trainer or {})
        options.check(several_runs=comparison is not None)
        cluster = _cluster(ray, trial_cpus, trial_gpus, is_comparison=comparison is not None)
        if world().size > 1 and (cluster is not None or (comparison is not None and comparison.search is not None)):
            raise InputError(
                f"Ray and searches start in one process, not in {world().size}: leave out devices, nodes and torchrun"
            )
        context = RunContext(
            out=runs,
            name=name,
            study=Path(inspect.getfile(experiment)).stem,
            wandb=track,
            tensorboard=tensorboard,
            loggers=loggers,
            lightning=options,
            origin=experiment_reference(experiment),
        )
        if comparison is not None:
            return compare(comparison, checked, context, resume_folder, executor=cluster and cluster.executor)
        result = fit(lambda: build_described(experiment, checked, Experiment), checked, number, context, resume_folder)
        return [result], result.folder


def _check_effect(given: Mapping[str, Any], checked: Mapping[str, Any]) -> None:
    """Raise InputError for a given setting without effect, and print a warning for one that the trunk ignores.

    Args:
        given: The settings that the user gave.
        checked: The values of all settings.
    """
    if "start_tokenizers" in given and not checked["start_tokenizers"] and checked.get("start") is None:
        raise InputError("start_tokenizers=false has no effect without a trained model: add start=RUN, or leave it out")
    trunk = str(checked.get("trunk"))
    if "depth" in given and trunk.startswith(("timm:", "hf:")):
        line = f"warning: depth={checked['depth']} does not change the trunk, because trunk={trunk} has its own layers"
        print_status(line, sys.stderr)


def _cluster(address: str | None, cpus: int | None, gpus: float | None, *, is_comparison: bool) -> "RayOptions | None":
    """Return the options of Ray, or None without Ray. Raise InputError if an option is wrong."""
    if address is None:
        if cpus is not None or gpus is not None:
            raise InputError("trial_cpus and trial_gpus are for trials that run with Ray: add ray, or leave them out")
        return None
    if not is_comparison:
        raise InputError(f"ray={address}: Ray runs the trials of a comparison, or folds=N; leave out ray for one run")
    from unifier.trials.ray import RayOptions

    options = RayOptions(address, 1 if cpus is None else cpus, gpus)
    options.check()
    return options


def _find_resumed(out: Path, resume: str | Path | None, name: str | None, function: str) -> Path | None:
    """Return the folder that is resumed, or None for a new run or comparison.

    Raises:
        InputError: The name is not a valid name of a folder, or does not fit the given `resume`.
    """
    if name is not None:
        check_name(name)
    if resume == "auto":
        if name is None:
            raise InputError("resume=auto needs the name of the run: give --name NAME, or in Python name=NAME")
        return find_named_folder(out, name, function)
    if resume is not None and name is not None:
        raise InputError(f"name={name} and resume={resume}: a resumed run keeps its folder; leave out the name")
    # A symbolic link is resolved, because the name of the real folder is the run's id.
    return None if resume is None else Path(resume).resolve()


def _read_earlier(folder: Path, name: str) -> dict[str, Any]:
    """Read settings.json of a run, or comparison.json of a comparison.

    Raises:
        InputError: The folder does not belong to the experiment `name`, or is the folder of a run in a comparison.
    """
    is_comparison = (folder / "comparison.json").exists() or (folder / TRIALS_FOLDER).is_dir()
    earlier = read_json(folder / ("comparison.json" if is_comparison else "settings.json"), settings=dict)
    if owner := earlier.get("comparison"):
        raise InputError(f'{folder} is a run of the comparison "{owner}": resume the folder of the comparison')
    reference = earlier.get("study")
    if isinstance(reference, str) and (started := split_reference(reference)[1]) != name:
        kind = "comparison" if is_comparison else "run of"
        raise InputError(f'{folder} is a {kind} "{started}", and cannot resume as "{name}"')
    return earlier
