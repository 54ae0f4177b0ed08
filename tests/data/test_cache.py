"""The cache returns identical encodings, but none that was made from other files, settings or code."""

import importlib.util
import inspect
import operator
import os
import pwd
import resource
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from unifier.data import cache
from unifier.data.dataset import Examples, Subset
from unifier.data.encoding import EncodedSplit
from unifier.data.prepare import prepare_task
from unifier.data.source import Example, SplitName, data_folder
from unifier.datasets.audio_folder import AudioFolder
from unifier.heads.classification import ClassificationHead
from unifier_tokenizers import Audio, FrameTokenizer, InputError, PatchTokenizer, Tokenizer, Units

RATE = 4000

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def root(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "encoded"


@pytest.fixture
def table(tmp_path: Path, root: Path) -> Path:
    """Write a table of twelve sounds of different lengths in four folds, to be cached under `root`."""
    lines = ["file,label,fold"]
    for k in range(12):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-0.5, 0.5, RATE // 4 + 37 * k), RATE)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{k // 3}")
    (tmp_path / "sounds.csv").write_text("\n".join(lines))
    return tmp_path / "sounds.csv"


class Disk:
    """A disk that logs which sounds are read, and on which some cannot be read."""

    def __init__(self) -> None:
        self.log, self.broken, self._open = list[str](), set[str](), soundfile.SoundFile

    def __call__(self, file: Path, *args: Any, **options: Any) -> soundfile.SoundFile:
        if Path(file).name in self.broken:
            raise OSError("the disk is gone")
        self.log.append(Path(file).name)
        return self._open(file, *args, **options)

    def new_reads(self) -> list[str]:
        """Return the names of the sounds read since the last call."""
        names, self.log = self.log, []
        return names


@pytest.fixture
def disk(monkeypatch: Patch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(soundfile, "SoundFile", disk)
    return disk


def tokenizer(**settings: Any) -> FrameTokenizer:
    usual: dict[str, Any] = {"dim": 8, "sample_rate": RATE, "n_mels": 16, "stack": 2}
    return FrameTokenizer(**usual | settings)


def encode(source: Any, tokens: Tokenizer | None = None, **options: Any) -> Mapping[SplitName, EncodedSplit]:
    options = {"bad_examples": "stop", "num_workers": 0} | options
    return prepare_task(source, tokens or tokenizer(), ClassificationHead(source.labels, 8), **options).splits


def unit_bytes(units: Units) -> list[Any]:
    return [(part.dtype, part.shape, part.numpy().tobytes()) for part in units]


def content(splits: Mapping[SplitName, EncodedSplit]) -> list[Any]:
    return [
        (name, int(split.indices[k]), split.scalar_targets, split.target(k).item(), *unit_bytes(split.units(k)))
        for name, split in splits.items()
        for k in range(len(split))
    ]


def test_interrupted_write_leaves_nothing(root: Path) -> None:
    def interrupt() -> None:
        with cache.open_for_write(root, "key") as folder:
            (folder / "values").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert list(root.iterdir()) == []
    assert cache.lookup(root, "key") is None


def test_draft_of_a_killed_process_is_removed(root: Path) -> None:
    (root / f"{cache.DRAFT_PREFIX}killed").mkdir(parents=True)
    with cache.open_for_write(root, "key"):
        pass
    assert list(root.iterdir()) == [cache.lookup(root, "key")]


def test_concurrent_writes_store_one_entry(root: Path) -> None:
    with cache.open_for_write(root, "key") as first, cache.open_for_write(root, "key") as second:
        (first / "values").write_text("one")
        (second / "values").write_text("one")
    (entry,) = root.iterdir()
    assert cache.lookup(root, "key") == entry
    assert cache.lookup(root, "other") is None


def test_eviction_deletes_least_recently_used(root: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 2500)
    for time, key in enumerate("abc"):
        with cache.open_for_write(root, key) as folder:
            (folder / "values").write_bytes(bytes(1000))
            (folder / key).touch()
        (written,) = (entry for entry in root.iterdir() if (entry / key).exists())
        os.utime(written, (time, time))
        if key == "b":
            cache.lookup(root, "a")  # This use makes "b" the oldest entry.
    assert [cache.lookup(root, key) is not None for key in "abc"] == [True, False, True]
    with cache.open_for_write(root, "large") as folder:
        (folder / "values").write_bytes(bytes(9000))
    assert list(root.iterdir()) == [cache.lookup(root, "large")]


def test_eviction_keeps_recent_drafts(root: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 500)
    abandoned = root / f"{cache.DRAFT_PREFIX}abandoned"
    with cache.open_for_write(root, "slow") as slow:
        (slow / "values").write_bytes(bytes(1000))
        with cache.open_for_write(root, "quick") as quick:
            abandoned.mkdir()
            os.utime(abandoned, (1, 1))
            (quick / "values").write_bytes(bytes(1000))
        assert not abandoned.exists()
    assert cache.lookup(root, "slow") is not None


def test_entry_is_readable_by_other_users(root: Path) -> None:
    before = os.umask(0o022)
    try:
        with cache.open_for_write(root, "key"):
            pass
    finally:
        os.umask(before)
    (entry,) = root.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o755


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: Patch) -> None:
    assert cache.cache_folder() is None  # The tests' conftest.py turns the cache off.
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "encoded"
    monkeypatch.delenv("UNIFIER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.cache_folder() == Path.home() / ".cache" / "unifier" / "encoded"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "unifier" / "encoded"


def test_user_without_home_needs_a_data_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "UNIFIER_CACHE", "UNIFIER_DATA"):
        monkeypatch.delenv(name, raising=False)
    assert cache.cache_folder() is None
    with pytest.raises(InputError, match=r"multi30k: .*--data.*XDG_CACHE_HOME"):
        data_folder("multi30k")
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    assert data_folder("multi30k") == tmp_path / "multi30k"


def test_second_run_reads_no_sound(table: Path, root: Path, disk: Disk, monkeypatch: Patch, capsys: Capture) -> None:
    def run() -> tuple[list[Any], int, str]:
        torch.manual_seed(0)
        return (
            [content(encode(AudioFolder(table))), torch.rand(()).item()],
            len(disk.new_reads()),
            capsys.readouterr().out,
        )

    first, reads, printed = run()
    assert (reads, str(root) in printed) == (12, True)
    second, reads, printed = run()
    assert (second, reads, printed.count("\n"), str(root) in printed) == (first, 0, 1, True)
    monkeypatch.setenv("UNIFIER_CACHE", "off")
    assert run() == (first, 12, "")


def test_folds_and_targets_share_one_entry(table: Path, root: Path, disk: Disk) -> None:
    splits = [encode(AudioFolder(table, fold=fold)) for fold in range(4)]
    assert cache.load_or_encode(AudioFolder(table, target="tags"), tokenizer()) is not None
    assert (len(disk.new_reads()), len(list(root.iterdir()))) == (12, 1)
    for fold, split in enumerate(splits):
        assert content({"test": split["test"]}) == [
            ("test", k, True, "ab".index(example.target), *unit_bytes(tokenizer().encode(example.input)))
            for k, example in enumerate(AudioFolder(table, fold=fold).split("test"))
        ]


def test_subset_has_its_own_entry(table: Path, disk: Disk) -> None:
    for source, reads in ((Subset(AudioFolder(table), 0.5), 9), (Subset(AudioFolder(table), 0.5), 0)):
        encode(source)
        assert len(set(disk.new_reads())) == reads
    encode(AudioFolder(table))
    assert len(disk.new_reads()) == 12


CHANGES: dict[str, Any] = {
    **{"sample_rate": 8000, "win_length": 0.05, "hop_length": 0.02, "n_mels": 20, "normalize": "band"},
    **{"stack": 3, "patch": (4, 8), "stride": (2, 8), "length": 100},
}
"""Another value of each setting that `encode` or `fit` depends on."""
NO_CHANGES: dict[str, Any] = {"dim": 16, "dropout": 0.5, "stem": "strided"}
"""Another value of each setting that they do not depend on."""


def test_setting_of_embed_keeps_the_entry(table: Path, disk: Disk) -> None:
    settings = set(inspect.signature(FrameTokenizer.__init__).parameters) - {"self"}
    assert settings == {*CHANGES, *NO_CHANGES, "positions"}, "every setting is classified"
    encode(AudioFolder(table))
    for name, value in NO_CHANGES.items():
        assert cache.load_or_encode(AudioFolder(table), tokenizer(**{name: value})) is not None
    assert len(disk.new_reads()) == 12


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_changed_setting_encodes_again(table: Path, disk: Disk, name: str) -> None:
    settings: dict[str, Any] = {"stride": {"patch": (4, 8), "stack": 1}, "patch": {"stack": 1}}.get(name, {})
    settings |= {"positions": "learned"} if name == "length" else {}
    encode(AudioFolder(table), tokenizer(**settings))
    changed = tokenizer(**settings | {name: CHANGES[name]})
    splits = encode(AudioFolder(table), changed)
    assert len(disk.new_reads()) == 24
    waveform = AudioFolder(table).split("train")[0].input
    assert torch.equal(splits["train"].units(0).values, changed.encode(waveform).values)


def test_changed_file_or_table_encodes_again(table: Path, disk: Disk) -> None:
    encode(AudioFolder(table))
    soundfile.write(table.parent / "3.wav", np.zeros(RATE), RATE)
    disk.new_reads()
    splits = encode(AudioFolder(table))
    assert len(disk.new_reads()) == 12
    assert content(splits) == content(encode(AudioFolder(table)))
    table.write_text(table.read_text().replace("5.wav,b", "5.wav,a"))
    encode(AudioFolder(table))
    assert len(disk.new_reads()) == 12


def test_changed_code_or_library_encodes_again(table: Path, disk: Disk, tmp_path: Path, monkeypatch: Patch) -> None:
    code = tmp_path / "code" / "reading.py"
    code.parent.mkdir()
    monkeypatch.setattr(cache, "CODE_FOLDERS", (code.parent,))
    for text, library in (("a = 1", None), ("a = 2", None), ("a = 2", "none of them"), ("a = 2", "pillow")):
        code.write_text(text)
        if library is not None:
            monkeypatch.setattr(cache, "version", partial(operator.eq, library))
        encode(AudioFolder(table))
        assert len(disk.new_reads()) == 12


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


def test_plug_in_tokenizer_with_key_is_cached(table: Path, disk: Disk, tmp_path: Path) -> None:
    def load(length: int, key: str) -> Tokenizer:
        file = tmp_path / "plug_in.py"
        file.write_text(PLUG_IN.format(length=length, key=key))
        spec: Any = importlib.util.spec_from_file_location("plug_in", file)
        module = sys.modules["plug_in"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Loudness(8)

    key = "def encoding_key(self): return {}"
    for length, method, reads in ((50, "pass", 12), (50, "pass", 12), (50, key, 12), (50, key, 0), (51, key, 12)):
        splits = encode(AudioFolder(table), load(length, method))  # Without a key nothing is cached.
        assert len(disk.new_reads()) == reads
        assert splits["train"].lengths()[:, 0].tolist() == [length] * 6


DAMAGE: dict[str, Callable[[Path], object]] = {
    "changed byte": lambda entry: (entry / "values").write_bytes(b"\1" + (entry / "values").read_bytes()[1:]),
    "truncated": lambda entry: (entry / "values").write_bytes((entry / "values").read_bytes()[:-4]),
    "missing": lambda entry: (entry / "values").unlink(),
    "no seal": lambda entry: (entry / "seal").unlink(),
    "other seal": lambda entry: (entry / "seal").write_text("0" * 64),
    "index": lambda entry: (entry / "index.json").write_text("{}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_entry_is_rebuilt(table: Path, root: Path, disk: Disk, kind: str, capsys: Capture) -> None:
    first = content(encode(AudioFolder(table)))
    (entry,) = root.iterdir()
    DAMAGE[kind](entry)
    disk.new_reads()
    assert content(encode(AudioFolder(table))) == first
    assert len(disk.new_reads()) == 12
    assert f"{entry}: damaged" in capsys.readouterr().err
    assert content(encode(AudioFolder(table))) == first
    assert disk.new_reads() == []


def test_unwritable_cache_is_reported(table: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    expected = content(encode(AudioFolder(table)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "file"))
    assert content(encode(AudioFolder(table))) == expected
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_bad_example_is_reported_at_every_run(table: Path, root: Path, disk: Disk, capsys: Capture) -> None:
    (table.parent / "1.wav").write_bytes(b"RIFF, but no sound")
    with pytest.raises(InputError, match=r"test: .*1\.wav.*bad_examples=skip"):
        encode(AudioFolder(table))
    assert not root.exists() or list(root.iterdir()) == []
    first, message = encode(AudioFolder(table), bad_examples="skip"), capsys.readouterr().err
    assert first["test"].indices.tolist() == [0, 2]
    assert "1 examples skipped" in message
    assert "1.wav" in message
    disk.new_reads()
    assert content(encode(AudioFolder(table), bad_examples="skip")) == content(first)
    assert (disk.new_reads(), capsys.readouterr().err, len(list(root.iterdir()))) == (["1.wav"], message, 1)
    with pytest.raises(InputError, match=r"test: .*1\.wav.*bad_examples=skip"):
        encode(AudioFolder(table))


def test_recovered_example_is_encoded(table: Path, disk: Disk) -> None:
    disk.broken.add("1.wav")
    assert encode(AudioFolder(table), bad_examples="skip")["test"].indices.tolist() == [0, 2]
    disk.broken.clear()
    disk.new_reads()
    for reads in (1 + 12, 0):
        assert encode(AudioFolder(table), bad_examples="skip")["test"].indices.tolist() == [0, 1, 2]
        assert len(disk.new_reads()) == reads


def test_sound_listed_twice_moves_no_other_units(table: Path) -> None:
    (table.parent / "link.wav").symlink_to("1.wav")
    table.write_text(table.read_text().replace("1.wav,b,0", "1.wav,b,0\nlink.wav,b,0"))
    for splits in (encode(source := AudioFolder(table)), encode(source)):
        for name, split in splits.items():
            for k, example in enumerate(source.split(name)):
                assert torch.equal(split.units(k).values, tokenizer().encode(example.input).values)


def test_objective_refuses_cached_inputs_too(table: Path) -> None:
    def check(units: Units) -> None:
        if units.values.shape[-1] <= shortest:
            raise InputError("the sound is too short")

    shortest = encode(AudioFolder(table))["test"].units(0).values.shape[-1]
    parts: Any = (AudioFolder(table), tokenizer(), ClassificationHead("ab", 8), SimpleNamespace(check=check))
    with pytest.raises(InputError, match=r"0\.wav: the sound is too short"):
        prepare_task(*parts, bad_examples="stop", num_workers=0)
    splits = prepare_task(*parts, bad_examples="skip", num_workers=0).splits
    assert splits["test"].indices.tolist() == [1, 2]


def test_unknown_label_of_a_cached_set_is_named(table: Path) -> None:
    encode(AudioFolder(table))
    cached = cache.load_or_encode(AudioFolder(table), tokenizer())
    assert cached is not None
    with pytest.raises(InputError, match=r"test: .*1\.wav: .*'b'"):
        cached.split(AudioFolder(table).split("test"), ClassificationHead("ac", 8), desc="test")


def test_sources_without_key_are_not_cached(root: Path) -> None:
    example = (np.zeros((4, 4), np.uint8), "a")
    source: Any = SimpleNamespace(name="two", labels=("a", "b"), sha256="0", split=lambda _: [example])
    assert PatchTokenizer(8, patch=2, channels=1).encoding_key() is None
    assert cache.load_or_encode(source, tokenizer()) is None
    assert not root.exists()


def test_statistics_are_computed_once(table: Path, disk: Disk) -> None:
    expected = tokenizer().fit(example.input for example in AudioFolder(table).split("train"))
    disk.new_reads()
    for reads in (6, 0):
        fitted = tokenizer()
        cache.fit_once(fitted, AudioFolder(table))
        assert len(disk.new_reads()) == reads
        assert torch.equal(fitted.norm.mean, expected.norm.mean)
        assert torch.equal(fitted.norm.std, expected.norm.std)
    for other, source in ((tokenizer(n_mels=20), AudioFolder(table)), (tokenizer(), AudioFolder(table, fold=2))):
        cache.fit_once(other, source)
        assert len(disk.new_reads()) == 6


def test_statistics_are_computed_again_if_their_entry_is_deleted_meanwhile(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.fit_once(expected := tokenizer(), AudioFolder(table))
    monkeypatch.setattr(cache, "lookup", lambda *_: tmp_path / "deleted")
    cache.fit_once(fitted := tokenizer(), AudioFolder(table))
    assert torch.equal(fitted.norm.mean, expected.norm.mean)


def test_statistics_leave_out_too_short_sounds(table: Path) -> None:
    for name in ("4.wav", "10.wav"):
        soundfile.write(table.parent / name, np.zeros(1), RATE)
    with pytest.raises(InputError, match=r"\d+\.wav: a sound of"):
        cache.fit_once(tokenizer(), AudioFolder(table))
    cache.fit_once(tokenizer(), AudioFolder(table), bad_examples="skip")
    for path in table.parent.glob("*.wav"):
        soundfile.write(path, np.zeros(1), RATE)
    with pytest.raises(InputError, match="none of its training examples"):
        cache.fit_once(tokenizer(), AudioFolder(table), bad_examples="skip")


def test_statistics_are_not_stored_on_a_full_disk(table: Path, root: Path) -> None:
    fitted = tokenizer()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))  # bytes per file
    try:
        cache.fit_once(fitted, AudioFolder(table))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fitted.norm.mean.any()
    assert list(root.iterdir()) == []


def test_statistics_keep_two_sounds_in_memory() -> None:
    waveforms, alive = list[weakref.ref[Any]](), list[int]()

    def read(index: int) -> Example:
        alive.append(sum(waveform() is not None for waveform in waveforms))
        waveform = np.random.default_rng(index).standard_normal(800).astype(np.float32) / 10
        waveforms.append(weakref.ref(waveform))
        return Example(Audio(waveform, 8000), None)

    source: Any = SimpleNamespace(name="sounds", split=lambda _: Examples(range(6), read, str))
    fitted, expected = (FrameTokenizer(8, sample_rate=8000) for _ in range(2))
    cache.fit_once(fitted, source)
    assert len(alive) == 6
    assert max(alive) <= 2  # the first sound and the previous one
    expected.fit([read(index).input for index in range(6)])
    assert all(map(torch.equal, fitted.norm.buffers(), expected.norm.buffers()))
