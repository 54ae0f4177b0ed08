"""The configuration of a sweep, and the commands that W&B's agents make of it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.errors import CommError
from wandb.sdk.lib.config_util import save_config_file_from_dict

from unifier import run
from unifier.cli import main, make_parser
from unifier.commands.common import parse_settings
from unifier.config import check_settings, load_experiment
from unifier.training.loggers import RunLoggers
from unifier.trials.wandb_sweep import sweep_configuration
from unifier_tokenizers import InputError

RECIPE = """
from unifier import ClassificationHead, Comparison, Experiment, Task, Training, Transformer
from unifier.datasets.digits import Digits
from unifier_tokenizers import PatchTokenizer

def swept(
    *, steps: int = 2, dim: int = 8, rate: float = 1e-3, stem: bool = False, patch: int | None = None,
    title: str = "", refit: bool = False,
) -> Experiment:
    source = Digits(val=100, test=100)
    tokenizer = PatchTokenizer(dim, patch=patch or 4, channels=1, stem="strided" if stem else None)
    task = Task(source, tokenizer, ClassificationHead(source.labels, dim))
    task.head.lower_is_better = frozenset({"macro_f1"})
    training = Training(steps=steps, batch_tokens=128, learning_rate=rate, num_validations=1)
    return Experiment(Transformer(dim, 1, 2, 8), {"digits": task}, training)

def pair() -> Comparison:
    return Comparison("pair", [swept])
"""


Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "swept.py"
    path.write_text(RECIPE)
    return path


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: Patch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def configure(file: Path, given: dict[str, str], **changed: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"metric": "val/score", "method": "grid", "runs": None} | changed
    return sweep_configuration(f"{file}:swept", given, **options)


def agent_command(configuration: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """Return the words of the command that W&B's agent builds for a run with these values."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args  # It takes a second.

    built = create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
    words: list[str] = []
    for word in create_sweep_command([*configuration["command"]]):
        words += {"${env}": ["/usr/bin/env"], "${args_no_hyphens}": built["args_no_hyphens"]}.get(word, [word])
    return words


def test_configuration_has_values_and_command(file: Path) -> None:
    configuration = configure(file, {"dim": "8,16", "rate": "1e-3,2e-3", "seed": "0,1"}, method="random", runs=5)
    assert configuration == {
        "name": "swept",
        "project": "swept",
        "program": f"{file}:swept",
        "command": ["${env}", "unifier", "run", f"{file}:swept", "${args_no_hyphens}"],
        "method": "random",
        "metric": {"name": "val/score", "goal": "maximize"},
        "parameters": {"dim": {"values": [8, 16]}, "rate": {"values": [0.001, 0.002]}, "seed": {"values": [0, 1]}},
        "run_cap": 5,
    }
    assert "run_cap" not in configure(file, {"dim": "8,16"})
    with pytest.raises(InputError, match=r"val/music/accuracy: .* tasks digits"):
        configure(file, {"dim": "8,16"}, metric="val/music/accuracy")
    for metric, goal in (("accuracy", "maximize"), ("macro_f1", "minimize")):
        changed = configure(file, {"dim": "8,16"}, metric=f"val/digits/{metric}")
        assert changed["metric"] == {"name": f"val/digits/{metric}", "goal": goal}


@pytest.mark.slow
def test_agent_commands_parse_back_to_the_values(file: Path) -> None:
    given = {"rate": "1e-5,0.5", "stem": "true,no", "patch": "none,2", "title": "two words,x=y", "seed": "7,8"}
    configuration = configure(file, given)
    values = {name: each["values"] for name, each in configuration["parameters"].items()}
    assert (values["patch"], values["stem"]) == ([None, 2], [True, False])
    for k in range(2):
        chosen = {name: pair[k] for name, pair in json.loads(json.dumps(values)).items()}
        options = make_parser().parse_args(agent_command(configuration, chosen)[2:])
        settings = parse_settings(options.settings)
        assert settings.pop("seed") == str(chosen.pop("seed"))
        assert check_settings(load_experiment(options.experiment), settings).items() >= chosen.items()


