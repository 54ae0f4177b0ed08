"""The report of a run shows continued pictures and plays continued tunes."""

import re
from pathlib import Path
from typing import Any

import pytest

import unifier as uf
from unifier.config import load_experiment
from unifier.data.midi_files import write_midi
from unifier.files import read_json

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "steps": 1, "batch_tokens": 128, "num_validations": 1}


def run(recipe: str, out: Path, **settings: Any) -> tuple[list[dict[str, str]], str]:
    (result,) = uf.run(load_experiment(recipe), **SMALL, **settings, out=out, track="off")
    ((_, samples),) = read_json(result.folder / "samples.json").items()
    return samples, (result.folder / "report.html").read_text()


@pytest.mark.slow
def test_report_shows_given_continued_and_original_pictures(tmp_path: Path) -> None:
    samples, page = run("language_model", tmp_path, data="embedded", side=8, grays=4)
    assert all(len({each["image"], each["prediction_image"], each["target_image"]}) == 3 for each in samples)
    assert page.count("<figcaption>continued by the model") == 6
    assert "nats per pixel" in page


@pytest.mark.slow
def test_report_plays_continued_tunes(tmp_path: Path) -> None:
    (tmp_path / "tunes").mkdir()
    for k in range(12):
        write_midi(tmp_path / "tunes" / f"{k}.mid", [[60 + k], [64], []] * 4, 2)
    samples, page = run("symbolic_music", tmp_path, data=str(tmp_path / "tunes"))
    assert all(each["prediction_audio"] != each["target_audio"] for each in samples)
    assert len(re.findall('<audio controls preload="metadata" src="data:audio/mpeg', page)) == 2 * len(samples)
    assert "default-src 'none'" in page
