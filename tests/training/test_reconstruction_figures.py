"""Reconstructed validation examples: hidden places, unchanged visible values, and a figure for pictures and sounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.datasets import Digits, SyntheticMusic
from unifier.experiment import Experiment, Task, Training
from unifier.options import MaskedPatchesConfig
from unifier.report.plot_reconstruction import Reconstruction
from unifier.training import reconstruction_figures
from unifier.training.lightning_module import UnifierModule
from unifier.training.reconstruction_figures import draw_reconstructions
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer, PatchTokenizer

D = 16
MUSIC = SyntheticMusic(train=3, val=3, test=3, seconds=1.0)
TASKS: dict[str, Task] = {
    "digits": MaskedPatchesConfig().build(Digits(), PatchTokenizer(D, patch=2, channels=1, class_token=True)),
    "frames": MaskedPatchesConfig(0.5).build(MUSIC, FrameTokenizer(D, sample_rate=8000, stack=4)),
    "patches": MaskedPatchesConfig().build(MUSIC, FrameTokenizer(D, sample_rate=8000, patch=(8, 16))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_visible_values_are_unchanged(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, task = list[Reconstruction](), TASKS[name]
    for function in ("draw_reconstructed_images", "draw_reconstructed_sounds"):
        original = getattr(reconstruction_figures, function)

        def draw(path: Path, examples: Sequence[Reconstruction], *rest: Any, original: Any = original) -> None:
            drawn.extend(examples)
            original(path, examples, *rest)

        monkeypatch.setattr(reconstruction_figures, function, draw)
    split, _ = encode_split(open_split(task.source, "val")[:3], task.tokenizer, task.head)
    model = UnifierModule(Experiment(Transformer(D, 1, 2, 16), {name: task}, Training(steps=1)))
    draw_reconstructions(model, {name: split}, tmp_path)
    assert len(drawn) == (3 if name == "digits" else 2)
    for example in drawn:
        hidden = np.isnan(example.visible)
        assert hidden.mean() == pytest.approx(0.5 if name == "frames" else 0.75, abs=0.07)
        assert np.array_equal(example.visible[~hidden], example.original[~hidden])
        assert np.array_equal(example.reconstructed[~hidden], example.original[~hidden])
        assert np.isfinite(example.reconstructed).all()
        assert not np.allclose(example.reconstructed[hidden], example.original[hidden])
    svg = ElementTree.parse(tmp_path / "figures" / f"reconstruction-{name}.svg").getroot()
    assert {"original", "visible", "reconstructed"} <= {text.strip() for text in svg.itertext()}
