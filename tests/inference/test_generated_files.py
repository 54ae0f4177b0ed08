"""Generated pictures and tunes: kept parts, seeds, sampling against plain probabilities, and the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import unifier as uf
from unifier.cli import main
from unifier.data.inputs import AudioReader, ImageReader, MidiReader
from unifier.data.midi_files import read_midi, write_midi
from unifier.files import to_json
from unifier.heads.continuation import CachedTrunk, continue_sequences
from unifier.models.card import write_card
from unifier.models.folder import ModelTask, StoredModel, write_model
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import PianoRollTokenizer, PixelTokenizer, SampleTokenizer, VoiceTokenizer

TUNE = [[60, 64], [60], [], [62, 100]]


def make_task(kind: str) -> ModelTask:
    if kind == "pictures":
        head = uf.LanguageModelingHead(4, 16, unit="pixel", context=16)
        torch.nn.init.normal_(head.output.weight)
        return ModelTask(PixelTokenizer(16, side=4, grays=4), head, ImageReader(1), 16, objective=uf.NextToken())
    if kind == "sounds":
        head = uf.LanguageModelingHead(256, 16, unit="sample", context=16)
        torch.nn.init.normal_(head.output.weight)
        return ModelTask(SampleTokenizer(16), head, AudioReader(), 16, objective=uf.NextToken())
    if kind == "voices":
        writer = uf.LanguageModelingHead(89, 16, unit="note")
        torch.nn.init.normal_(writer.output.weight)
        return ModelTask(VoiceTokenizer(16, voices=2), writer, MidiReader(4, 2), 12, objective=uf.NextToken())
    head = uf.MultiLabelNextHead(88, 16, first_label=21)
    torch.nn.init.normal_(head.out.weight, std=0.3)
    return ModelTask(PianoRollTokenizer(16), head, MidiReader(1), 12, objective=uf.NextToken())


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_folder(kind: str, trunk: Trunk | None = None) -> str:
        torch.manual_seed(0)
        data = {"name": "t", "sha256": "0", **dict.fromkeys(("train", "val", "test"), 1), "skipped": {}}
        facts: dict[str, Any] = {
            name: {} for name in ("scores", "intervals", "parameters", "settings", "versions", "budget")
        }
        facts |= {"data": {kind: data}, "seed": 0, "lineage": {}}
        trunk = trunk or uf.Transformer(16, 2, 2, 32, rotary=True, attention_width=3, attention_stride=4)
        stored = StoredModel("made", trunk, {kind: make_task(kind)}, 64, to_json(facts))
        write_model(tmp_path / kind, stored, write_card(stored))
        return str(tmp_path / kind)

    return write_folder


def run(*arguments: object) -> int:
    return main(["generate", *map(str, arguments)])


@pytest.mark.slow
def test_pictures_keep_their_upper_rows(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, picture = write("pictures"), np.random.default_rng(0).integers(0, 4, (4, 4), np.uint8) * 85
    Image.fromarray(picture).save(tmp_path / "a.png")
    arguments = (model, tmp_path / "a.png", "--out", tmp_path / "out", "--count", 3, "--seed", 5)
    assert run(*arguments) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in paths] == ["a-seed5.png", "a-seed6.png", "a-seed7.png"]
    made = [np.asarray(Image.open(path)) for path in paths]
    assert all((each[:2] == picture[:2]).all() for each in made)
    assert len({each.tobytes() for each in made}) == 3
    assert run(model, tmp_path / "a.png", "--out", tmp_path / "one", "--seed", 6) == 0
    assert (tmp_path / "one" / "a-seed6.png").read_bytes() == paths[1].read_bytes()
    assert run(model, "--out", tmp_path / "free") == 0
    assert np.asarray(Image.open(tmp_path / "free" / "generated-seed0.png")).shape == (4, 4)


@pytest.mark.parametrize("kind", ["pictures", "tunes"])
def test_continuation_equals_uncached_greedy_choices(kind: str) -> None:
    torch.manual_seed(0)
    task, trunk = make_task(kind), uf.Transformer(16, 2, 2, 32, rotary=True, attention_width=3, attention_stride=4)
    raw = TUNE if kind == "tunes" else np.arange(0, 256, 16).astype(np.uint8).reshape(4, 4)
    units = task.tokenizer.encode(raw)
    output: Any = task.head.out if kind == "tunes" else lambda rows: rows @ task.head.output.weight.T  # pyright: ignore[reportAttributeAccessIssue]

    def choose(hidden: torch.Tensor) -> torch.Tensor:
        return output(hidden) > 0 if kind == "tunes" else output(hidden).argmax(-1)

    network = uf.Network(trunk, {"t": task}).eval()
    with torch.no_grad():
        cached = CachedTrunk(task.tokenizer, trunk, 17, units.positions if kind == "pictures" else None)
        values = continue_sequences(cached, units.values[None, ..., :3], 9, choose)
        positions = cached.positions[None, :, :12]
        batch = uf.Batch(values, positions, torch.ones(1, 12, dtype=torch.bool), torch.zeros(1), torch.zeros(1))
        matrix = network.forward_features("t", batch).matrix
    assert torch.equal(
        values[..., 3:].long(),
        choose(matrix.mT).long().mT[..., 2:11] if kind == "tunes" else choose(matrix.mT)[:, 2:11],
    )


def test_notes_are_drawn_with_their_probabilities() -> None:
    head, hidden = make_task("tunes").head, torch.randn(1, 16).expand(4000, -1)
    assert isinstance(head, uf.MultiLabelNextHead)
    generators = [torch.Generator().manual_seed(k) for k in range(4000)]
    for temperature in (1.0, 0.5):
        drawn = head.sample(hidden, generators, temperature=temperature).float().mean(0)
        torch.testing.assert_close(drawn, (head.out(hidden[:1])[0] / temperature).sigmoid(), atol=0.04, rtol=0)
    greedy = head.sample(hidden[:1], generators[:1], temperature=1e-40)[0]
    assert torch.equal(greedy, head.out(hidden[0]) > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rate"), [("tunes", 1), ("voices", 4)])
def test_tune_is_written_as_midi_and_as_sound(write: Any, tmp_path: Path, kind: str, rate: int) -> None:
    write_midi(tmp_path / "a.mid", TUNE, rate)
    arguments = (write(kind), tmp_path / "a.mid", "--tokens", 20, "--temperature", 0.6, "--out", tmp_path)
    assert run(*arguments) == 0
    steps = read_midi(tmp_path / "a-seed0.mid", rate)
    assert steps[:4] == TUNE
    assert 20 <= len(steps) <= 24
    sound = soundfile.info(str(tmp_path / "a-seed0.wav"))
    assert sound.duration == pytest.approx(24 * 0.5 / rate, abs=0.1)
    before = (tmp_path / "a-seed0.mid").read_bytes()
    assert run(*arguments) == 0
    assert (tmp_path / "a-seed0.mid").read_bytes() == before


@pytest.mark.slow
def test_sound_is_continued(write: Any, tmp_path: Path) -> None:
    codes = torch.arange(60, 190, 10)
    given = np.asarray(SampleTokenizer(16).to_sound(codes).waveform)
    soundfile.write(tmp_path / "a.wav", given, 8000, subtype="FLOAT")
    arguments = (write("sounds"), tmp_path / "a.wav", "--tokens", 40, "--top-k", 9, "--out", tmp_path)
    assert run(*arguments) == 0
    samples, rate = soundfile.read(tmp_path / "a-seed0.wav", dtype="float32")
    assert (len(samples), rate) == (len(codes) + 40, 8000)
    assert np.abs(samples[: len(codes)] - given).max() < 2**-14
    assert run(write("sounds"), "--tokens", 5, "--out", tmp_path) == 0
    assert soundfile.info(str(tmp_path / "generated-seed0.wav")).frames == 5


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("tunes", ["missing.mid"], "missing.mid"),
        ("tunes", [__file__], "MIDI"),
        ("tunes", ["--top-k", "3"], "top_k"),
        ("voices", ["chord.mid"], "3 notes sound in step 0, but 2 voices"),
        ("tunes", ["--temperature", "0"], "temperature"),
        ("tunes", ["--count", "0"], "count=0"),
        ("sounds", [__file__], "test_generated_files"),
        ("pictures", [__file__], "test_generated_files"),
        ("pictures", ["--tokens", "3"], "tokens=3"),
        ("pictures", ["--keep", "1"], "keep=1"),
        ("pictures", ["--top-k", "0"], "top_k=0"),
        ("pictures", ["--out", __file__], "is a file"),
    ],
)
def test_unusable_input_is_named_in_a_line(
    write: Any, tmp_path: Path, kind: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_midi(tmp_path / "chord.mid", [[60, 64, 67]], 4)
    arguments = [str(tmp_path / each) if each == "chord.mid" else each for each in arguments]
    out = [] if "--out" in arguments else ["--out", tmp_path / "out"]
    assert run(write(kind), *arguments, *out) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_commands_read_pictures_and_midi_files(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.arange(0, 256, 4).astype(np.uint8).reshape(8, 8)).save(tmp_path / "a.png")
    write_midi(tmp_path / "a.mid", TUNE, 1)
    for kind, name, answer in (
        ("pictures", "a.png", "nats per pixel"),
        ("tunes", "a.mid", "input,next"),
        ("voices", "a.mid", "nats per note"),
    ):
        model, path = write(kind), str(tmp_path / name)
        for command in ("predict", "embed", "evaluate"):
            out = [] if command == "predict" else ["--out", str(tmp_path / f"{command}-{kind}.npy")]
            assert main([command, model, path, *out]) == 0, command
        printed = capsys.readouterr().out
        assert answer in printed
        assert "next: pixel" not in printed
        assert "lower is better" in printed
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.mid").write_bytes(b"MThd")
    write_midi(tmp_path / "folder" / "c.mid", TUNE, 1)
    assert main(["predict", write("tunes"), str(tmp_path / "folder")]) == 2
    assert main(["predict", write("tunes"), str(tmp_path / "folder"), "--bad-inputs", "skip"]) == 0
    assert "skipped 1 of 2" in capsys.readouterr().err


def test_other_trunk_is_refused(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write("tunes", uf.create_trunk("gru", 16, 1)), "--out", tmp_path / "out") == 2
    assert "RecurrentTrunk" in capsys.readouterr().err
