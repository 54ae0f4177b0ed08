"""Pretraining on pictures and sounds, and the start of a classifier from the trained model."""

import json
import math
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file

import unifier as uf
from tests.datasets.test_multi30k import multi30k
from tests.experiments.test_recipes import build, only_task
from unifier.cli import main
from unifier.config import load_experiment
from unifier.data.dataloader import TrainDataLoader
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.data.source import example_of
from unifier.datasets import Digits, modality_of
from unifier.datasets.protein_ss import PARTS
from unifier.inference import inspect

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16, "steps": 2, "num_validations": 1}


def test_modality_follows_from_the_data(tmp_path: Path) -> None:
    names = {"movie_reviews": "text", "cifar10_jpg": "image", "embedded": "image", "emotify": "audio"}
    paths = {str(tmp_path): "image", str(tmp_path / "sounds.csv"): "audio", str(tmp_path / "notes.txt"): "text"}
    assert {data: modality_of(data) for data in names | paths} == names | paths


def test_settings_of_another_modality_are_refused() -> None:
    for setting in ({"vocabulary": 300}, {"sound.patch": (16, 16)}):
        with pytest.raises(uf.InputError, match=r"data=embedded: the settings of (text|sound)"):
            build("pretrain", data="embedded", **SMALL, **setting)
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(uf.InputError, match=f"hidden_patches={share}"):
            build("pretrain", data="embedded", hidden_patches=share, **SMALL)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_translator_of_few_pairs_starts_from_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multi30k(tmp_path / "multi30k")
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    options: dict[str, Any] = SMALL | {"data": "multi30k", "vocabulary": 300, "out": tmp_path / "runs", "track": "off"}
    [trained] = uf.run(load_experiment("pretrain"), objective="spans", languages=("en", "de"), **options)
    pairs: dict[str, Any] = {"target": "de", "examples": 5, "decoder_depth": 1, "r_drop": 0.0, "beam_width": 1}
    plain: dict[str, Any] = {"qk_norm": False, "scaled_residual_init": False, "start": str(trained.folder)}
    [tuned] = uf.run(load_experiment("translation"), **options, **pairs, **plain)
    assert (tuned.lineage["tokenizers"], tuned.lineage["heads"]) == (["en-de"], ["en-de"])
    for recipe, settings in (
        ("translation", {"examples": 13, "data": "multi30k"}),
        ("pretrain", {"languages": ("en",), "data": "embedded"}),
        ("pretrain", {"languages": ("en",), "data": "movie_reviews"}),
    ):
        with pytest.raises(uf.InputError, match=r"examples=13|languages=en"):
            build(recipe, **SMALL, **settings)


def test_number_of_pairs_is_drawn_in_each_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multi30k(tmp_path / "multi30k")
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    settings: dict[str, Any] = {"data": "multi30k", "source": "en", "target": "de,fr", "examples": 4, "vocabulary": 300}
    train = only_task(build("translation", **SMALL, **settings)).source.split("train")
    texts = [str(example_of(train[k]).input).partition(" ")[2] for k in range(len(train))]
    assert texts[:4] == texts[4:] != [f"train.en.gz {k}" for k in range(4)]


def test_subset_of_labels_has_the_given_size() -> None:
    source = only_task(build("pictures", examples=100, **SMALL)).source
    assert (len(source.split("train")), len(source.split("val"))) == (100, 200)
    for examples in (0, 10**6):
        with pytest.raises(uf.InputError, match=f"examples={examples}"):
            build("pictures", examples=examples, **SMALL)


@pytest.mark.slow
def test_frames_of_sounds_are_hidden(tmp_path: Path) -> None:
    rows = ["file,label"]
    for k in range(12):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-0.5, 0.5, 4000 + 400 * k), 8000)
        rows.append(f"{k}.wav,{'ab'[k % 2]}")
    (tmp_path / "sounds.csv").write_text("\n".join(rows))
    settings = {"data": str(tmp_path / "sounds.csv"), "sample_rate": 8000, "stack": 2, **SMALL}
    task = only_task(build("pretrain", **settings))
    assert isinstance(task.objective, uf.MaskedPatches)
    split, _ = encode_split(open_split(task.source, "train"), task.tokenizer, task.head, check=task.objective.check)
    loader = TrainDataLoader({"a": split}, max_tokens=64, seed=0, budget={"steps": 3}, objectives={"a": task.objective})
    for _, batch in loader:
        loss = task.head.loss(batch.embed(task.tokenizer), batch.target)
        assert loss.isfinite()
    for wrong in ({"tokenizer": "waveform"}, {"sound.stem": "strided"}):
        with pytest.raises(uf.InputError, match=r"WaveformTokenizer|stem"):
            build("pretrain", **settings, **wrong)


