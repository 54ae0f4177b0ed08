"""Strings of spoken digits: each head trains, and a trained decoder reads a sound."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile

import unifier as uf
from unifier.cli import main


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("head", ["ctc", "transformer"])
def test_each_head_reads_longer_strings_too(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for k, speaker in enumerate(uf.datasets.FSDDStrings.speakers):
        for digit in range(3):
            wave = np.sin(np.arange(1600) * (digit + 1 + k / 20) / 4)
            soundfile.write(folder / f"{digit}_{speaker}_7.wav", wave, 8000)
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    monkeypatch.setitem(uf.datasets.FSDDStrings.__init__.__kwdefaults__, "held_out", 30)  # pyright: ignore[reportArgumentType]
    settings = [f"head={head}", "train=8", "lengths=1,2", "longer=3,3", "dim=16", "depth=1", "heads=2", "ffn_dim=16"]
    settings += ["steps=2", "num_validations=1", "precision=float32"]
    assert main(["run", "speech_recognition", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    scores = json.loads((run / "result.json").read_text())["metrics"]
    assert all(not math.isnan(scores[f"test/fsdd_strings/error_rate{end}"]) for end in ("", "_longer"))
    assert len(uf.load(run).predict([folder / "0_theo_7.wav"])) == 1
    (tmp_path / "own.csv").write_text(f"file,label\n{folder / '0_theo_7.wav'},0\n{folder / '1_theo_7.wav'},112\n")
    assert main(["evaluate", str(run), str(tmp_path / "own.csv"), "--out", str(tmp_path / "scores")]) == 0
    if head == "ctc":
        assert main(["run", "speech_recognition", "stack=64", *settings, "--out", str(tmp_path / "no")]) == 2
        error = capsys.readouterr().err
        assert "symbols with" in error
        assert error.count("\n") == 1
    assert "error_rate_longer" in json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]
