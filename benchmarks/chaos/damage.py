"""The campaign that damages each file that a command reads: byte flips, truncation and absence."""

import csv
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from hashlib import sha256
from io import StringIO
from pathlib import Path
from random import Random
from signal import SIGINT, raise_signal
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import soundfile
import torch
from matplotlib.figure import Figure

from benchmarks.chaos.campaign import Outcome
from unifier.cli import main
from unifier.files import read_json
from unifier.folders import LOCK_FILE
from unifier.inference.model import load
from unifier.training.callbacks import LossLogger
from unifier_tokenizers import InputError

STUDY = '''"""Experiments on a few texts and sounds."""

from pathlib import Path

import unifier as uf
from unifier.datasets import AudioFolder, ParallelText
from unifier.options import learn_vocabulary

HERE, D = Path(__file__).parent, 8
TRAINING = uf.Training(steps=6, batch_tokens=128, num_validations=2, num_workers=0)


def trunk() -> uf.Transformer:
    return uf.Transformer(D, 1, 2, 8)


def texts_task() -> uf.Task:
    source = ParallelText(HERE / "pairs.tsv")
    subwords = learn_vocabulary("pairs", source, 270, TRAINING, targets=True)
    head = uf.TranslationHead(subwords, D, depth=1, heads=2, beam_width=1)
    return uf.Task(source, uf.SubwordTokenizer(subwords, D), head)


def sounds_task() -> uf.Task:
    source = AudioFolder(HERE / "sounds.csv")
    head = uf.ClassificationHead(source.labels, D)
    return uf.Task(source, uf.FrameTokenizer(D, sample_rate=4000, n_mels=8), head)


def texts() -> uf.Experiment:
    return uf.Experiment(trunk(), {"texts": texts_task()}, TRAINING)


def sounds() -> uf.Experiment:
    return uf.Experiment(trunk(), {"sounds": sounds_task()}, TRAINING)


def both() -> uf.Experiment:
    return uf.Experiment(trunk(), {"texts": texts_task(), "sounds": sounds_task()}, TRAINING)


def study() -> uf.Comparison:
    return uf.Comparison("study", [texts, sounds], modes=("solo", "joint"), budget_unit="steps")
'''
"""The file of the experiments and the comparison."""

LINES = ("abba", "cd", "e")
"""Texts that the command `translate` translates."""

HASHED = (*(f"{name}.json" for name in ("samples", "attention", "confusions", "lengths")), "representations.npz")
"""Files that are equal in equal runs."""

STOP_STEP = 4
"""The step after which a run is interrupted. Validations follow every third step."""


class Ending(NamedTuple):
    """The end of a command."""

    status: int
    text: str
    """The lines on standard output and standard error, and for a report the lines of the page."""
    result: Any
    """A value that is equal for two commands with equal results."""


class Command(NamedTuple):
    """A command that reads the files of a run or a comparison."""

    name: str
    folder: Path
    """The folder of the files that are damaged: the run or the comparison, and the cache."""
    act: Callable[[], Ending]


class Case(NamedTuple):
    """A command with one damaged file."""

    command: Command
    whole: Ending
    """The end of the command without damage."""
    path: Path
    kind: str
    change: Callable[[bytes], bytes | None]
    """A function that returns the damaged content, or None if the file is deleted."""


def run(seed: int, seconds: float, folder: Path) -> Outcome:
    """Damage each file that `--resume`, `report`, `load` and `translate` read, one file at a time.

    A case is right if the command names the file, or if the command has the result of the whole files. All files are
    damaged in one way before the next way.
    """
    end = time.monotonic() + seconds
    write_data(folder)
    with warnings.catch_warnings(), patch.dict(os.environ), patch.object(Figure, "savefig", write_empty):
        warnings.simplefilter("always")  # Else, Python shows an equal warning once.
        return _run(seed, end, folder)


def _run(seed: int, end: float, folder: Path) -> Outcome:
    wrong: list[str] = []
    cases: list[list[Case]] = []
    for command in create_commands(folder):
        if not (kept := kept_folder(command)).exists():
            shutil.copytree(command.folder, kept)
        with record_files(command.folder) as files:
            whole = command.act()
        restore(command)
        if whole.status or whole.result != command.act().result:
            wrong.append(f"{command.name}: status {whole.status}, or another result when repeated: {whole.text}")
        for name in sorted(path.relative_to(command.folder) for path in files):
            if (kept / name).exists():
                cases.append(
                    damage_file(command, whole, command.folder / name, Random(f"{seed} {command.name} {name}"))
                )
    tried = 0
    for case in (case for turn in zip(*cases, strict=True) for case in turn):
        if time.monotonic() > end:
            break
        tried += 1
        if fault := try_case(case):
            name = case.path.relative_to(case.command.folder)
            wrong.append(f"{case.command.name}, {name}, {case.kind}: {fault}")
    return Outcome(tried, wrong)


