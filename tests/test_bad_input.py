"""What the user can mend is said in one line, with exit status 2, and leaves nothing behind."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.cli import main

pytestmark = pytest.mark.usefixtures("undrawn")

EXPERIMENT = """
from typing import Literal

from unifier import Task, ClassificationHead, Experiment, Training, Transformer, TranslationHead
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.mnist import MNIST
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.parallel_text import ParallelText
from unifier_tokenizers import FrameTokenizer, PatchTokenizer, SubwordTokenizer, Vocabulary

def own_files(
    *, kind: Literal["pictures", "sounds", "texts", "set"], at: str = "", dim: int = 8, trunk: int = 8, heads: int = 2,
    task: str = "own", labels: tuple[str, ...] = (), steps: int = 1, bad: Literal["stop", "skip"] = "stop",
) -> Experiment:
    if kind == "set":
        source = MNIST("fashion_mnist")
        tokenizer = PatchTokenizer(dim, channels=1)
    elif kind == "pictures":
        source = ImageFolder(at, channels=1)
        tokenizer = PatchTokenizer(dim, channels=1)
    elif kind == "sounds":
        source = AudioFolder(at + "/table.csv")
        tokenizer = FrameTokenizer(dim, rate=8000)
    if kind == "texts":
        source = ParallelText((at + "/source", at + "/target"))
        vocabulary = Vocabulary.fit(["a b c"], size=300)
        tokenizer = SubwordTokenizer(vocabulary, dim)
        head = TranslationHead(vocabulary, dim, depth=1, heads=heads, ffn_dim=8)
    else:
        head = ClassificationHead(labels or source.labels, dim)
    training = Training(steps=steps, batch_tokens=64, num_validations=1, bad_examples=bad)
    return Experiment(Transformer(trunk, 1, heads, 8), {task: Task(source, tokenizer, head)}, training, name="own_files")
"""


def pictures(folder: Path) -> None:
    for number in range(20):
        path = folder / ("cat" if number % 2 else "dog") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.RandomState(number).randint(0, 255, (8, 8), np.uint8)).save(path)


def sounds(folder: Path) -> None:
    folder.mkdir()
    rows = ["file,label,split"]
    for number, part in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2):
        soundfile.write(folder / f"{number}.wav", np.zeros(1600), 8000)
        rows.append(f"{number}.wav,{'ab'[number % 2]},{part}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")


def texts(folder: Path) -> None:
    folder.mkdir()
    for name in ("source", "target"):
        (folder / name).write_text("".join(f"{name} {number}\n" for number in range(30)))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


MAKE: dict[str, Callable[[Path], None]] = {"pictures": pictures, "sounds": sounds, "texts": texts}


@pytest.fixture(params=["pictures", "sounds", "texts"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "own_files.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the study, see it refused, and return the line that says why."""

    def check(*arguments: str, study: Path = file) -> str:
        out = [] if "--out" in arguments else ["--out", str(tmp_path / "runs")]
        capsys.readouterr()
        assert main(["run", str(study), *arguments, *out, "--track", "off"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("unifier: ")
        assert said.count("\n") == 1
        assert not (tmp_path / "runs").exists()
        return said

    return check


Refused = Callable[..., str]


def test_whole_files_are_not_refused(kind: str, file: Path, tmp_path: Path) -> None:
    MAKE[kind](tmp_path / "data")
    arguments = ["run", str(file), f"kind={kind}", f"at={tmp_path / 'data'}", "--out", str(tmp_path), "--track", "off"]
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["stpes=3"], "no setting 'stpes'; did you mean 'steps'? (of own_files)"),
        (["steps=many"], "steps='many' does not fit"),
        (["steps=0"], "steps=0: at least 1 is needed"),
        (["kind=films"], "kind='films' does not fit"),
        (["kind"], "'kind' is no setting"),
        (["seed=-1"], "seed=-1"),
        (["seed=first"], "seed='first'"),
        (["dim=16"], "D = 16, and the trunk reads D = 8"),
        (["heads=3"], "3 heads do not divide D = 8"),
        (["task=keys"], '"keys" cannot name an task'),
        (["task=a.b"], '"a.b" cannot name an task'),
        (["labels=cat,horse"], "the label 'dog' is outside the set: cat, horse"),
        (["labels=cat"], "two or more different labels"),
    ],
)
def test_settings_that_do_not_fit(refused: Refused, tmp_path: Path, settings: list[str], said: str) -> None:
    pictures(tmp_path / "data")
    kind = [] if settings[0].startswith("kind") else ["kind=pictures"]
    assert said in refused(*kind, f"at={tmp_path / 'data'}", *settings)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.py", None, "no such file; an experiment is a Python file"),
        ("notes.txt", "hello", "an experiment is a Python file, and this is none"),
        ("hello_study.py", "print", "no experiment in it"),
        ("syntax_study.py", "def f(:", "syntax_study.py, line 1: not Python"),
        ("own_study.py:nobody", EXPERIMENT, "no experiment 'nobody'; take"),
        (f"{'o' * 300}.py", None, "File name too long"),
    ],
)
def test_files_that_are_no_experiment(refused: Refused, tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text)
    assert said in refused(study=tmp_path / name)


