"""Recipes: few parameters, every training option, and a short run of each kind."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import unifier as uf
from unifier.augmentation import BpeDropout
from unifier.config import build_described, check_settings, list_experiments, load_experiment
from unifier.data.dataloader import TrainDataLoader, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.data.source import SPLITS
from unifier.experiment import sufficient_epochs
from unifier.nn.attention import Attention
from unifier.plugins import list_recipes
from unifier.settings import list_settings
from unifier_tokenizers import InputError, SubwordTokenizer

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16}
TRANSLATION = SMALL | {"vocabulary": 300, "decoder_depth": 1}


def build(name: str, **settings: Any) -> uf.Experiment:
    """Build a recipe's experiment from flat settings."""
    recipe = load_experiment(name)
    return build_described(recipe, check_settings(recipe, settings), uf.Experiment)


def only_task(experiment: uf.Experiment) -> uf.Task:
    (task,) = experiment.tasks.values()
    return task


def functions() -> list[Callable[..., Any]]:
    """List every experiment and comparison of every recipe."""
    return [function for path in list_recipes().values() for function in list_experiments(path).values()]


def test_recipes_have_few_parameters_and_all_explained_training_options() -> None:
    options = {field.name for field in fields(uf.Training)}
    for function in functions():
        settings, name = list_settings(function), function.__name__
        assert len(inspect.signature(function).parameters) < 12, name
        assert [setting for setting in settings if not settings[setting].doc] == [], name
        if function.__annotations__["return"] is uf.Experiment:
            assert options - settings.keys() == set(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        {"ema_decay": 0.9}, {"average_last": 3}, {"grad_accumulation": 2}, {"optimizer": "adamw"},
        {"schedule": "inverse_sqrt"}, {"warmup_ratio": 0.3}, {"batch_tokens": 64}, {"learning_rate": 0.1},
        {"num_validations": 3}, {"precision": "float32"}, {"bad_examples": "skip"}, {"epochs": 2.0}, {"tokens": 77},
        {"steps": 5}, {"seconds": 1.0},
    ],
    ids=lambda setting: next(iter(setting)),
)  # fmt: skip
def test_training_option_reaches_the_experiment(setting: dict[str, Any]) -> None:
    training = build("translation", **TRANSLATION, **setting).training
    assert {name: getattr(training, name) for name in setting} == setting
    assert (training.epochs is None) == bool(setting.keys() & {"tokens", "steps", "seconds"})


@pytest.mark.parametrize(
    ("tied", "reads", "writes"),
    [("all", True, True), ("source", True, False), ("target", False, True), ("none", False, False)],
)
def test_embeddings_are_tied_as_asked(tied: str, reads: bool, writes: bool) -> None:
    task = only_task(build("translation", **TRANSLATION, tied=tied))
    assert isinstance(task.tokenizer, SubwordTokenizer)
    assert isinstance(task.head, uf.TranslationHead)
    assert (task.head.embedding is task.tokenizer.embedding) == reads
    assert (task.head.output is task.head.embedding) == writes


def test_decoder_options_reach_the_head() -> None:
    given: dict[str, Any] = {"label_smoothing": 0.2, "r_drop": 2.0, "beam_width": 3, "length_penalty": 0.4}
    head = only_task(build("translation", **TRANSLATION, **given)).head
    assert {name: getattr(head, name) for name in given} == given


@pytest.mark.slow
def test_encoder_and_decoder_share_block_options() -> None:
    plain, scaled = (build("translation", **TRANSLATION, qk_norm=on, scaled_residual_init=on) for on in (False, True))
    for before, after in ((plain.trunk, scaled.trunk), (only_task(plain).head, only_task(scaled).head)):
        names = [{name for name, _ in module.named_parameters()} for module in (before, after)]
        assert {name.rpartition("_norm")[0].rpartition(".")[2] for name in names[1] - names[0]} == {"query", "key"}
        outputs = [[part.out for part in module.modules() if isinstance(part, Attention)] for module in (before, after)]
        assert all(b.weight.std() < 0.9 * a.weight.std() for a, b in zip(*outputs, strict=True))


@pytest.mark.slow
def test_translation_sizes_its_epochs(tmp_path: Path) -> None:
    table = tmp_path / "few.tsv"
    table.write_text("".join(f"{k}\t{k}\n" for k in range(400)))
    assert build("translation", **TRANSLATION, data=str(table)).training.epochs == 50_000 / 320
    assert build("translation", **TRANSLATION).training.epochs == 40


@pytest.mark.slow
def test_dropout_of_tokens_and_r_drop_need_their_settings() -> None:
    assert isinstance(only_task(build("translation", **TRANSLATION, bpe_dropout=0.1)).augmentation, BpeDropout)
    with pytest.raises(InputError, match=r"bpe_dropout=0\.1"):
        build("translation", **TRANSLATION, bpe_dropout=0.1, positions="learned")
    with pytest.raises(InputError, match=r"r_drop=5\.0"):
        build("translation", **TRANSLATION, dropout=0.0)
    assert only_task(build("translation", **TRANSLATION, dropout=0.0, r_drop=0.0)).head.num_passes == 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"size": 300}, {"size": 300, "patch": 2}, {"size": 7}], ids=str)
