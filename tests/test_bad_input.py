"""Mistakes of the user: one line, exit status 2, and nothing left behind."""

import json
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.cli import main

pytestmark = pytest.mark.usefixtures("undrawn")

RECIPES = """
from typing import Literal

from unifier import ClassificationHead, Comparison, Experiment, Task, Training, Transformer, TranslationHead
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.mnist import MNIST
from unifier.datasets.parallel_text import ParallelText
from unifier_tokenizers import FrameTokenizer, PatchTokenizer, SubwordTokenizer, Vocabulary

def own_files(
    *, kind: Literal["images", "sounds", "texts", "set"], at: str = "", dim: int = 8, trunk: int = 8, heads: int = 2,
    task: str = "own", labels: tuple[str, ...] = (), steps: int = 1, bad: Literal["stop", "skip"] = "stop",
) -> Experiment:
    if kind == "set":
        source = MNIST("fashion_mnist")
        tokenizer = PatchTokenizer(dim, channels=1)
    elif kind == "images":
        source = ImageFolder(at, channels=1)
        tokenizer = PatchTokenizer(dim, channels=1)
    elif kind == "sounds":
        source = AudioFolder(at + "/table.csv")
        tokenizer = FrameTokenizer(dim, sample_rate=8000)
    if kind == "texts":
        source = ParallelText((at + "/source", at + "/target"))
        vocabulary = Vocabulary.fit(["a b c"], size=300)
        tokenizer = SubwordTokenizer(vocabulary, dim)
        head = TranslationHead(vocabulary, dim, depth=1, heads=heads, ffn_dim=8)
    else:
        head = ClassificationHead(labels or source.labels, dim)
    training = Training(steps=steps, batch_tokens=64, num_validations=1, bad_examples=bad)
    return Experiment(Transformer(trunk, 1, heads, 8), {task: Task(source, tokenizer, head)}, training)

def choosy(*, dim: int = 3, fold: int = 0) -> Experiment:
    raise ValueError(f"dim={dim} is odd: take an even one")

def several(*, dims: tuple[int, ...] = (3, 5)) -> Comparison:
    if not dims:
        raise ValueError("dims is empty: give two")
    return Comparison("several", [choosy], grid={"dim": dims}, budget_unit="steps")

def untrue() -> Experiment:
    return 3
"""


def make_images(folder: Path) -> None:
    for number in range(20):
        path = folder / ("cat" if number % 2 else "dog") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.RandomState(number).randint(0, 255, (8, 8), np.uint8)).save(path)


def make_sounds(folder: Path) -> None:
    folder.mkdir()
    rows = ["file,label,split"]
    for number, split in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2):
        soundfile.write(folder / f"{number}.wav", np.zeros(1600), 8000)
        rows.append(f"{number}.wav,{'ab'[number % 2]},{split}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")


def make_texts(folder: Path) -> None:
    folder.mkdir()
    for name in ("source", "target"):
        (folder / name).write_text("".join(f"{name} {number}\n" for number in range(30)))


def cut(path: Path) -> None:
    """Keep the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


MAKE: dict[str, Callable[[Path], None]] = {"images": make_images, "sounds": make_sounds, "texts": make_texts}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "own_files.py"
    path.write_text(RECIPES)
    return path


@pytest.fixture
def refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a refused experiment, and returns the line that says why."""

    def check(*arguments: str, experiment: Path | str = f"{file}:own_files") -> str:
        out = [] if "--out" in arguments else ["--out", str(tmp_path / "runs")]
        capsys.readouterr()
        assert main(["run", str(experiment), *arguments, *out, "--track", "off"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("unifier: ")
        assert error.count("\n") == 1
        assert not (tmp_path / "runs").exists()
        return error

    return check


Refused = Callable[..., str]


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.slow
def test_intact_files_are_accepted(kind: str, file: Path, tmp_path: Path) -> None:
    MAKE[kind](tmp_path / "data")
    settings = [f"kind={kind}", f"at={tmp_path / 'data'}"]
    assert main(["run", str(file), *settings, "--out", str(tmp_path), "--track", "off"]) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[(["stpes=3"], "'stpes'; did you mean 'steps'"), (["steps=many"], "steps='many'")],
        *[(["steps=0"], "steps=0"), (["kind=films"], "kind='films'"), (["kind"], "'kind'")],
        *[(["dim=8", "dim=9"], "'dim=9'"), (["seed=-1"], "seed=-1"), (["seed=first"], "seed='first'")],
        *[(["dim=16"], "dim=16"), (["heads=3"], "3 heads"), (["task=keys"], '"keys"'), (["task=a.b"], '"a.b"')],
        *[(["labels=cat,horse"], "'dog'"), (["labels=cat"], "label")],
    ],
)
def test_unfit_settings_are_refused(refused: Refused, tmp_path: Path, settings: list[str], message: str) -> None:
    make_images(tmp_path / "data")
    kind = [] if settings[0].startswith("kind") else ["kind=images"]
    assert message in refused(*kind, f"at={tmp_path / 'data'}", *settings)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        *[("none.py", None, "none.py"), ("notes.txt", "hello", "notes.txt")],
        ("hello_study.py", "print", "hello_study.py"),
        ("syntax_study.py", "def f(:", "syntax_study.py, line 1"),
        *[("own_study.py:nobody", RECIPES, "'nobody'"), (f"{'o' * 300}.py", None, "File name too long")],
    ],
)
def test_file_without_experiment_is_refused(
    refused: Refused, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text)
    assert message in refused(experiment=tmp_path / name)