@pytest.mark.slow
def test_agents_run_lands_in_its_sweep(file: Path, tmp_path: Path) -> None:
    chosen = {"dim": 16, "seed": 3}
    command = agent_command(configure(file, {"dim": "8,16", "seed": "3"}), chosen)
    assert command[:2] == ["/usr/bin/env", "unifier"]
    parameters = tmp_path / "config-abc.yaml"
    save_config_file_from_dict(str(parameters), {name: {"value": value} for name, value in chosen.items()})
    environment = {"WANDB_MODE": "offline", "WANDB_SWEEP_ID": "thesweep", "WANDB_RUN_ID": "runofsweep"}
    environment |= {"WANDB_PROJECT": "swept", "WANDB_SWEEP_PARAM_PATH": str(parameters)}
    words, given = [sys.executable, "-m", "unifier", *command[2:]], os.environ | environment
    process = subprocess.run(words, cwd=tmp_path, env=given, capture_output=True, text=True, check=True)
    folder = tmp_path / process.stdout.splitlines()[-1]
    result = json.loads((folder / "result.json").read_text())
    assert (result["settings"]["dim"], result["seed"]) == (16, 3)
    assert "warn" not in process.stderr.lower(), process.stderr
    (log,) = folder.rglob("*.wandb")
    assert log.name == "run-runofsweep.wandb"
    assert all(text in log.read_bytes() for text in (b"thesweep", b"val/score"))


@pytest.mark.slow
def test_swept_score_is_logged_as_a_plain_number(file: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """A sweep reads the last value of val/score; for the metrics under val/, W&B keeps the maximum."""
    logged: list[Mapping[str, float]] = []
    monkeypatch.setattr(RunLoggers, "log_artifacts", lambda _, folder, metrics: logged.append(metrics))
    (result,) = run(load_experiment(f"{file}:swept"), out=tmp_path, track="off")
    assert logged[0]["val/score"] == result.metrics["val/digits/accuracy"]


@pytest.mark.parametrize(
    ("given", "changed", "message"),
    [
        ({}, {}, "dim=64,128"),
        ({"dmi": "1,2"}, {}, "'dmi'"),
        ({"dim": "8,wide"}, {}, "dim='wide'"),
        ({"dim": "8,"}, {}, "dim=''"),
        ({"seed": "0,-1"}, {}, "seed=-1"),
        ({"seed": "0,x"}, {}, "seed='x'"),
        ({"refit": "false,true"}, {}, "refit=true"),
        ({"dim": "8"}, {"method": "guess"}, "'guess'"),
        ({"dim": "8"}, {"method": "bayes"}, "method bayes .* --runs N"),
        ({"dim": "8"}, {"runs": 0}, "--runs 0"),
        ({"dim": "8"}, {"metric": "test/digits/accuracy"}, "--metric test/digits/accuracy"),
    ],
)
def test_sweep_that_runs_would_refuse_is_refused(
    file: Path, given: dict[str, str], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        configure(file, given, **changed)
    with pytest.raises(InputError, match=r"swept\.py:pair is a comparison"):
        sweep_configuration(f"{file}:pair", {"seed": "0"}, metric="val/score", method="grid", runs=None)


def test_dry_prints_the_configuration(file: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(wandb, "sweep", None)
    assert main(["sweep", f"{file}:swept", "dim=8,16", "--dry"]) == 0
    assert json.loads(capsys.readouterr().out) == configure(file, {"dim": "8,16"})


def test_sweep_without_network_fails_in_a_line(file: Path, monkeypatch: Patch, capsys: Capture) -> None:
    def unreachable(_: Any) -> str:
        raise CommError("no route\nto the host")

    for message in ("offline", "no route to the host"):
        assert main(["sweep", f"{file}:swept", "dim=8,16"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        monkeypatch.setenv("WANDB_API_KEY", "secret")
        monkeypatch.setattr(wandb, "sweep", unreachable)


def test_created_sweep_prints_the_agents_command(file: Path, monkeypatch: Patch, capsys: Capture) -> None:
    configurations: list[dict[str, Any]] = []

    def create(configuration: dict[str, Any]) -> str:
        print("a message of W&B")
        configurations.append(configuration)
        return "abc123"

    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setattr(wandb, "sweep", create)
    assert main(["sweep", f"{file}:swept", "dim=8,16"]) == 0
    printed = capsys.readouterr()
    assert "abc123" in printed.out.splitlines()[0]
    assert printed.out.splitlines()[-1] == "wandb agent --project swept abc123"
    assert "a message of W&B" in printed.err
    assert configurations == [configure(file, {"dim": "8,16"})]
