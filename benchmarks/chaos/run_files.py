"""The files of a small run and of a small comparison, with the functions that load, resume and report them."""

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import soundfile
import torch
from matplotlib.figure import Figure

from benchmarks.chaos.data_files import sentences
from benchmarks.chaos.mutations import mutate_bytes, mutate_json_file, mutate_table, mutate_value
from benchmarks.chaos.subject import Subject, equal
from unifier.config import load_experiment
from unifier.data.cache import fit_once, load_or_encode
from unifier.data.readers import hash_each
from unifier.datasets.audio_folder import AudioFolder
from unifier.files import read_json
from unifier.inference.model import load, load_run_experiment
from unifier.inference.translate import BLOCK_BYTES, DecodingOptions, open_input, translate
from unifier.inference.translator import Translator
from unifier.launch import run_in_folder
from unifier.network import Network
from unifier.report.page import report_on
from unifier.report.read_results import read_results
from unifier.training.checkpoint import load_weights, read_checkpoint
from unifier.trials.trunk_similarity import compare_representations
from unifier_tokenizers import FrameTokenizer

STUDY = '''"""Experiments that train in a second."""

import sys
from dataclasses import replace

sys.path.insert(0, {recipes!r})
import pictures
import translation

import unifier as uf
from unifier.options import DecoderConfig, ImageFrontend, ParallelTextConfig, TrunkConfig

TRUNK = TrunkConfig(dim=16, depth=1, heads=2, ffn_dim=16)
TRAINING = uf.Training(tokens=1500, batch_tokens=128, num_validations=2)
PAIRS = ParallelTextConfig(data={pairs!r}, target="fr")


def texts(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Translate."""
    decoder = DecoderConfig(decoder_depth=1, beam_width=1)
    return translation.translation(pairs=PAIRS, vocabulary=300, trunk=trunk, decoder=decoder, training=training)


def digits(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify."""
    trunk, frontend = replace(trunk, positions="learned"), ImageFrontend(stem=None)
    return pictures.pictures(frontend=frontend, trunk=trunk, augmentation=pictures.PLAIN, training=training)


def study(*, training: uf.Training = TRAINING) -> uf.Comparison:
    """Compare."""
    return uf.Comparison(
        "study", [texts, digits], settings={{"training": training}}, seeds=(0,), modes=("solo", "joint")
    )
'''
"""The file of the experiments and the comparison."""

RECIPES = Path(__file__).parents[2] / "experiments"


def run_subjects(folder: Path) -> list[Subject]:
    """Train the runs below a folder, and return a subject for each file and each command that reads the file."""
    folder.mkdir()
    os.environ["UNIFIER_CACHE"] = "off"
    pairs, study = folder / "pairs.tsv", folder / "study.py"
    texts = sentences(200)
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in zip(texts, reversed(texts), strict=True)))
    study.write_text(STUDY.format(recipes=str(RECIPES), pairs=str(pairs)))
    runs = {name: _train(study, name, folder / "out") for name in ("texts", "digits", "study")}
    trials = {read_json(path / "settings.json")["name"]: path for path in (runs["study"] / "trials").iterdir()}
    whole = folder / "whole"
    shutil.copytree(runs["texts"], whole)
    for path in (folder / "out").rglob("*.json"):
        _remove_hashes(path)
    names = ("result.json", "settings.json", "samples.json", "attention.json", "lengths.json", "metrics.csv")
    return [
        *_subjects([whole / "hashes.json", whole / "samples.json"], partial(report_on, whole), "report, with hashes"),
        *_subjects([runs["texts"] / name for name in names], partial(report_on, runs["texts"]), "report"),
        *_subjects([runs["digits"] / "confusions.json"], partial(report_on, runs["digits"]), "report"),
        *_subjects([trials["joint"] / "interference.csv"], partial(report_on, trials["joint"]), "report"),
        *_comparison(runs["study"], trials["digits"]),
        *_models(runs),
        _lines(runs["texts"], folder / "lines.txt"),
        *_resumed(study, runs, folder / "copies"),
        *_cache(folder / "cache"),
    ]


HASH_KEY = "sha256"
"""Key under which a JSON file stores its own hash."""