@pytest.mark.slow
def test_classifier_starts_from_hidden_patches(
    tmp_path: Path, undrawn: object, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"out": tmp_path, "track": "off"}
    [trained] = uf.run(load_experiment("pretrain"), data="embedded", **{"image.patch": 2}, **SMALL, **options)
    assert set(trained.metrics) >= {f"test/digits/{metric}" for metric in ("r2", "mse")}
    assert (trained.folder / "figures" / "reconstruction-digits.svg").exists()
    assert "Reconstruction of hidden patches" in (trained.folder / "report.html").read_text()
    run = str(trained.folder)
    card = (trained.folder / "model" / "README.md").read_text()
    assert "pipeline_tag: image-feature-extraction" in card
    assert "model.embed(" in card
    [tuned] = uf.run(
        load_experiment("pictures"),
        start=run,
        examples=50,
        patch=2,
        stem=None,
        positions="sinusoid",
        **SMALL,
        **options,
    )
    assert tuned.lineage["tokenizers"] == ["digits"]
    assert tuned.lineage["pretraining"]["tokens"] == trained.budget["tokens"]
    # Every command works for the new head, or refuses in one line.
    picture = tmp_path / "a.png"
    Image.new("L", (8, 8), 9).save(picture)
    assert main(["predict", run, str(picture)]) == 2
    assert "start=RUN" in capsys.readouterr().err
    assert main(["embed", run, str(picture), "--out", str(tmp_path / "vectors.npy")]) == 0
    assert main(["evaluate", run, str(tmp_path), "--out", str(tmp_path / "scores")]) == 0
    assert {"r2", "mse"} <= json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"].keys()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_forecasts_start_from_hidden_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "los_speed").mkdir()
    speeds = [f"{50 + 10 * math.sin(k / 8) + k % 3:.2f}" for k in range(2016)]
    (tmp_path / "los_speed" / "los_speed.csv").write_text("\n".join(["a", *speeds]))
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    settings: dict[str, Any] = SMALL | {"data": "los_speed", "context": 24, "out": tmp_path, "track": "off"}
    hidden: dict[str, Any] = {"series.patch": 6, "series.stride": 6}
    [trained] = uf.run(load_experiment("pretrain"), **settings, **hidden)
    assert trained.metrics.keys() >= {f"test/los_speed/{metric}" for metric in ("r2", "mse")}
    start: dict[str, Any] = {
        "start": str(trained.folder),
        "positions": "sinusoid",
        "patch": 6,
        "stride": 6,
        "horizon": 4,
    }
    [tuned] = uf.run(load_experiment("forecasting"), **settings, **start)
    assert tuned.lineage["tokenizers"] == ["los_speed"]
    for result, kind in ((trained, "reconstruction"), (tuned, "forecast")):
        figure = f"figures/{kind}-los_speed.svg"
        assert (result.folder / figure).exists()
        assert figure in json.loads((result.folder / "hashes.json").read_text())
        assert f"{kind}s, los_speed" in (result.folder / "report.html").read_text()
    for horizon, message in ((0, "horizon=0"), (500, "horizon=500")):
        with pytest.raises(uf.InputError, match=message):
            build("forecasting", data="los_speed", horizon=horizon, **SMALL).tasks["los_speed"].source.split("test")


@pytest.mark.slow
def test_show_counts_visible_tokens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MAX_MEASURE_SECONDS", math.inf)
    small = ["dim=16", "depth=1", "batch_tokens=40", "epochs=2"]  # A picture has 16 patches, and 4 are visible.
    assert main(["show", "pretrain", "data=embedded", "image.patch=2", *small]) == 0
    steps = math.ceil(2 * len(Digits().split("train")) / 10)
    assert f" {steps} steps of" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_residue_labels_start_from_hidden_residues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"sequences": "", "sampled": "", "mask": ""}
    for k, part in enumerate([*PARTS] * 3):
        residues = "ACDEFGHIKL"[k % 3 :] * 3
        files["sequences"] += f">{k}\n{residues}\n"
        files["sampled"] += f">{k} {part}\n{('CEH' * 10)[: len(residues)]}\n"
        files["mask"] += f">{k}\n{'1' * len(residues)}\n"
    (tmp_path / "protein_ss").mkdir()
    with ZipFile(tmp_path / "protein_ss" / "splits.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(f"splits/{name}.fasta", text)
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    settings: dict[str, Any] = SMALL | {"data": "protein_ss", "positions": "rotary", "out": tmp_path, "track": "off"}
    [trained] = uf.run(load_experiment("pretrain"), **settings)
    assert trained.metrics["test/protein_ss/bits"] > 0
    start: dict[str, Any] = {"start": str(trained.folder), "trunk": "transformer", "learning_rate": 1e-12}
    [tuned] = uf.run(load_experiment("token_classification"), **settings, **start)
    assert tuned.lineage["tokenizers"] == ["protein_ss"]
    before, after = (load_file(result.folder / "model" / "model.safetensors") for result in (trained, tuned))
    taken = [name for name in after if "head" not in name]
    assert {name.split(".")[0] for name in taken} == {"trunk", "tokenizers"}
    for name in taken:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=1e-4)
