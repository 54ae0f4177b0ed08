"""Vectors of inputs, their files, and probes on the vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unifier import ClassificationHead, PatchTokenizer, Transformer
from unifier.cli import main
from unifier.data.inputs import ImageReader
from unifier.inference.embed import probe_vectors, read_vectors
from unifier.inference.model import load
from unifier.models.folder import ModelTask, StoredModel, write_model
from unifier_tokenizers import InputError, Tokens, pad_columns

D = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    task = ModelTask(PatchTokenizer(D), ClassificationHead(["dark", "light"], D), ImageReader(size=8), longest=9)
    model = StoredModel("small", Transformer(D, 2, 2, D), {"task": task}, 256, {})
    write_model(tmp_path / "model", model, "card")
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write pictures of two classes with different sizes."""
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, low in (("dark", 0), ("light", 150)):
            for index in range(6):
                path = tmp_path / split / label / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                shape = (4 + 4 * (index % 2), 8, 3)
                Image.fromarray(generator.integers(low, low + 100, shape, np.uint8)).save(path)
    return tmp_path


def test_vector_is_the_mean_output_of_the_layer(folder: Path) -> None:
    model, picture = load(folder), np.random.default_rng(0).integers(0, 255, (8, 4, 3), np.uint8)
    task = model.tasks["task"]
    values, positions, mask = pad_columns([task.tokenizer.encode(picture)])
    tokens = Tokens(task.tokenizer.embed(values, positions), mask, positions)
    trunk = model.network.trunk
    assert isinstance(trunk, Transformer)
    with torch.no_grad():
        expected = tokens.matrix.mean(2)[0], trunk.blocks[0](tokens.matrix.mT, None).mean(1)[0]
    for layer, vector in zip(("columns", "blocks.0"), expected, strict=True):
        [[alone], beside] = ([*model.embed(raws, layer=layer)] for raws in ([picture], [picture[:4], picture]))
        torch.testing.assert_close(alone, vector)
        torch.testing.assert_close(beside[1], vector)
    with pytest.raises(InputError, match=r"blocks\.1"):
        model.embed([picture], layer="blocks.7")


@pytest.mark.parametrize("suffix", [".npy", pytest.param(".parquet", marks=pytest.mark.extras)])
def test_files_have_names_labels_and_vectors(suffix: str, folder: Path, pictures: Path) -> None:
    (pictures / "train.csv").write_text("mine")
    for split in ("train", "test"):
        out = pictures / f"{split}{suffix}"
        assert main(["embed", str(folder), str(pictures / split), "--out", str(out), "--layer", "columns"]) == 0
        vectors = read_vectors(out)
        assert vectors.labels == ["dark"] * 6 + ["light"] * 6
        assert vectors.names[0] == str(pictures / split / "dark" / "0.png")
        [expected] = load(folder).embed([vectors.names[7]], layer="columns")
        assert vectors.values[7] == pytest.approx(np.asarray(expected), rel=1e-5, abs=1e-6)
    assert (pictures / "train.csv").read_text() == "mine"
    for method in ("linear", "knn"):
        assert probe_vectors(pictures / f"train{suffix}", pictures / f"test{suffix}", method) == 100


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--out", "a.txt"], "a.txt"), (["--out", "no/a.npy"], "no/a.npy"), (["--layer", "x"], "'x'")],
)
def test_bad_options_are_refused(
    options: list[str], named: str, folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = ["embed", folder, pictures / "train", "--out", pictures / "a.npy", *options]
    assert main([*map(str, given)]) == 2
    assert named in capsys.readouterr().err
    assert not (pictures / "a.npy").exists()