def spoil_text(at: int, line: bytes, name: str = "source") -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        lines = (folder / name).read_bytes().split(b"\n")
        lines[at] = line
        (folder / name).write_bytes(b"\n".join(lines))

    return spoil


@pytest.mark.parametrize(
    ("what", "spoil", "said"),
    [
        (
            "pictures",
            lambda d: (d / "cat" / "01.png").write_text("no picture"),
            "01.png cannot be read as a picture: it is of no kind",
        ),
        ("pictures", lambda d: cut(d / "dog" / "02.png"), "02.png cannot be read as a picture"),
        ("sounds", lambda d: (d / "1.wav").write_text("no sound"), "1.wav cannot be read as a sound"),
        ("sounds", lambda d: cut(d / "2.wav"), "2.wav cannot be read as a sound: the file is cut off"),
        ("sounds", lambda d: (d / "3.wav").unlink(), "3.wav"),
        ("sounds", lambda d: soundfile.write(d / "0.wav", np.zeros(20), 8000), "is shorter than one window"),
        ("texts", spoil_text(7, b""), "source, line 8: the source is empty"),
        ("texts", spoil_text(3, b"  ", "target"), "target, line 4: the target is empty"),
        ("texts", spoil_text(5, b"\xff\xfe"), "source, line 6: not UTF-8 text"),
        ("texts", spoil_text(29, b"one\ntwo"), "line by line they cannot be translations"),
        ("texts", lambda d: (d / "target").unlink(), "target"),
    ],
)
def test_data_that_cannot_be_read(
    refused: Refused, tmp_path: Path, what: str, spoil: Callable[[Path], object], said: str
) -> None:
    data = tmp_path / "data"
    MAKE[what](data)
    spoil(data)
    line = refused(f"kind={what}", f"at={data}")
    assert said in line
    assert str(data) in line or "window" in line


def test_a_sound_too_short_is_named_by_its_file(refused: Refused, tmp_path: Path) -> None:
    sounds(tmp_path / "data")
    soundfile.write(tmp_path / "data" / "6.wav", np.zeros(20), 8000)
    assert f"{tmp_path}/data/6.wav: a sound of 0.003 s is shorter" in refused("kind=sounds", f"at={tmp_path}/data")


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("pictures", lambda d: cut(d / "dog" / "02.png")),
        ("pictures", lambda d: (d / "dog" / "21.png").symlink_to(d / "none.png")),
        ("sounds", lambda d: (d / "3.wav").unlink()),
    ],
    ids=["cut", "dangling", "missing"],
)
def test_bad_examples_may_be_left_out(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, spoil: Callable[[Path], object]
) -> None:
    MAKE[what](tmp_path / "data")
    spoil(tmp_path / "data")
    arguments = [f"kind={what}", f"at={tmp_path}/data", "bad=skip", "--out", str(tmp_path), "--track", "off"]
    assert main(["run", str(file), *arguments]) == 0
    assert "1 examples skipped, such as" in capsys.readouterr().err