def _remove_hashes(path: Path) -> None:
    """Remove the hashes of files from a JSON file of a run. A damaged file then reaches the checks of its content."""
    if path.name == "hashes.json":
        path.unlink()
        return
    content = json.loads(path.read_text())
    removed = [content.pop(key, None) for key in (HASH_KEY, "fitted")]
    if any(removed):
        path.write_text(json.dumps(content))


def _train(study: Path, name: str, out: Path) -> Path:
    return run_in_folder(
        load_experiment(f"{study}:{name}"), {}, seed=None, out=out, track="off", tensorboard=False, resume=None
    )[1]


def _resume(study: Path, name: str, folder: Path) -> Any:
    with undrawn():
        results, _ = run_in_folder(
            load_experiment(f"{study}:{name}"), {}, seed=None, out=None, track="off", tensorboard=False, resume=folder
        )
    return [result.metrics for result in results]


def _subjects(paths: Iterable[Path], read: Callable[[], Any], command: str) -> list[Subject]:
    """Return a subject for each file of a run. The mutation depends on the suffix of the file."""
    mutate = {".json": mutate_json_file, ".csv": mutate_table, ".ckpt": mutate_checkpoint, ".npz": mutate_archive}
    return [
        Subject(f"{path.name} of {command}", path, [path.read_bytes()], read, mutate.get(path.suffix, mutate_bytes))
        for path in paths
    ]


def undrawn() -> AbstractContextManager[Any]:
    """Return a context in which figures are empty, because drawing takes most of the time of a small run."""

    def write(_: Figure, file: io.StringIO | str | Path, **options: Any) -> None:
        svg = '<svg xmlns="http://www.w3.org/2000/svg"><style></style></svg>'
        file.write(svg) if isinstance(file, io.StringIO) else Path(file).write_text(svg)

    return patch.object(Figure, "savefig", write)


def _report(folder: Path, file: Path) -> None:
    """Write the report of a comparison. The figures are drawn in one of four cases, depending on the file's size."""
    with undrawn() if file.stat().st_size % 4 else nullcontext():
        report_on(folder)


def _comparison(folder: Path, trial: Path) -> list[Subject]:
    def compare() -> Any:
        rows = [{**row, "folder": str(row["folder"])} for row in read_results(folder).rows]
        return compare_representations(folder, rows)

    reported = [folder / "comparison.json", trial / "predictions.csv"]
    return [
        *(subject for file in reported for subject in _subjects([file], partial(_report, folder, file), "report")),
        *_subjects([trial / "representations.npz"], compare, "the similarity of trunks"),
    ]


def _models(runs: dict[str, Path]) -> list[Subject]:
    """Return the files that `load` and `translate` read, and the files that build a run's experiment again."""
    subjects = list[Subject]()
    for name, raw in (("texts", "der Hund läuft"), ("digits", np.zeros((8, 8), np.uint8))):
        run = runs[name]
        fitted = [*(run / "vocabularies").glob("*.json"), *run.glob("numbers.json")]
        experiment = [run / "checkpoints" / "best.ckpt", run / "settings.json", *fitted]
        model = [path for path in sorted((run / "model").iterdir()) if path.suffix != ".md"]
        subjects += _subjects(experiment, partial(_load_checkpoint, run), f"the experiment {name}")
        subjects += _subjects(model, partial(_predict, run, raw), f"the model {name}")
    return subjects


def _load_checkpoint(run: Path) -> None:
    """Build a run's experiment again, and load the weights of its best checkpoint."""
    path, experiment = run / "checkpoints" / "best.ckpt", load_run_experiment(run)
    load_weights(Network.from_experiment(experiment), read_checkpoint(path)["state_dict"], path, "the experiment")


def _predict(run: Path, raw: Any) -> list[str]:
    """Predict with the model of a run, after the hashes in its config.json are set to the hashes of its files."""
    folder = run / "model"
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        config = json.loads((folder / "config.json").read_bytes())
        config["files"] = hash_each({name: folder / name for name in config["files"]})
        (folder / "config.json").write_text(json.dumps(config))
    return load(run).predict([raw])