def test_pictures_of_every_size_stay_in_sight(tmp_path: Path, settings: dict[str, Any]) -> None:
    for number, side in enumerate((32, 32, 4, 8, 250, 300, 5, 32, 32, 32, 32, 32)):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(100, 256, (side, -(-side // 3)), np.uint8)).save(path)
    task = only_task(build("pictures", data=str(tmp_path), **SMALL, **settings))
    assert task.augmentation is not None
    for name in SPLITS:
        split = open_split(task.source, name)
        assert max(max(example.input.shape) for example in split) <= settings.get("size", 64)
        encoded, _ = encode_split(split, task.tokenizer, task.head)
        batch = collate(encoded, range(len(split)))
        for seed in range(20):
            changed = task.augmentation(batch, torch.Generator().manual_seed(seed))
            assert changed.values.flatten(1).any(1).all()


def write_sounds(folder: Path, count: int, seconds: float) -> None:
    for number in range(count):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        sound = np.random.default_rng(number).normal(size=round(4000 * seconds)) * 0.1
        soundfile.write(folder / "ab"[number % 2] / f"{number}.wav", sound, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 0.4, 2.0])
def test_short_and_long_sounds_get_enough_steps(seconds: float, tmp_path: Path) -> None:
    write_sounds(tmp_path, 400, seconds)
    experiment = build("genres", data=str(tmp_path))
    task = only_task(experiment)
    split, _ = encode_split(open_split(task.source, "train"), task.tokenizer, task.head)
    epochs = experiment.training.epochs or 0
    assert epochs > sufficient_epochs(task.source)
    assert 1200 < len(TrainDataLoader({"a": split}, max_tokens=2048, seed=0, budget={"epochs": epochs})) < 3000


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "pictures": ("pictures", {"randaugment": 3, "mixup": 0.2, "cutmix": 1.0, "random_erasing": 0.5, "flip": True}),
    "class token": ("pictures", {"stem": None, "pooling": "cls", "positions": "rotary", "drop_path": 0.1}),
    "stacks": ("genres", {"crop": 0.25, "time_masks": 2, "band_masks": 2, "label_smoothing": 0.1}),
    "patches": ("genres", {"patch": (8, 16), "stride": (4, 16), "band_masks": 1, "positions": "learned"}),
    "waveform": ("genres", {"tokenizer": "waveform", "crop": 0.25, "gain": 6.0}),
    "tags": ("genres", {"target": "tags", "data": "embedded"}),
    "gru": ("pictures", {"trunk": "gru"}),
}


@pytest.mark.usefixtures("undrawn", "few_examples")
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_recipe_trains(name: str, tmp_path: Path) -> None:
    recipe, given = RUNS[name]
    settings: dict[str, Any] = {**given}
    if recipe == "genres" and "data" not in settings:
        (tmp_path / "sounds").mkdir()
        write_sounds(tmp_path / "sounds", 12, 0.4)
        settings["data"] = str(tmp_path / "sounds")
    options: dict[str, Any] = SMALL | {"tokens": 400, "batch_tokens": 64, "num_validations": 1}
    (result,) = uf.run(load_experiment(recipe), **options, **settings, out=tmp_path, track="off")
    assert result.status == "finished"


@pytest.mark.slow
def test_text_classification_reads_a_table(tmp_path: Path) -> None:
    table = tmp_path / "reviews.csv"
    rows = [f"{'good' if k % 2 else 'bad'} film number {k},{k % 2}" for k in range(40)]
    table.write_text("\n".join(["review,stars", *rows]) + "\n")
    settings = SMALL | {"data": str(table), "text": "review", "label": "stars", "vocabulary": 300}
    task = only_task(build("text_classification", **settings))
    assert isinstance(task.tokenizer, SubwordTokenizer)
    assert list(task.source.labels) == ["0", "1"]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InputError, match="pooling=cls"):
        build("text_classification", **settings, pooling="cls")
    large = settings | {"vocabulary": 520, "level": "wordpiece"}
    writing = TRANSLATION | {"vocabulary": 520, "level": "wordpiece"}
    for experiment in (build("text_classification", **large), build("translation", **writing)):
        tokenizer = only_task(experiment).tokenizer
        assert isinstance(tokenizer, SubwordTokenizer)
        assert tokenizer.vocabulary.codec.token_to_id("##a") is not None


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_language_model_reads_learned_positions(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("".join(f"line {k} of {k % 7} lines\n" for k in range(80)))
    settings: dict[str, Any] = {"data": str(tmp_path / "own.txt"), "length": 16, "positions": "learned"}
    recipe = load_experiment("language_model")
    (result,) = uf.run(recipe, **settings, dim=16, depth=1, heads=2, steps=2, out=tmp_path, track="off")
    assert result.metrics["test/own/nats_per_character"] > 0


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("speech_recognition", {"data": "voice_prompts", "fold": 1}, "fold=1"),
        ("speech_recognition", {"data": "voice_prompts", "train": 9}, "train=9"),
        ("speech_recognition", {"data": "voice_prompts_fr", "longer": None}, "longer=None"),
        ("speech_recognition", {"train": 0}, "train=0"),
        ("text_classification", {"train_vectors": True}, "train_vectors"),
        ("text_classification", {"vectors": "glove", "level": "word"}, "level"),
        ("token_classification", {"vectors": "glove", "level": "word"}, "level"),
        ("detection", {"size": 32}, "size=32"),
        ("segmentation", {"size": 32}, "size=32"),
        ("token_classification", {"data": "protein_ss", "level": "word"}, "level"),
    ],
    ids=str,
)
def test_settings_of_other_data_are_refused(recipe: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(recipe, **settings)