def test_places_that_are_not_there_or_not_to_be_written(refused: Refused, tmp_path: Path) -> None:
    pictures(tmp_path / "data")
    own = ("kind=pictures", f"at={tmp_path}/data")
    (tmp_path / "file").write_text("in the way")
    assert "file" in refused(*own, "--out", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "in the way"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "a link to nowhere" in refused(*own, "--out", str(tmp_path / "link"))
    assert "give seed=N, or seeds=0,1,... with folds=N" in refused("seeds=0,1")
    assert f"--data {tmp_path}/none: no such folder" in refused("kind=set", "--data", f"{tmp_path}/none")
    assert "no such folder of pictures" in refused("kind=pictures", f"at={tmp_path}/none")


@pytest.mark.parametrize("arguments", [["report"], ["show"], ["list"]])
def test_other_commands_say_it_in_a_line_too(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("unifier: ")
    assert said.count("\n") == 1
    assert str(tmp_path) in said


CHOOSY = """
from unifier import Comparison, Experiment

def choosy(*, dim: int = 3, fold: int = 0) -> Experiment:
    raise ValueError(f"dim={dim} is odd: take an even one")

def several(*, dims: tuple[int, ...] = (3, 5)) -> Comparison:
    if not dims:
        raise ValueError("dims has none: give two")
    return Comparison("several", [choosy], grid={"dim": dims}, match="steps")
"""


@pytest.mark.parametrize(
    ("command", "name", "settings", "said"),
    [
        ("run", "choosy", ["dim=7"], "5: dim=7 is odd: take an even one"),
        ("run", "choosy", ["folds=2"], "5: dim=3 is odd: take an even one"),
        ("run", "several", [], "5: dim=3 is odd: take an even one"),
        ("run", "several", ["dims=[]"], "9: dims has none: give two"),
        ("show", "choosy", [], "5: dim=3 is odd: take an even one"),
        ("show", "several", [], "5: dim=3 is odd: take an even one"),
    ],
)
def test_what_a_study_refuses_itself_is_said_in_a_line(
    command: str, name: str, settings: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "choosy.py"
    path.write_text(CHOOSY)
    options = ["--out", str(tmp_path / "runs"), "--track", "off"] if command == "run" else []
    assert main([command, f"{path}:{name}", *settings, *options]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"unifier: choosy.py, line {said}"


@pytest.mark.parametrize("command", [["show"], ["run", "--track", "off"]], ids=["show", "run"])
def test_what_returns_other_than_it_says_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "untrue.py"
    path.write_text("from unifier import Experiment\n\ndef untrue() -> Experiment:\n    return 3\n")
    assert main([command[0], str(path), *command[1:]]) == 2
    said = "unifier: untrue returns int, where Experiment is expected: is it annotated so?\n"
    assert capsys.readouterr().err == said


def test_a_disk_that_fills_up_is_said_in_a_line(file: Path, tmp_path: Path) -> None:
    """No file may be longer than 4 KiB, which the first checkpoint is."""
    pictures(tmp_path / "data")
    command = [sys.executable, "-m", "unifier.cli", "run", str(file), "kind=pictures", f"at={tmp_path}/data"]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path / "runs"), "--track", "off"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("unifier: ")
    assert ended.stderr.count("\n") == 1
    assert "File too large" in ended.stderr
    (result,) = (tmp_path / "runs").glob("*/*/result.json")
    assert json.loads(result.read_text())["status"] == "failed"
