"""A comparison: its experiments one after the other, its rows in one table."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unifier.report.page import write_report
from unifier.running.callbacks import Interrupted
from unifier.running.fit import Place, RunFailed, fit
from unifier.running.result import Result, Status
from unifier.running.settings import check_settings
from unifier.running.tracking import Tracking, WeightsAndBiases, wandb_mode
from unifier.study.comparison import Comparison
from unifier.study.files import new_folder, write_json
from unifier_tokenizers import InputError


def compare(comparison: Comparison, settings: Mapping[str, Any], place: Place) -> tuple[list[Result], Path]:
    """Run every experiment once for every seed; returns the results, and the comparison's folder.

    `settings` are those of the function that described the comparison, which repeat it. comparison.json is written anew
    after each run, report.html at the end. A run that fails on its way is a row that says so, and the others still run;
    one that cannot begin, or is interrupted, ends the comparison. Where the first cannot begin, nothing is left.
    """
    planned = [
        (function, check_settings(function, comparison.settings), seed)
        for seed in comparison.seeds
        for function in comparison.experiments
    ]
    place = replace(place, group=comparison.name)
    folder = new_folder(place.out / comparison.name, time.strftime("%Y%m%d-%H%M%S"))
    results: list[Result] = []

    def write(status: Status) -> dict[str, Any]:
        content = {
            "name": comparison.name,
            "status": status,
            "settings": settings,
            "seeds": list(comparison.seeds),
            "rows": [row for result in results for row in rows(result)],
        }
        write_json(folder / "comparison.json", content)
        return content

    write("running")
    try:
        for function, own, seed in planned:
            try:
                results.append(fit(lambda f=function, s=own: f(**s), own, seed, place))
            except RunFailed as failure:
                results.append(failure.result)
            write("running")
    except BaseException as error:
        if isinstance(error, InputError) and not results:
            shutil.rmtree(folder)
        else:
            write("interrupted" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "failed")
        raise
    content = write("finished" if all(result.status == "finished" for result in results) else "failed")
    write_report(folder, content)
    track(folder, content, place)
    return results, folder


def rows(result: Result) -> list[dict[str, Any]]:
    """A run's rows in comparison.json: one for each of its arms."""
    return [
        {
            "experiment": result.name,
            "arm": arm,
            "seed": result.seed,
            "mode": "solo" if len(result.arms) == 1 else "joint",
            "folder": str(result.folder),
            "result": result.content(),
        }
        for arm in result.arms
    ]


def track(folder: Path, content: dict[str, Any], place: Place) -> None:
    """Give the comparison's report to W&B, in its group, as an evaluation."""
    if place.track == "off":
        return
    tracking = Tracking(folder, dict)
    tracking.add(
        lambda: WeightsAndBiases(
            folder,
            project=place.study,
            group=content["name"],
            job_type="evaluate",
            tags=["comparison"],
            config={**content["settings"], "seeds": content["seeds"]},
            mode=wandb_mode(place.track),
        )
    )
    tracking.keep(folder, {})
    tracking.close(failed=False)
