"""A sweep's configuration, and what becomes of the commands that W&B's agents make of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.errors import CommError
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args
from wandb.sdk.lib.config_util import save_config_file_from_dict

from unifier.cli import main, make_parser, parse_settings
from unifier.config import check_settings, load_experiment
from unifier.training import fit
from unifier.training.loggers import RunLoggers
from unifier.trials.wandb_sweep import sweep_configuration
from unifier_tokenizers import InputError

EXPERIMENT = """
from unifier import Task, ClassificationHead, Comparison, Experiment, Training, Transformer
from unifier.data.embedded import Digits
from unifier_tokenizers import PatchTokenizer

def swept(
    *,
    steps: int = 2,
    dim: int = 8,
    rate: float = 1e-3,
    stem: bool = False,
    patch: int | None = None,
    title: str = "",
    refit: bool = False,
) -> Experiment:
    source = Digits(val=100, test=100)
    tokenizer = PatchTokenizer(dim, patch=patch or 4, channels=1, stem="strided" if stem else None)
    task = Task(source, tokenizer, ClassificationHead(source.labels, dim))
    training = Training(steps=steps, batch_tokens=128, learning_rate=rate, num_validations=1)
    return Experiment(Transformer(dim, 1, 2, 8), {"digits": task}, training, name="swept")

def pair() -> Comparison:
    return Comparison("pair", [swept])
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "swept.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def configured(file: Path, given: dict[str, str], **changed: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"metric": "val/score", "method": "grid", "runs": None} | changed
    return sweep_configuration(f"{file}:swept", given, **options)


