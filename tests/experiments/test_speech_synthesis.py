"""The recipe of speech synthesis: a run with its report, sounds from texts, scores, and the reading of a recognizer."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import unifier as uf
from benchmarks.speech import compose_digits
from benchmarks.speech import main as measure
from tests.small_models import D, save_model
from unifier.cli import main
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead

SMALL = ["dim=16", "depth=1", "decoder_depth=1", "heads=2", "ffn_dim=16", "precision=float32", "max_seconds=0.4"]
FEW = ["train=8", "held_out=2", "lengths=1,2", "steps=2", "num_validations=1", "--track", "off", "--name", "r"]


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a tone for each digit and speaker, and return the folder."""
    folder = tmp_path / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for k, speaker in enumerate(uf.datasets.FSDDStrings.speakers):
        for digit in range(2):
            for take in (1, 7, 11):
                wave = 0.5 * np.sin(np.arange(800) * (digit + 1 + k / 20) / 9)
                soundfile.write(folder / f"{digit}_{speaker}_{take}.wav", wave, 8000)
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_run_speaks_texts_and_is_read_by_a_recognizer(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "speech_synthesis", *SMALL, *FEW, "--out", "runs"]) == 0
    run = tmp_path / "runs" / "speech_synthesis" / "r"
    page = (run / "report.html").read_text()
    assert page.count("<audio") == 4
    assert "spectrogram and alignment of &lt;" in page
    assert {path.name for path in (run / "figures").glob("attention-*")} >= {
        f"attention-fsdd_strings-{name}.svg" for name in ("0", "heads")
    }
    capsys.readouterr()

    assert main(["predict", str(run), "1 0 1", "--attention", "seen"]) == 0
    assert len([*(tmp_path / "seen").iterdir()]) == 2
    assert main(["predict", str(run), "1 0 1", "<theo> 1"]) == 0
    rows = [*csv.DictReader(capsys.readouterr().out.splitlines()[2:])]
    assert [row["input"] for row in rows] == ["1 0 1", "<theo> 1"]
    model = uf.load(run)
    head = model.tasks["fsdd_strings"].head
    assert isinstance(head, SpectrogramDecoderHead)
    for row, speech in zip(rows, model.predictions(["<george> 1 0 1", "<theo> 1"]), strict=True):
        samples, rate = soundfile.read(row["sound"])
        assert rate == 8000
        np.testing.assert_allclose(samples, np.asarray(head.to_sound(speech).waveform), atol=1e-3)
    for arguments, named in ((["3 xy"], "'x' 'y'"), (["<bob> 3"], "<bob>"), (["digits.txt"], "digits.txt")):
        assert main(["predict", str(run), *arguments, "--sounds", "none"]) == 2
        error = capsys.readouterr().err
        assert named in error
        assert error.count("\n") == 1
    assert not (tmp_path / "none").exists()

    page = (Path(__file__).parents[2] / "docs" / "guide" / "speech.md").read_text()
    for snippet in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(snippet.replace("runs/speech_synthesis/RUN", str(run)), known := dict[str, Any]())
        assert known["again" if "again" in known else "sound"].sample_rate == 8000

    table = ["text,label", "1,fsdd/recordings/1_george_7.wav", "<theo> 0,fsdd/recordings/0_theo_7.wav"]
    (tmp_path / "own.csv").write_text("\n".join(table))
    assert main(["evaluate", str(run), "own.csv", "--out", "scores"]) == 0
    assert json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]["mcd_sl"]["score"] > 0
    assert main(["export", str(run), "exported"]) == 0
    assert uf.load("exported").predict(["1"]) == model.predict(["1"])

    tokenizer = uf.FrameTokenizer(D, sample_rate=8000, stack=4)
    reader = save_model(tmp_path, digits=(tokenizer, uf.CTCHead("0123456789", D)))
    capsys.readouterr()
    assert measure([str(run), reader, "--strings", "6", "--lengths", "1", "2", "--out", "read"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1 + 6 + 2
    readings = json.loads((tmp_path / "read" / "readings.json").read_text())
    assert [text for text, _ in readings["generated speech"]["texts"]] == compose_digits(6, (1, 2), 1)
    assert len([*(tmp_path / "read").glob("*.wav")]) == 6
    for arguments in ([reader, str(run)], [str(run), str(run)], [str(run), reader, "--strings", "0"]):
        assert measure(arguments) == 2


def test_strings_of_digits_depend_on_the_seed() -> None:
    strings = compose_digits(50, (3, 7), 1)
    assert strings == compose_digits(50, (3, 7), 1) != compose_digits(50, (3, 7), 2)
    assert {len(text) for text in strings} == set(range(3, 8))
    assert {*"".join(strings)} == {*"0123456789"}
