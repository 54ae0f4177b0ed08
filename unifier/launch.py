"""run: one call that runs an experiment or a comparison."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unifier.comparison import Comparison, ExperimentFn
from unifier.config import build_described, check_settings, experiment_reference, parse_setting, split_reference
from unifier.data.source import use_data_folder
from unifier.experiment import Experiment
from unifier.files import read_json
from unifier.training.result import Result
from unifier.trials.plan import cross_validation
from unifier_tokenizers import InputError

if TYPE_CHECKING:
    from unifier.training.loggers import TrackMode


def run(
    experiment: Callable[..., Experiment | Comparison],
    *,
    seed: int | None = None,
    data_folder: str | Path | None = None,
    out: str | Path | None = None,
    track: "TrackMode | None" = None,
    tensorboard: bool = False,
    resume: str | Path | None = None,
    **settings: Any,
) -> list[Result]:
    """Run the experiment or comparison that a function describes, under settings that are its keyword arguments.

    `seed` is 0 if not given; a comparison has seeds of its own. `data_folder` is the folder of data sets (else
    $UNIFIER_DATA), `out` where the run's folder is made (else "runs"), `track` the mode of Weights & Biases (else
    $WANDB_MODE, else online where a key is known, else offline). `resume` is the folder of an interrupted run or
    comparison, which goes on where it lies, under its own settings and seed. `folds=5` tests on each of five folds in
    turn, with each of `seeds`, as a comparison does.
    Raises InputError for whatever the user can mend.
    """
    with use_data_folder(data_folder):
        return run_in_folder(
            experiment, settings, seed=seed, out=out, track=track, tensorboard=tensorboard, resume=resume
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
) -> tuple[list[Result], Path]:
    """As `run`; returns the results, and the folder of the run or the comparison."""
    if not inspect.isfunction(experiment):
        raise InputError(f"{experiment!r} is no function: give one whose keyword arguments are the settings")
    study = Path(inspect.getfile(experiment)).stem
    # What a link leads to: what is beside the link is not beside the run, nor is the run called as the link is.
    going_on = None if resume is None else Path(resume).resolve()
    if out is None:  # a comparison that goes on puts its other runs beside the first ones: <out>/<its name>/<its id>
        out = "runs" if going_on is None else going_on.parent.parent
    signature = inspect.signature(experiment, eval_str=True)
    whole = going_on is not None and (going_on / "comparison.json").exists()
    comparing = whole or signature.return_annotation is Comparison
    if going_on is not None:
        earlier = read_json(going_on / ("comparison.json" if whole else "settings.json"), settings=dict)
        if given := [*settings, *(["seed"] if seed is not None else [])]:
            raise InputError(f"{resume}: a resumed run keeps its settings; leave out {', '.join(given)}")
        if name := earlier.get("comparison"):
            raise InputError(f'{resume} is a run of the comparison "{name}": give --resume the folder of that one')
        ran = earlier.get("study")
        if isinstance(ran, str) and (name := split_reference(ran)[1]) != experiment.__name__:
            kind = "comparison" if whole else "run of"
            raise InputError(f'{resume} is a {kind} "{name}", and cannot resume as "{experiment.__name__}"')
        settings, seed = earlier["settings"], earlier.get("seed")
    number = 0 if seed is None else parse_setting("seed", seed, int)
    comparison: Comparison | None = None
    if "folds" in settings and "folds" not in signature.parameters and signature.return_annotation is Experiment:
        comparison, checked = cross_validation(cast("ExperimentFn", experiment), settings, number)
    else:
        checked = check_settings(experiment, settings)
        if comparing:
            if seed is not None:
                raise InputError(f"seed={seed}: a comparison has seeds of its own; give one of its settings")
            comparison = build_described(experiment, checked, Comparison)
    # Here, since the trainer takes seconds to import: a mistake above has been told by now.
    from unifier.training.fit import RunContext, fit
    from unifier.trials.runner import compare

    place = RunContext(Path(out), study, wandb=track, tensorboard=tensorboard, origin=experiment_reference(experiment))
    if comparison is not None:
        return compare(comparison, checked, place, going_on)
    result = fit(lambda: build_described(experiment, checked, Experiment), checked, number, place, going_on)
    return [result], result.folder