def agents_command(configuration: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """The words that W&B's agent puts together for a run with these values."""
    made = create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
    words: list[str] = []
    for word in create_sweep_command([*configuration["command"]]):
        words += {"${env}": ["/usr/bin/env"], "${args_no_hyphens}": made["args_no_hyphens"]}.get(word, [word])
    return words


def test_a_configuration_names_the_values_the_metric_and_the_command(file: Path) -> None:
    found = configured(file, {"dim": "8,16", "rate": "1e-3,2e-3", "seed": "0,1"}, method="random", runs=5)
    assert found == {
        "name": "swept",
        "project": "swept",
        "program": f"{file}:swept",
        "command": ["${env}", "unifier", "run", f"{file}:swept", "${args_no_hyphens}"],
        "method": "random",
        "metric": {"name": "val/score", "goal": "maximize"},
        "parameters": {"dim": {"values": [8, 16]}, "rate": {"values": [0.001, 0.002]}, "seed": {"values": [0, 1]}},
        "run_cap": 5,
    }
    assert "run_cap" not in configured(file, {"dim": "8,16"})


def test_what_an_agent_says_is_read_as_what_was_meant(file: Path) -> None:
    given = {"rate": "1e-5,0.5", "stem": "true,no", "patch": "none,2", "title": "two words,x=y", "seed": "7,8"}
    found = configured(file, given)
    values = {name: one["values"] for name, one in found["parameters"].items()}
    assert values["patch"] == [None, 2]
    assert values["stem"] == [True, False]
    for k in range(2):
        chosen = {name: both[k] for name, both in json.loads(json.dumps(values)).items()}
        options = make_parser().parse_args(agents_command(found, chosen)[2:])
        said = parse_settings(options.settings)
        assert said.pop("seed") == str(7 + k)
        settings = check_settings(load_experiment(options.experiment), said)
        assert {name: settings[name] for name in given if name != "seed"} == {
            name: value for name, value in chosen.items() if name != "seed"
        }


def test_a_run_that_an_agent_starts_lands_in_its_sweep(file: Path, tmp_path: Path) -> None:
    chosen = {"dim": 16, "seed": 3}
    command = agents_command(configured(file, {"dim": "8,16", "seed": "3"}), chosen)
    assert command[:2] == ["/usr/bin/env", "unifier"]
    parameters = tmp_path / "config-abc.yaml"
    save_config_file_from_dict(str(parameters), {name: {"value": value} for name, value in chosen.items()})
    said = {
        "WANDB_MODE": "offline",
        "WANDB_SWEEP_ID": "thesweep",
        "WANDB_RUN_ID": "runofsweep",
        "WANDB_PROJECT": "swept",
        "WANDB_SWEEP_PARAM_PATH": str(parameters),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "unifier.cli", *command[2:]],
        cwd=tmp_path,
        env=os.environ | said,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path / ran.stdout.splitlines()[-1]
    result = json.loads((folder / "result.json").read_text())
    assert (result["settings"]["dim"], result["seed"]) == (16, 3)
    assert "warn" not in ran.stderr.lower(), ran.stderr
    (log,) = folder.rglob("*.wandb")
    assert log.name == "run-runofsweep.wandb"
    kept = log.read_bytes()
    assert b"thesweep" in kept
    assert b"val/score" in kept


def test_the_score_swept_for_is_a_plain_number_at_the_end(file: Path, tmp_path: Path) -> None:
    """Of what was logged under val/ W&B keeps the highest under max, where a sweep does not look."""
    seen: list[dict[str, float]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLoggers, "keep", lambda _, folder, metrics: seen.append(metrics))
        place = fit.RunContext(tmp_path, "swept", wandb="off")
        described: Any = load_experiment(f"{file}:swept")
        result = fit.fit(lambda: described(), {}, 0, place)
    assert seen[0]["val/score"] == result.metrics["val/digits/accuracy"]


@pytest.mark.parametrize(
    ("given", "changed", "said"),
    [
        ({}, {}, "a sweep varies something"),
        ({"dmi": "1,2"}, {}, "no setting 'dmi'; did you mean 'dim'"),
        ({"dim": "8,wide"}, {}, "the setting dim='wide' does not fit"),
        ({"dim": "8,"}, {}, "the setting dim='' does not fit"),
        ({"seed": "0,-1"}, {}, "seed=-1: a number from 0 to"),
        ({"seed": "0,x"}, {}, "the setting seed='x' does not fit"),
        ({"refit": "false,true"}, {}, "refit=true: no validation is left"),
        ({"dim": "8"}, {"method": "guess"}, "no method 'guess': choose one of grid, random, bayes"),
        ({"dim": "8"}, {"method": "bayes"}, "method bayes never ends by itself: give --runs N"),
        ({"dim": "8"}, {"runs": 0}, "--runs 0: at least 1"),
        ({"dim": "8"}, {"metric": "test/digits/accuracy"}, "one of validation is expected.*tests are not tuned on"),
    ],
)
def test_a_sweep_that_no_run_could_follow_is_refused(
    file: Path, given: dict[str, str], changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        configured(file, given, **changed)


def test_a_comparison_is_no_run_of_a_sweep(file: Path) -> None:
    with pytest.raises(InputError, match=r"swept\.py:pair is a comparison, and a run of a sweep is one experiment"):
        sweep_configuration(f"{file}:pair", {"seed": "0"}, metric="val/score", method="grid", runs=None)


def test_dry_prints_the_configuration_and_asks_nobody(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb, "sweep", None)
    assert main(["sweep", f"{file}:swept", "dim=8,16", "--dry"]) == 0
    assert json.loads(capsys.readouterr().out) == configured(file, {"dim": "8,16"})


def test_without_a_key_or_a_network_it_says_so_in_a_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", f"{file}:swept", "dim=8,16"]) == 2
    assert capsys.readouterr().err == (
        "unifier: a sweep lives at W&B, and the mode here is offline: log in there, or take --dry to see it\n"
    )

    def unreachable(_: Any) -> str:
        raise CommError("no route\nto the host")

    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setattr(wandb, "sweep", unreachable)
    assert main(["sweep", f"{file}:swept", "dim=8,16"]) == 2
    assert capsys.readouterr().err == "unifier: W&B did not make the sweep: no route to the host\n"


def test_a_sweep_that_was_made_says_how_agents_are_started(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def make(configuration: dict[str, Any]) -> str:
        print("W&B says things of its own")
        asked.append(configuration)
        return "abc123"

    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setattr(wandb, "sweep", make)
    assert main(["sweep", f"{file}:swept", "dim=8,16"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].startswith("created sweep abc123")
    assert printed.out.splitlines()[-1] == "wandb agent --project swept abc123"
    assert "things of its own" in printed.err
    assert asked == [configured(file, {"dim": "8,16"})]
