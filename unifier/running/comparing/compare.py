"""A comparison: its trials one after the other, its rows in comparison.json."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unifier.report.numbers.gather import TERMS
from unifier.report.page import write_report
from unifier.running.comparing.search import searched
from unifier.running.comparing.trials import Trials
from unifier.running.fit import Place
from unifier.running.loop.endings import Interrupted
from unifier.running.result import Result, Status
from unifier.running.telling.tell import spared
from unifier.running.tracking import Tracking, WeightsAndBiases, wandb_mode
from unifier.study.analyses.trunk_pairs import compare_representations
from unifier.study.comparison import Comparison
from unifier.study.files import as_json, new_folder, write_json
from unifier_tokenizers import InputError


def compare(
    comparison: Comparison, settings: Mapping[str, Any], place: Place, resume: Path | None = None
) -> tuple[list[Result], Path]:
    """Run every trial; returns the results, and the comparison's folder.

    `settings` are those of the function that described the comparison, which repeat it. comparison.json is written anew
    after each run, report.html at the end. A run that fails on its way is a row that says so, and the others still run;
    one whose input is bad or whose disk is full, or that is interrupted, ends the comparison: with Interrupted of the
    comparison's own folder after Ctrl-C. Where the first cannot begin, nothing is left. An analysis or a page that
    fails at the end is a warning. `resume` is the folder of a comparison that ended early: what has finished there is
    not run again, and the run that was cut off, by whatever it was, goes on from its last checkpoint.
    """
    place = replace(place, group=comparison.name)
    trials = Trials(comparison, place, resume)
    trials.check()
    folder = resume or new_folder(place.out / comparison.name)

    def write(status: Status, **found: Any) -> dict[str, Any]:
        content = {
            "name": comparison.name,
            "status": status,
            "question": comparison.question,
            "study": place.origin,
            "settings": settings,
            "seeds": list(comparison.seeds),
            **trials.terms,
            "problems": trials.problems,
            "rows": trials.known_rows(),
            **found,
        }
        write_json(folder / "comparison.json", content)
        return content

    write("running")
    try:
        planned = comparison.trials() if comparison.search is None else searched(comparison, trials.result)
        for trial in planned:
            trials.attempt(trial, lambda: write("running"))
            write("running")
        representation, unread = list[dict[str, Any]](), list[str]()
        with spared(folder, "the similarity of its trunks"):
            representation, unread = compare_representations([row for row in trials.rows if finished(row)])
        trials.problems += unread
        whole = all(finished(row) for row in trials.rows)
        content = write("finished" if whole else "failed", rows=trials.rows, representation=representation)
    except BaseException as error:
        if isinstance(error, InputError) and not trials.rows and resume is None:
            shutil.rmtree(folder)
            raise
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            write("interrupted")
            raise Interrupted(folder) from None  # which is resumed, not the trial's
        write("failed")
        error.add_note(str(folder))
        raise
    try:
        with spared(folder, "report.html"):
            write_report(folder, content)
        track(folder, content, place)
    except KeyboardInterrupt:
        raise Interrupted(folder) from None
    return trials.results, folder


def finished(row: Mapping[str, Any]) -> bool:
    """Whether a row's run came to its end."""
    return row["result"]["status"] == "finished"


def track(folder: Path, content: dict[str, Any], place: Place) -> None:
    """Give the comparison's report to W&B, in its group, as an evaluation of its runs."""
    if place.track == "off":
        return
    terms = {name: content[name] for name in TERMS}
    runs = {
        Path(row["folder"]).name: {
            "parameters": row["result"]["parameters"],
            "datasets": row["result"]["data"],
            "commit": row["result"]["commit"],
        }
        for row in content["rows"]
    }
    tracking = Tracking(folder, dict)
    tracking.add(
        lambda: WeightsAndBiases(
            folder,
            project=place.study,
            group=content["name"],
            job_type="evaluate",
            tags=["comparison"],
            config=as_json({**content["settings"], "seeds": content["seeds"], "trial": terms, "runs": runs}),
            mode=wandb_mode(place.track),
        )
    )
    tracking.keep(folder, {})
    tracking.close(failed=False)
