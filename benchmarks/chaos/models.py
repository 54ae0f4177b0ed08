"""The campaign that changes the folders of trained models: files with mutations, exchanged, missing and added files."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.chaos.campaign import Outcome, check_in_turns
from benchmarks.chaos.mutations import mutate_bytes, mutate_json_file
from benchmarks.chaos.readers import quiet
from benchmarks.chaos.watch import watch
from unifier.data.inputs import reader_of
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.head import Head
from unifier.heads.transformer_decoder import TranslationHead
from unifier.inference.model import load
from unifier.models.folder import CARD_FILE, ModelTask, StoredModel, write_model
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer, PatchTokenizer, SubwordTokenizer, Tokenizer, Vocabulary

CASES = 100
"""Number of mutations of each folder."""

D = 16


class Subject(NamedTuple):
    """A folder of a model, an input, and the prediction for this input."""

    name: str
    whole: Path
    value: Any
    expected: Any


def run(seed: int, seconds: float, folder: Path) -> Outcome:
    """Change each folder `CASES` times. A case is right if the folder is refused or predicts the same."""
    end = time.monotonic() + seconds
    with quiet():
        checks = [partial(check, subject, changed=folder / "changed") for subject in write_models(folder)]
        return check_in_turns(checks, seed, CASES, end)


def write_models(folder: Path) -> list[Subject]:
    """Write one small model with random weights per modality."""
    torch.manual_seed(0)
    vocabulary = Vocabulary.fit(["one two three", "four five six"], size=280)
    vectors = torch.randn(len(vocabulary), 4)
    parts: dict[str, tuple[Tokenizer, Head, Any]] = {
        "picture": (PatchTokenizer(D), ClassificationHead(["a", "b"], D), np.eye(8)),
        "sound": (FrameTokenizer(D), TaggingHead(["a", "b"], D), (np.sin(np.arange(4000) / 9), 16000)),
        "text": (SubwordTokenizer(vocabulary, D, vectors=vectors), ClassificationHead(["a", "b"], D), "one six"),
        "translation": (
            SubwordTokenizer(vocabulary, D),
            TranslationHead(vocabulary, D, depth=1, heads=2),
            "three four",
        ),
    }
    subjects = list[Subject]()
    for name, (tokenizer, head, value) in parts.items():
        task = ModelTask(tokenizer, head, reader_of(None, tokenizer), longest=50)
        write_model(folder / name, StoredModel(name, Transformer(D, 1, 2, D), {name: task}, 256, {}), "card")
        subjects.append(Subject(name, folder / name, value, predict(folder / name, value)))
    return subjects


def predict(folder: Path, value: Any) -> Any:
    """Return the first prediction of a model as plain numbers or a text."""
    (prediction,) = load(folder).predictions([value])
    return prediction.tolist() if isinstance(prediction, torch.Tensor) else prediction


def check(subject: Subject, seed: int, number: int, changed: Path) -> str:
    """Change a copy of a folder and predict. Return the fault with what reproduces the fault, or ""."""
    random = Random(f"{seed} {subject.name} {number}")
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(subject.whole, changed)
    names = sorted(path.name for path in subject.whole.iterdir() if path.name != CARD_FILE)
    kind = random.choice([*KINDS])
    path = changed / random.choice(names)
    KINDS[kind](random, path)
    verdict = watch(lambda: predict(changed, subject.value), 1 << 20)
    fault = verdict.fault
    if not fault and verdict.refusal and ("\n" in verdict.refusal or changed.name not in verdict.refusal):
        fault = f"the message is not one line with the folder's name: {verdict.refusal}"
    if not fault and not verdict.refusal and verdict.value != subject.expected:
        fault = f"another prediction: {verdict.value} instead of {subject.expected}"
    return f"{subject.name}, seed {seed}, case {number}, {kind} {path.name}: {fault}" if fault else ""


def _mutate(random: Random, path: Path) -> None:
    mutate = mutate_json_file if path.suffix == ".json" else mutate_bytes
    path.write_bytes(mutate(random, path.read_bytes())[1])


def _exchange(random: Random, path: Path) -> None:
    """Exchange the contents of two files."""
    other = random.choice([other for other in sorted(path.parent.iterdir()) if other != path])
    contents = other.read_bytes(), path.read_bytes()
    for target, content in zip((path, other), contents, strict=True):
        target.write_bytes(content)


def _make_folder(random: Random, path: Path) -> None:
    """Replace a file by an empty folder."""
    path.unlink()
    path.mkdir()


def _make_link(random: Random, path: Path) -> None:
    """Replace a file by a link to nothing, to itself or to its folder."""
    path.unlink()
    path.symlink_to(random.choice(("nothing", path.name, ".")))


KINDS: dict[str, Callable[[Random, Path], Any]] = {
    "mutate": _mutate,
    "mutate once more": _mutate,
    "exchange": _exchange,
    "folder": _make_folder,
    "link": _make_link,
    "remove": lambda random, path: path.unlink(),
    "rename": lambda random, path: path.rename(path.with_name(f"{path.name}.bak")),
    "empty": lambda random, path: path.write_bytes(b""),
    "repeat": lambda random, path: path.write_bytes(2 * path.read_bytes()),
    "add": lambda random, path: path.with_suffix(random.choice((".py", ".pkl", ".tmp"))).write_bytes(path.read_bytes()),
}
"""The changes, keyed by name. Each changes one file of the folder."""
