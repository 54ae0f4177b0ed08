"""A finished run's samples, observations and report; where one fails, the scores are kept."""

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from unifier.data.keeping.encoding import Encoded
from unifier.model import Unifier
from unifier.report.page import write_report
from unifier.running.result import Result
from unifier.running.telling.confusions import confusions
from unifier.running.telling.lengths import by_length
from unifier.running.telling.observe import observe
from unifier.running.telling.samples import samples
from unifier.study.experiment import Experiment
from unifier.study.files import write_json
from unifier_tokenizers.errors import one_line


@contextmanager
def spared(folder: Path, what: str) -> Generator[None]:
    """Within it, an error is a warning of one line: what is told of a run's or a comparison's scores is not worth them.

    Ctrl-C passes.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        warnings.warn(f"{folder} has its scores, but writing {what} failed ({reason})", stacklevel=3)


def tell(result: Result, experiment: Experiment, model: Unifier, val: Mapping[str, Encoded]) -> None:
    """Write what tells of a finished run's scores; each part that fails is a warning, and the others are written."""
    with spared(result.folder, "samples.json"):
        write_json(result.folder / "samples.json", samples(experiment.arms, model.predictions))
    with spared(result.folder, "confusions.json"):
        if confused := confusions(experiment.arms, model.predictions):
            write_json(result.folder / "confusions.json", confused)
    with spared(result.folder, "lengths.json"):
        if lengths := by_length(experiment.arms, model.predictions):
            write_json(result.folder / "lengths.json", lengths)
    with spared(result.folder, "its representations and attention"):
        observe(model, val, result.folder)
    with spared(result.folder, "report.html"):
        write_report(result.folder, result.content())