def write_empty(_: Figure, file: Any, **_given: Any) -> None:
    """Write an empty drawing, because drawing takes most of the time. The numbers of a figure are in a table."""
    file.write('<svg xmlns="http://www.w3.org/2000/svg"><style></style></svg>')


def try_case(case: Case) -> str:
    """Run a command with a damaged file, and return the fault or ""."""
    restore(case.command)
    content = case.change(case.path.read_bytes())
    case.path.unlink() if content is None else case.path.write_bytes(content)
    ending = case.command.act()
    new_lines = set(ending.text.splitlines()) - set(case.whole.text.splitlines())
    names = case.path.name, f"{case.path.parent.name}: "  # A message about a cache entry names the entry.
    is_named = any(name in line for line in new_lines for name in names)
    if ending.status == 0 and (is_named or ending.result == case.whole.result):
        return ""
    if ending.status == 2 and is_named and "Traceback" not in ending.text:
        return ""
    return f"status {ending.status}, {'named' if is_named else 'silent'}: {' | '.join(sorted(new_lines))[-500:]}"


def damage_file(command: Command, whole: Ending, path: Path, random: Random) -> list[Case]:
    """Return the cases of one file."""
    create = partial(Case, command, whole, path)
    cases = [create("absent", lambda _: None)]
    for bit in random.sample(range(8), 3):
        first, second, third = (random.random() for _ in range(3))
        cases.append(create(f"bit {bit} at {first:.6f}", partial(flip_bit, first, bit)))
        cases.append(create(f"digit at {second:.6f}", partial(change_digit, second)))
        cases.append(create(f"cut at {third:.6f}", partial(cut, third)))
    return [*cases, create("empty", lambda _: b"")]


def cut(place: float, content: bytes) -> bytes:
    """Return the first part of a file's content. `place` is the fraction of the bytes that remain."""
    return content[: int(place * len(content))]


def flip_bit(place: float, bit: int, content: bytes) -> bytes:
    """Return a content with a changed bit at a place from 0 to 1."""
    k = int(place * len(content))
    return content[:k] + bytes([content[k] ^ 1 << bit]) + content[k + 1 :] if content else b"0"


def change_digit(place: float, content: bytes) -> bytes:
    """Return a content with another digit at a place from 0 to 1."""
    places = [k for k, byte in enumerate(content) if chr(byte) in "0123456789"]
    if not places:
        return content + b"0"
    k = places[int(place * len(places))]
    return content[:k] + (b"1" if content[k : k + 1] == b"0" else b"0") + content[k + 1 :]


def kept_folder(command: Command) -> Path:
    """Return the path of the intact copy of the folder that a command reads."""
    return command.folder.with_name(f"{command.folder.name}-kept")


def restore(command: Command) -> None:
    """Replace a command's folder by its copy."""
    shutil.rmtree(command.folder)
    shutil.copytree(kept_folder(command), command.folder)


_opened: list[set[Path]] = []
"""The sets of files in the contexts of `record_files`, from the outermost to the innermost."""


@cache
def _install_hook() -> None:
    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and _opened and isinstance(arguments[0], str | os.PathLike):
            _opened[-1].add(Path(os.path.realpath(arguments[0])))

    sys.addaudithook(record)  # Python cannot remove an audit hook.


@contextmanager
def record_files(folder: Path) -> Generator[set[Path]]:
    """Yield a set, to which the files of a folder that were opened in the context are added at the end."""
    _install_hook()
    _opened.append(set())
    files = set[Path]()
    try:
        yield files
    finally:
        opened = _opened.pop()
        files |= {path for path in opened if path.is_relative_to(folder) and path.name != LOCK_FILE}


def write_data(folder: Path) -> None:
    """Write the experiments' file and the data."""
    random = Random(0)
    texts = dict.fromkeys("".join(random.choices("abcdef", k=4)) for _ in range(150))
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts))
    rows = ["file,label,split"]
    for k in range(60):
        wave = np.sin(np.arange(1000) * (0.2 + 0.4 * (k % 2)) + k) * 0.5
        soundfile.write(folder / f"{k}.wav", wave, 4000)
        rows.append(f"{k}.wav,{'ab'[k % 2]},{('train', 'train', 'train', 'val', 'test')[k // 12]}")
    (folder / "sounds.csv").write_text("\n".join(rows))
    (folder / "lines.txt").write_text("\n".join(LINES))
    (folder / "study.py").write_text(STUDY)


