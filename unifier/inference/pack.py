"""The command `pack`, which encodes the data of an experiment into shards."""

from collections.abc import Mapping
from typing import Any

import torch

from unifier.config import build_described, check_settings, load_experiment
from unifier.data.packing import PackOptions, PackOrigin, pack
from unifier.experiment import Experiment, recording_fitted
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice


def pack_experiment(
    reference: str,
    address: str,
    settings: Mapping[str, Any],
    *,
    task: str | None = None,
    shard_mb: float = 128.0,
    window: int = 8,
) -> str:
    """Pack the data of one task of an experiment. Return a line that describes the result.

    Args:
        reference: FILE[:name] of the experiment.
        address: The folder or URL for the shards.
        settings: The settings of the experiment.
        task: The name of the task. It may be None if the experiment has one task.
        shard_mb: Approximate size of a shard in megabytes.
        window: The number of shards among which training shuffles examples.
    """
    function = load_experiment(reference)
    values = check_settings(function, settings)
    torch.manual_seed(0)
    with recording_fitted() as fitted:
        experiment = build_described(function, values, Experiment)
    if task is None and len(experiment.tasks) > 1:
        raise InputError(f"the experiment has the tasks {', '.join(experiment.tasks)}: choose one with --task")
    chosen = experiment.tasks[
        next(iter(experiment.tasks)) if task is None else check_choice("task", task, list(experiment.tasks))
    ]
    options = PackOptions(shard_mb, window, experiment.training.bad_examples, experiment.training.num_workers)
    origin = PackOrigin(reference, settings, fitted)
    return pack(chosen.source, chosen.tokenizer, chosen.head, chosen.objective, address, origin, options)
