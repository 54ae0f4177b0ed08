"""What is encoded once is found again, equal to the byte, and never where anything it came from has changed."""

import importlib.util
import inspect
import operator
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from unifier.data import cache as kept
from unifier.data.dataset import Subset
from unifier.data.encoding import EncodedSplit
from unifier.data.source import SplitName
from unifier.datasets.audio_folder import AudioFolder
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.fit import encode_tasks
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, Tokenizer, Units

RATE = 4000
TRUNK = Transformer(8, 1, 2, 8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "encoded"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twelve sounds of unlike length in four folds."""
    lines = ["file,label,fold"]
    for k in range(12):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-0.5, 0.5, RATE // 4 + 37 * k), RATE)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{k // 3}")
    (tmp_path / "sounds.csv").write_text("\n".join(lines))
    return tmp_path / "sounds.csv"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sounds that are read, in turn."""
    names: list[str] = []
    whole = soundfile.SoundFile

    def counted(file: Path, *args: Any, **more: Any) -> soundfile.SoundFile:
        names.append(Path(file).name)
        return whole(file, *args, **more)

    monkeypatch.setattr(soundfile, "SoundFile", counted)
    return names


def tokenizer(**settings: Any) -> FrameTokenizer:
    usual: dict[str, Any] = {"dim": 8, "rate": RATE, "bands": 16, "stack": 2}
    return FrameTokenizer(**usual | settings)


def encoded(source: Any, tokens: Tokenizer | None = None, **training: Any) -> dict[SplitName, EncodedSplit]:
    head = ClassificationHead(source.labels, 8)
    task = Task(source, tokens or tokenizer(), head)
    experiment = Experiment(TRUNK, {"sounds": task}, Training(steps=1, num_workers=0, **training), name="sounds")
    return dict(encode_tasks(experiment, {})["sounds"].splits)


def raw(units: Units) -> list[Any]:
    return [(part.dtype, part.shape, part.numpy().tobytes()) for part in units]


def content(splits: Mapping[SplitName, EncodedSplit]) -> list[Any]:
    return [
        (name, int(split.indices[k]), split.scalar_targets, split.target(k).numpy().tobytes(), *raw(split.units(k)))
        for name, split in splits.items()
        for k in range(len(split))
    ]


def test_a_second_run_reads_no_sound_and_has_the_same_to_the_byte(
    table: Path, root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = content(encoded(AudioFolder(table)))
    assert len(read) == 12
    assert f"kept for later runs in {root}" in capsys.readouterr().out
    assert content(encoded(AudioFolder(table))) == first
    assert len(read) == 12
    (line,) = capsys.readouterr().out.splitlines()
    assert f"reading {root}" in line
    monkeypatch.setenv("UNIFIER_CACHE", "off")
    assert content(encoded(AudioFolder(table))) == first
    assert len(read) == 24
    assert capsys.readouterr().out == ""


def test_another_fold_or_task_finds_the_same_sounds(table: Path, root: Path, read: list[str]) -> None:
    splits = [encoded(AudioFolder(table, fold=fold)) for fold in range(4)]
    assert kept.load_or_encode(AudioFolder(table, target="tags"), tokenizer()) is not None
    assert len(read) == 12
    assert len(list(root.iterdir())) == 1
    for fold, split in enumerate(splits):
        source = AudioFolder(table, fold=fold)
        assert content({"test": split["test"]}) == [
            (
                "test",
                k,
                True,
                torch.tensor("ab".index(example.target)).numpy().tobytes(),
                *raw(tokenizer().encode(example.input)),
            )
            for k, example in enumerate(source.split("test"))
        ]


def test_a_share_is_kept_by_itself(table: Path, root: Path, read: list[str]) -> None:
    half = content(encoded(Subset(AudioFolder(table), 0.5)))
    assert len(read) == 9
    assert content(encoded(Subset(AudioFolder(table), 0.5))) == half
    assert len(read) == 9
    assert len(content(encoded(AudioFolder(table)))) == 12


def test_random_numbers_do_not_tell_whether_units_were_kept(table: Path, root: Path) -> None:
    drawn: list[float] = []
    for _ in range(2):
        torch.manual_seed(0)
        encoded(AudioFolder(table))
        drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[1]


FRAMES: dict[str, Any] = {"rate": 8000, "window": 0.05, "hop": 0.02, "bands": 20, "normalize": "band"}
CHANGES = FRAMES | {"stack": 3, "patch": (4, 8), "stride": (2, 8), "length": 100}
"""Another value of each setting that `encode` or `fit` goes by."""
SAME: dict[str, Any] = {"dim": 16, "dropout": 0.5, "stem": "strided"}
"""Another value of each that it does not."""


def test_every_setting_is_known_to_change_the_key_or_not_to() -> None:
    settings = set(inspect.signature(FrameTokenizer.__init__).parameters) - {"self"}
    assert settings == {*CHANGES, *SAME, "positions"}


@pytest.mark.parametrize("name", CHANGES)
def test_another_setting_is_encoded_anew(table: Path, root: Path, read: list[str], name: str) -> None:
    others: dict[str, Any] = {"stride": {"patch": (4, 8), "stack": 1}, "patch": {"stack": 1}}.get(name, {})
    others |= {"positions": "learned"} if name == "length" else {}
    encoded(AudioFolder(table), tokenizer(**others))
    changed = encoded(AudioFolder(table), tokenizer(**others | {name: CHANGES[name]}))
    assert len(read) == 24
    one = AudioFolder(table).split("train")[0].input
    assert torch.equal(changed["train"].units(0).values, tokenizer(**others | {name: CHANGES[name]}).encode(one).values)


@pytest.mark.parametrize("name", SAME)
def test_a_setting_that_encoding_does_not_read_changes_nothing(
    table: Path, root: Path, read: list[str], name: str
) -> None:
    encoded(AudioFolder(table))
    fresh = tokenizer(**{name: SAME[name]})
    assert kept.load_or_encode(AudioFolder(table), fresh) is not None
    assert len(read) == 12


def test_a_changed_file_or_table_is_encoded_anew(table: Path, root: Path, read: list[str]) -> None:
    encoded(AudioFolder(table))
    soundfile.write(table.parent / "3.wav", np.zeros(RATE), RATE)
    read.clear()
    splits = encoded(AudioFolder(table))
    assert len(read) == 12
    assert content(splits) == content(encoded(AudioFolder(table)))
    table.write_text(table.read_text().replace("5.wav,b", "5.wav,a"))
    encoded(AudioFolder(table))
    assert len(read) == 24


def test_changed_code_or_another_library_is_encoded_anew(
    table: Path, root: Path, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.setattr(kept, "CODE", (code,))
    for k, change in enumerate(("a = 1", "a = 2")):
        (code / "reading.py").write_text(change)
        encoded(AudioFolder(table))
        assert len(read) == 12 * (k + 1)
    for k, changed in enumerate(("none of them", "pillow")):
        monkeypatch.setattr(kept, "version", partial(operator.eq, changed))
        encoded(AudioFolder(table))
        assert len(read) == 36 + 12 * k


PLUG_IN = """
import torch
from unifier_tokenizers import Tokenizer, Units


class Loudness(Tokenizer):
    def encode(self, raw):
        return Units(torch.tensor(raw.waveform)[None, :{length}], torch.arange({length})[None])

    def embed(self, values, positions):
        return values.expand(-1, self.dim, -1)

    {key}
"""


def test_a_strangers_tokenizer_is_kept_where_it_says_so_until_its_file_changes(
    table: Path, root: Path, read: list[str], tmp_path: Path
) -> None:
    def loaded(length: int, key: str) -> Tokenizer:
        file = tmp_path / "plug_in.py"
        file.write_text(PLUG_IN.format(length=length, key=key))
        spec = importlib.util.spec_from_file_location("plug_in", file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["plug_in"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Loudness(8)

    for k in (1, 2):  # says nothing: never kept
        encoded(AudioFolder(table), loaded(50, "pass"))
        assert len(read) == 12 * k
    key = "def encoding_key(self): return {}"
    for k, length in ((3, 50), (3, 50), (4, 51)):
        splits = encoded(AudioFolder(table), loaded(length, key))
        assert len(read) == 12 * k
        assert splits["train"].lengths()[:, 0].tolist() == [length] * 6


def damaged(entry: Path, how: str) -> None:
    values = entry / "values"
    content = values.read_bytes()
    match how:
        case "a byte":
            values.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        case "cut":
            values.write_bytes(content[:-4])
        case "gone":
            values.unlink()
        case "no seal":
            (entry / "seal").unlink()
        case "another's":
            (entry / "seal").write_text("0" * 64)
        case _:
            (entry / "index.json").write_text("{}")


@pytest.mark.parametrize("how", ["a byte", "cut", "gone", "no seal", "another's", "index"])
def test_damage_is_noticed_and_mended(
    table: Path, root: Path, read: list[str], how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = content(encoded(AudioFolder(table)))
    (entry,) = root.iterdir()
    damaged(entry, how)
    assert content(encoded(AudioFolder(table))) == first
    assert len(read) == 24
    assert f"{entry}: damaged" in capsys.readouterr().err
    assert content(encoded(AudioFolder(table))) == first
    assert len(read) == 24


def test_a_cache_that_cannot_be_written_is_said_and_done_without(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without = content(encoded(AudioFolder(table)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "file"))
    assert content(encoded(AudioFolder(table))) == without
    assert "not kept for later runs" in capsys.readouterr().err


def test_bad_examples_are_said_alike_with_and_without(
    table: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (table.parent / "1.wav").write_bytes(b"no sound")
    with pytest.raises(InputError, match=r"test: .*1\.wav cannot be read"):
        encoded(AudioFolder(table))
    assert not root.exists() or list(root.iterdir()) == []
    first, said = content(encoded(AudioFolder(table), bad_examples="skip")), capsys.readouterr().err
    assert "1 examples skipped, such as" in said
    assert content(encoded(AudioFolder(table), bad_examples="skip")) == first
    assert capsys.readouterr().err == said
    assert len(list(root.iterdir())) == 1


def test_a_sound_that_is_listed_twice_leaves_every_other_its_own_units(table: Path, root: Path) -> None:
    (table.parent / "link.wav").symlink_to("1.wav")
    table.write_text(table.read_text().replace("1.wav,b,0", "1.wav,b,0\nlink.wav,b,0"))
    for splits in (encoded(source := AudioFolder(table)), encoded(source)):
        for name, split in splits.items():
            for k, example in enumerate(source.split(name)):
                assert torch.equal(split.units(k).values, tokenizer().encode(example.input).values)


def test_a_sound_too_short_to_encode_is_left_out_of_the_statistics_too(table: Path, root: Path) -> None:
    for name in ("4.wav", "10.wav"):
        soundfile.write(table.parent / name, np.zeros(1), RATE)
    with pytest.raises(InputError, match=r"\d+\.wav: a sound of .* shorter than one window"):
        kept.fit_once(tokenizer(), AudioFolder(table))
    kept.fit_once(tokenizer(), AudioFolder(table), bad_examples="skip")
    for path in table.parent.glob("*.wav"):
        soundfile.write(path, np.zeros(1), RATE)
    with pytest.raises(InputError, match="none of its training examples can be read"):
        kept.fit_once(tokenizer(), AudioFolder(table), bad_examples="skip")


def test_a_label_outside_the_set_is_a_bad_example_with_kept_units_too(table: Path, root: Path) -> None:
    encoded(AudioFolder(table))
    units = kept.load_or_encode(AudioFolder(table), tokenizer())
    assert units is not None
    with pytest.raises(InputError, match=r"test: .*1\.wav: the label 'b' is outside"):
        units.split(AudioFolder(table).split("test"), ClassificationHead("ac", 8), desc="test")


def test_statistics_are_found_once(table: Path, root: Path, read: list[str]) -> None:
    fresh = tokenizer().fit(example.input for example in AudioFolder(table).split("train"))
    read.clear()
    for times in (1, 1):
        fitted = tokenizer()
        kept.fit_once(fitted, AudioFolder(table))
        assert len(read) == 6 * times
        assert torch.equal(fitted.normal.mean, fresh.normal.mean)
        assert torch.equal(fitted.normal.std, fresh.normal.std)
    for other, source in ((tokenizer(bands=20), AudioFolder(table)), (tokenizer(), AudioFolder(table, fold=2))):
        read.clear()
        kept.fit_once(other, source)
        assert len(read) == 6


def test_pictures_and_lists_are_left_as_they_were(root: Path) -> None:
    class Two:
        name = "two"
        labels = ("a", "b")
        sha256 = "0"

        def split(self, name: str) -> Sequence[Any]:
            return [(np.zeros((4, 4), np.uint8), "a")]

    assert PatchTokenizer(8, patch=2, channels=1).encoding_key() is None
    assert kept.load_or_encode(Two(), tokenizer()) is None  # pyright: ignore[reportArgumentType]
    assert not root.exists()