def spoil_line(at: int, line: bytes, name: str = "source") -> Callable[[Path], None]:
    """Return a function that replaces a line of a text."""

    def spoil(folder: Path) -> None:
        lines = (folder / name).read_bytes().split(b"\n")
        lines[at] = line
        (folder / name).write_bytes(b"\n".join(lines))

    return spoil


@pytest.mark.parametrize(
    ("kind", "spoil", "message"),
    [
        ("images", lambda d: (d / "cat" / "01.png").write_text("no picture"), "01.png"),
        ("images", lambda d: cut(d / "dog" / "02.png"), "02.png"),
        ("sounds", lambda d: (d / "1.wav").write_text("no sound"), "1.wav"),
        ("sounds", lambda d: cut(d / "2.wav"), "2.wav"),
        ("sounds", lambda d: (d / "3.wav").unlink(), "3.wav"),
        ("sounds", lambda d: soundfile.write(d / "0.wav", np.zeros(20), 8000), "window"),
        ("sounds", lambda d: soundfile.write(d / "6.wav", np.zeros(20), 8000), "6.wav: "),
        ("texts", spoil_line(7, b""), "source, line 8"),
        ("texts", spoil_line(3, b"  ", "target"), "target, line 4"),
        ("texts", spoil_line(5, b"\xff\xfe"), "source, line 6"),
        ("texts", spoil_line(29, b"one\ntwo"), "line by line"),
        ("texts", lambda d: (d / "target").unlink(), "target"),
    ],
)
def test_unreadable_data_are_refused(
    refused: Refused, tmp_path: Path, kind: str, spoil: Callable[[Path], object], message: str
) -> None:
    data = tmp_path / "data"
    MAKE[kind](data)
    spoil(data)
    line = refused(f"kind={kind}", f"at={data}")
    assert message in line
    assert str(data) in line or message == "window"


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("images", lambda d: cut(d / "dog" / "02.png")),
        ("images", lambda d: (d / "dog" / "21.png").symlink_to(d / "none.png")),
        ("sounds", lambda d: (d / "3.wav").unlink()),
    ],
    ids=["cut", "dangling", "missing"],
)
@pytest.mark.slow
def test_unreadable_examples_may_be_skipped(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, spoil: Callable[[Path], object]
) -> None:
    MAKE[kind](tmp_path / "data")
    spoil(tmp_path / "data")
    settings = [f"kind={kind}", f"at={tmp_path}/data", "bad=skip"]
    assert main(["run", str(file), *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    assert "1 examples skipped" in capsys.readouterr().err


@pytest.mark.slow
def test_unusable_folders_are_refused(refused: Refused, tmp_path: Path) -> None:
    make_images(tmp_path / "data")
    settings = ("kind=images", f"at={tmp_path}/data")
    (tmp_path / "occupied").write_text("in the way")
    assert "occupied" in refused(*settings, "--out", str(tmp_path / "occupied"))
    assert (tmp_path / "occupied").read_text() == "in the way"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert str(tmp_path / "link") in refused(*settings, "--out", str(tmp_path / "link"))
    assert "'seeds'" in refused("seeds=0,1")
    assert f"{tmp_path}/none" in refused("kind=set", "--data", f"{tmp_path}/none")
    assert f"{tmp_path}/none" in refused("kind=images", f"at={tmp_path}/none")


@pytest.mark.parametrize("command", ["report", "show", "list"])
def test_other_commands_refuse_in_a_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("unifier: ")
    assert error.count("\n") == 1
    assert str(tmp_path) in error


@pytest.mark.parametrize(
    ("command", "name", "settings", "message"),
    [
        *[("run", "choosy", ["dim=7"], "dim=7 is odd"), ("run", "choosy", ["folds=2"], "dim=3 is odd")],
        *[("run", "several", [], "dim=3 is odd"), ("run", "several", ["dims=[]"], "dims is empty")],
        *[("show", "choosy", [], "dim=3 is odd"), ("show", "several", [], "dim=3 is odd")],
        *[("run", "untrue", [], "untrue returns int"), ("show", "untrue", [], "untrue returns int")],
    ],
)
def test_refusals_of_a_recipe_are_one_line(
    command: str,
    name: str,
    settings: list[str],
    message: str,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--out", str(tmp_path / "runs"), "--track", "off"] if command == "run" else []
    assert main([command, f"{file}:{name}", *settings, *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("unifier: ")
    assert message in line
    assert name == "untrue" or "own_files.py, line " in line


@pytest.mark.slow
def test_disk_that_fills_up_is_named_in_a_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Limit files to 4 KiB, less than the first checkpoint needs."""
    make_images(tmp_path / "data")
    command = ["run", f"{file}:own_files", "kind=images", f"at={tmp_path}/data", "--out", str(tmp_path / "runs")]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        assert main([*command, "--track", "off"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert error.startswith("unifier: ")
    assert error.count("\n") == 1
    assert "File too large" in error
    (path,) = (tmp_path / "runs").glob("*/*/result.json")
    assert json.loads(path.read_text())["status"] == "failed"