def create_commands(folder: Path) -> Generator[Command]:
    """Train runs and comparisons, and yield the commands that read their folders."""
    for name in ("both", "study"):
        reference, lines = f"{folder / 'study.py'}:{name}", folder / "lines.txt"
        place, run = _train(reference, folder / f"{name}-finished")
        yield Command(f"report {name}", place, partial(report, run))
        if name == "both":
            yield Command("load", place, partial(load_run, run))
            yield Command("translate", place, partial(call, ["translate", str(run), str(lines)]))
        with interrupt():
            place, run = _train(reference, folder / f"{name}-stopped")
        yield Command(f"resume {name}", place, partial(resume, reference, run))


def _train(reference: str, place: Path) -> tuple[Path, Path]:
    """Train an experiment or a comparison, and return the given folder and the folder of the run or comparison."""
    os.environ["UNIFIER_CACHE"] = str(place / "cache")
    call(["run", reference, "--out", str(place), "--track", "off"])
    (run,) = (place / reference.rpartition(":")[2]).iterdir()
    return place, run


@contextmanager
def interrupt() -> Generator[None]:
    """Press Ctrl-C after step `STOP_STEP` of the first run with two tasks."""
    log, pressed = LossLogger.on_train_batch_end, list[int]()

    def press(self: LossLogger, trainer: Any, model: Any, *given: Any, **named: Any) -> None:
        log(self, trainer, model, *given, **named)
        if trainer.global_step == STOP_STEP and len(model.tasks) == 2 and not pressed:
            pressed.append(STOP_STEP)
            raise_signal(SIGINT)

    with patch.object(LossLogger, "on_train_batch_end", press):
        yield


def call(arguments: list[str]) -> Ending:
    """Call the command line. The result is the standard output. An unexpected error has the status 1."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        try:
            status = main(arguments)
        except SystemExit as error:
            status = int(error.code or 0)
        except Exception:
            status = 1
            traceback.print_exc()
    return Ending(status, output.getvalue() + errors.getvalue(), output.getvalue())


def resume(reference: str, folder: Path) -> Ending:
    """Resume a run or a comparison. The result is the content of its files."""
    os.environ["UNIFIER_CACHE"] = str(folder.parents[1] / "cache")
    ending = call(["run", reference, "--resume", str(folder), "--track", "off"])
    if ending.status:
        return ending._replace(result=None)
    with record_files(folder):  # The campaign reads more files than the command.
        try:
            result = read_whole(folder)
        except (ValueError, OSError) as error:  # The command has named a damaged file, and has left it as it is.
            result = error
        return ending._replace(text=f"{ending.text}\n{read_page(folder)}", result=result)


def read_page(folder: Path) -> str:
    """Return the text of a report, or ""."""
    return path.read_text() if (path := folder / "report.html").exists() else ""


def read_whole(folder: Path) -> dict[str, Any]:
    """Return the content of all files of a run or a comparison, without the time."""
    if (folder / "comparison.json").exists():
        content = read_json(folder / "comparison.json")
        runs = {f"{row['experiment']} {row['mode']} {row['seed']}": row["folder"] for row in content["rows"]}
        return {name: read_whole(folder / path) for name, path in runs.items()} | {
            "representation": content["representation"]
        }
    contents: dict[str, Any] = {"metrics": read_json(folder / "result.json")["metrics"]}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                contents[path.name] = [{**row, "budget/seconds": ""} for row in csv.DictReader(file)]
        elif path.name in HASHED:
            contents[path.name] = sha256(path.read_bytes()).hexdigest()
    for path in (folder / "checkpoints").iterdir():
        contents[path.name] = hash_weights(torch.load(path, weights_only=True)["state_dict"])
    return contents


def hash_weights(weights: dict[str, torch.Tensor]) -> str:
    """Return a hash of all weights."""
    return sha256(b"".join(name.encode() + weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def report(folder: Path) -> Ending:
    """Write a report. The result is the page, with the data of its figures."""
    for path in (folder / "report.html", *(folder / "figures").glob("*.csv")):
        path.unlink(missing_ok=True)
    ending = call(["report", str(folder)])
    with record_files(folder):  # The campaign reads more files than the command.
        page = read_page(folder)
        tables = {path.name: path.read_text() for path in (folder / "figures").glob("*.csv")}
    return ending._replace(text=f"{ending.text}\n{page}", result=(page, tables))


def load_run(folder: Path) -> Ending:
    """Load a run. The result is its weights and its predictions."""
    try:
        model = load(folder)
    except InputError as error:
        return Ending(2, str(error), None)
    except Exception:
        return Ending(1, traceback.format_exc(), None)
    return Ending(0, "", (hash_weights(model.network.state_dict()), model.predict(LINES, "texts")))
