"""Cross-validation: every fold is tested on with every seed, and told as one; which folds there are."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from scipy import stats

from unifier import Comparison, Experiment, run
from unifier.cli import main
from unifier.datasets.digits import Digits
from unifier.datasets.factory import create_audio_dataset, create_image_dataset
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.report.conditions import group_conditions
from unifier.report.estimates import estimate
from unifier.report.read_results import read_results
from unifier.report.summary import summarize
from unifier.report.tables import run_table
from unifier.trials.plan import cross_validation
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

Rows = Callable[..., dict[str, Any]]

STUDY = '''
"""Pictures of a folder."""
from unifier import Task, ClassificationHead, Experiment, Training, Transformer
from unifier.datasets.image_folder import ImageFolder
from unifier_tokenizers import PatchTokenizer

def shades(*, data: str, fold: int | None = None, steps: int = 2) -> Experiment:
    """Dark and bright."""
    source = ImageFolder(data, fold=fold)
    task = Task(source, PatchTokenizer(8, patch=4), ClassificationHead(source.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {"shades": task}, Training(steps=steps, num_validations=1), name="shades")
'''


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Dark and bright pictures, four of each in each of the folds 1 to 3, each fold painted by two."""
    folder, lines = tmp_path / "pictures", ["file,fold,group"]
    for k in range(24):
        name = f"{('dark', 'bright')[k % 2]}/{k}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(0, 100, (8, 8, 3), np.uint8) + np.uint8(k % 2 * 150)
        Image.fromarray(pixels).save(folder / name)
        lines.append(f"{name},{1 + k // 8},painter {k // 4}")
    (folder / "folds.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "shades.py").write_text(STUDY)
    return tmp_path / "shades.py"


def ask(study: Path, pictures: Path, out: Path, *settings: str, resume: Path | None = None) -> int:
    given = [f"data={pictures}", *settings] if resume is None else ["--resume", str(resume)]
    return main(["run", str(study), *given, "--track", "off", "--out", str(out)])


def test_every_fold_is_tested_on_with_every_seed_and_told_as_one(
    study: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(study, pictures, tmp_path / "runs", "folds=3", "seeds=4,5") == 0
    said = capsys.readouterr().out
    folder = Path(said.splitlines()[-1])
    content = json.loads((folder / "comparison.json").read_text())
    assert [(row["varied"], row["seed"]) for row in content["rows"]] == [
        ({"fold": fold}, seed) for fold in (1, 2, 3) for seed in (4, 5)
    ]
    assert [row["result"]["settings"]["fold"] for row in content["rows"]] == [1, 1, 2, 2, 3, 3]
    assert content["settings"] == {"data": str(pictures), "steps": 2, "folds": 3, "seeds": [4, 5]}
    scores = [row["result"]["metrics"]["test/shades/accuracy"] for row in content["rows"]]
    (found,) = group_conditions(read_results(folder).rows)
    assert found.score == estimate(np.reshape(scores, (3, 2)).mean(1), "fold")
    assert "over 3 folds" in said
    assert "over 3 folds" in (folder / "report.html").read_text()
    assert "1 task · 6 runs · 2 seeds · 3 folds" in (folder / "report.html").read_text()


def test_the_fold_may_be_a_setting_without_a_default(study: Path, pictures: Path, tmp_path: Path) -> None:
    study.write_text(STUDY.replace("fold: int | None = None", "fold: int"))
    assert ask(study, pictures, tmp_path / "runs", "folds=3") == 0
    (path,) = (tmp_path / "runs").rglob("comparison.json")
    assert [row["varied"]["fold"] for row in json.loads(path.read_text())["rows"]] == [1, 2, 3]


def test_folds_of_other_sizes_are_passed_over_as_often_as_each_asks_for(
    study: Path, pictures: Path, tmp_path: Path
) -> None:
    passes = "epochs=12 / len(source.split('train'))"  # 8, 8 and 7 to train on
    study.write_text(STUDY.replace("steps=steps", passes))
    lines = (pictures / "folds.csv").read_text().splitlines()
    (pictures / "folds.csv").write_text("\n".join(lines[:-1]))
    (pictures / lines[-1].split(",")[0]).unlink()
    assert ask(study, pictures, tmp_path / "runs", "folds=3") == 0
    (path,) = (tmp_path / "runs").rglob("comparison.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["result"]["status"] for row in rows] == ["finished"] * 3
    assert len({row["result"]["data"]["shades"]["train"] for row in rows}) == 2


def test_what_was_interrupted_goes_on(study: Path, pictures: Path, tmp_path: Path) -> None:
    assert ask(study, pictures, tmp_path / "runs", "folds=3") == 0
    (path,) = (tmp_path / "runs").rglob("comparison.json")
    content = json.loads(path.read_text())
    kept = content["rows"][:2]
    path.write_text(json.dumps(content | {"rows": kept, "status": "interrupted"}))
    assert ask(study, pictures, tmp_path / "runs", resume=path.parent) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["varied"]["fold"] for row in rows] == [1, 2, 3]
    assert rows[:2] == kept
    assert rows[2]["folder"] != content["rows"][2]["folder"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["folds=5"], r"folds=5: image_folder has 3 folds \(1, 2, 3\): give folds=3, or fold=1 for one alone"),
        (["folds=3", "fold=2"], "fold=2 and folds=3: give fold to test on one"),
        (["folds=some"], "the setting folds='some' does not fit"),
        (["folds=3", "seeds=0,0"], "names an experiment or a seed twice"),
        (["folds=3", "dim=8"], "no setting 'dim'; shades has data, fold, steps"),
    ],
)
def test_folds_that_there_are_not(
    study: Path,
    pictures: Path,
    tmp_path: Path,
    settings: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask(study, pictures, tmp_path / "runs", *settings) == 2
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_data_without_folds_and_a_fold_that_cuts_a_group(
    study: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pictures / "folds.csv"
    table.write_text(table.read_text().replace("dark/8.png,2,painter 2", "dark/8.png,2,painter 1"))
    assert ask(study, pictures, tmp_path / "runs", "folds=3") == 2
    assert "group 'painter 1' is in fold 1 and in fold 2" in capsys.readouterr().err
    table.unlink()
    assert ask(study, pictures, tmp_path / "runs", "folds=3") == 2
    assert "folds=3: image_folder has no folds" in capsys.readouterr().err


def plain(*, steps: int = 2) -> Experiment:
    task = Task(Digits(), PatchTokenizer(8, channels=1), ClassificationHead(Digits.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {"digits": task}, Training(steps=steps), name="plain")


def pair(*, steps: int = 2) -> Comparison:
    return Comparison("pair", [plain], {"steps": steps})


def test_an_experiment_or_a_comparison_that_knows_no_folds() -> None:
    with pytest.raises(InputError, match="folds=2: plain has no setting 'fold'"):
        run(plain, folds=2)
    with pytest.raises(InputError, match="no setting 'folds'; pair has steps"):
        run(pair, folds=2)


class Drawn:
    """Pictures of digits with folds that go by some names."""

    name = "digits"

    def __init__(self, folds: tuple[Any, ...]) -> None:
        self.folds, self.split = folds, Digits(val=10, test=10).split


def named(*, fold: int = 1, steps: int = 2) -> Experiment:
    described = plain(steps=steps)
    source = Drawn(tuple(np.unique([1, 2])) if fold else ("a", "b"))
    return replace(described, tasks={"digits": replace(described.tasks["digits"], source=source)})


def test_folds_may_be_numpys_numbers_and_are_no_texts(tmp_path: Path) -> None:
    run(named, folds=2, out=tmp_path, track="off")
    (folder,) = (path.parent for path in tmp_path.rglob("comparison.json"))
    (score,) = group_conditions(read_results(folder).rows)
    assert (score.score.size, score.score.unit) == (2, "fold")
    with pytest.raises(InputError, match="folds=2: digits calls a fold 'a': number them"):
        cross_validation(lettered, {"folds": 2}, 0)


def lettered(*, fold: int = 0) -> Experiment:
    return named(fold=0)


def test_a_set_says_which_folds_it_has(tmp_path: Path, pictures: Path) -> None:
    expected = {"emotify": range(5), "esc10": range(1, 6), "esc50": range(1, 6), "fsdd": range(6)}
    for name, folds in expected.items():
        assert list(getattr(create_audio_dataset(name), "folds", ())) == list(folds)
        for fold in folds:
            create_audio_dataset(name, fold=fold)
    for name in ("embedded", "gtzan"):
        assert not hasattr(create_audio_dataset(name), "folds")
    assert getattr(create_image_dataset(str(pictures)), "folds", ()) == (1, 2, 3)
    for column, folds in ((",fold", (2, 4, 7)), ("", ())):
        lines = [f"file,label{column}"]
        for k in range(6):
            soundfile.write(tmp_path / f"{k}.wav", np.zeros(800), 8000)
            lines.append(f"{k}.wav,a" + (f",{(7, 2, 4)[k % 3]}" if column else ""))
        (tmp_path / "sounds.csv").write_text("\n".join(lines))
        assert getattr(create_audio_dataset(str(tmp_path / "sounds.csv")), "folds", None) == folds


def of_fold(rows: Rows, score: float, seed: int, fold: int | None, **facts: Any) -> dict[str, Any]:
    return rows("digits", score, seed, varied={"fold": fold, **facts.pop("varied", {})}, **facts)


def test_a_mean_over_folds_counts_folds_and_not_seeds(
    row: Rows, comparison: Callable[..., Path], tmp_path: Path
) -> None:
    drawn = np.random.default_rng(0).normal(80, 5, (2, 4, 3))  # ways, folds, seeds
    rows = [
        of_fold(row, drawn[way, fold, seed], seed, fold, varied={"patch": way})
        for way in range(2)
        for fold in range(4)
        for seed in range(3)
    ]
    rows.append(of_fold(row, 10.0, 0, None, varied={"patch": 0}))  # tested on a split that is no fold
    study = read_results(comparison(tmp_path / "runs", rows))
    first, second, apart = group_conditions(study.rows)
    assert [one.label for one in (first, second)] == ["patch=0, over folds", "patch=1, over folds"]
    low, high = stats.ttest_1samp(drawn[0].mean(1), 0).confidence_interval(0.95)
    assert (first.score.low, first.score.high) == (pytest.approx(low), pytest.approx(high))
    assert (first.score.size, first.score.unit) == (4, "fold")
    assert (apart.score.mean, apart.score.unit) == (10.0, "seed")
    assert "seed" not in summarize([first, second])[0]
    table = run_table(study.rows, {id(one): "" for one in study.rows})
    assert [line["fold"] for line in table] == [str(fold) for _ in range(2) for fold in range(4) for _ in range(3)] + [
        "–"
    ]