def _lines(run: Path, path: Path) -> Subject:
    """Return a file that `translate` translates line by line."""
    translator = Translator(run)

    def read() -> list[str]:
        out = io.StringIO()
        with open_input(str(path)) as file:
            translate(translator, file, str(path), out, DecodingOptions())
        return out.getvalue().split("\n")

    def difference(content: bytes, value: list[str]) -> str:
        end = b"\n" if b"\n" in content[:BLOCK_BYTES] else b"\r"
        lines = content.count(end) + (not content.endswith(end) and content != b"")
        return "" if len(value) - 1 == lines else f"{len(value) - 1} translations of {lines} lines"

    content = "".join(f"{line}\n" for line in sentences(6)).encode()
    return Subject("lines of translate", path, [content], read, mutate_bytes, difference)


def _resumed(study: Path, runs: dict[str, Path], copies: Path) -> list[Subject]:
    """Return the files that `--resume` reads. Each case resumes a new copy of a run that stopped before its result."""
    subjects = list[Subject]()
    for name, files in (
        ("texts", ("settings.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt", "result.json")),
        ("study", ("comparison.json",)),
    ):
        stopped, copy = copies / f"{name}-stopped", copies / name
        shutil.copytree(runs[name], stopped)
        result = stopped / files[-1]
        result.write_text(json.dumps({**json.loads(result.read_text()), "status": "running"}))

        def read(name: str = name, stopped: Path = stopped, copy: Path = copy) -> Any:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(stopped, copy)
            return _resume(study, name, copy)

        subjects += _subjects([stopped / file for file in files], read, "--resume")
    return subjects


def _cache(folder: Path) -> list[Subject]:
    """Return the files of the cache entries of a data set. With a damaged entry, the values are computed again."""
    for k in range(12):
        path = folder / "data" / "ab"[k % 2] / f"{k}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.random.default_rng(k).normal(0, 0.1, 4000), 8000)

    def read() -> list[Any]:
        os.environ["UNIFIER_CACHE"] = str(folder / "cache")
        try:
            source, tokenizer = AudioFolder(folder / "data"), FrameTokenizer(8, sample_rate=8000, n_mels=8)
            fit_once(tokenizer, source)
            cached = load_or_encode(source, tokenizer, num_workers=0)
            assert cached is not None
            values = [cached.values[row].numpy() for row in cached.rows.values()]
            return [array.copy() for array in (*values, *(buffer.numpy() for buffer in tokenizer.buffers()))]
        finally:
            os.environ["UNIFIER_CACHE"] = "off"

    expected = read()

    def difference(_: bytes, value: Any) -> str:
        return "" if equal(value, expected) else "other values than the data"

    files = [path for path in sorted((folder / "cache").rglob("*")) if path.is_file()]
    return [
        subject._replace(name=f"{subject.name}, {k}", mutate=mutate_bytes, difference=difference)
        for k, subject in enumerate(_subjects(files, read, "the cache"))
    ]


def mutate_checkpoint(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Mutate the bytes of a checkpoint, a file in its archive, or one of its values. A new checkpoint has no hash."""
    kind = rng.choice(("bytes", "archive", "value", "value"))
    if kind == "bytes":
        return mutate_bytes(rng, content)
    if kind == "archive":
        return mutate_archive(rng, content)
    checkpoint = torch.load(io.BytesIO(content), weights_only=True)
    name = mutate_value(rng, checkpoint, (*TENSORS, None, 1, -1, 1.5, float("nan"), "x", [], {}, [1], {"a": 1}, True))
    changed = io.BytesIO()
    torch.save(checkpoint, changed)
    return name, changed.getvalue()


TENSORS = (
    *(torch.zeros(0), torch.full((16, 16), torch.nan), torch.full((16,), torch.inf), torch.ones(3, dtype=torch.int64)),
    *(torch.ones(16, dtype=torch.float16), torch.ones(16, dtype=torch.complex64), torch.tensor(1.0), torch.ones(2, 2)),
)
"""Tensors of other shapes and types than a checkpoint should have."""


def mutate_archive(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Mutate a file in a zip archive, and write the archive again with new checksums."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(packed, "w") as changed:
        names = archive.namelist()
        chosen = rng.choice(names)
        mutation = ""
        for name in names:
            data = archive.read(name)
            if name == chosen:
                mutation, data = mutate_bytes(rng, data or b"x")
            changed.writestr(name, data)
    return f"{mutation} in {chosen.rpartition('/')[2]}", packed.getvalue()
