"""Names of pictures: every decoder, the commands that read the model, and the comparison with texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import unifier as uf
from tests.datasets.test_emoji_names import emoji
from tests.experiments.test_recipes import build, only_task
from unifier.cli import main
from unifier.config import list_experiments, load_experiment
from unifier.heads.grouped_text import GroupedText
from unifier.heads.name_scores import name_means, name_scores
from unifier.heads.score_intervals import score_intervals
from unifier.trials.plan import plan_trials
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16, "decoder_depth": 1, "vocabulary": 300}
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    emoji(tmp_path / "emoji_names")
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    return tmp_path


def test_name_is_exact_or_shares_words() -> None:
    assert name_scores("red  cat", "red cat") == (100, 100, 1)
    assert name_scores("Red cat", "red cat") == (0, 50, 1)
    assert name_scores("", "cat")[:2] == (0, 0)
    scores = np.array([name_scores("a", "a"), name_scores("a", "b")])
    assert name_means(scores.sum(0)) == {"exact": 50, "word_f1": 50}


@pytest.mark.parametrize("attention", ["transformer", "soft", "hard"])
def test_decoders_share_the_embedding_of_the_codes(attention: str, data: Path) -> None:
    task = only_task(build("captions", attention=attention, **SMALL))
    kinds = {"transformer": uf.TranslationHead, "soft": uf.AdditiveHead, "hard": uf.HardAttentionHead}
    assert isinstance(task.head, kinds[attention])
    assert isinstance(task.tokenizer, uf.Mixture)
    words = task.tokenizer.members["text"]
    assert isinstance(words, uf.SubwordTokenizer)
    assert task.augmentation is None
    assert only_task(build("captions", attention=attention, **SMALL, crop=2)).augmentation is not None
    assert (words.embedding is task.head.embedding, words.codes) == (True, ("<en>", "<de>", "<fr>"))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_captions_train_and_every_command_reads_the_model(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"{name}={value}" for name, value in SMALL.items()] + [
        "attention=soft",
        "steps=2",
        "crop=2",
        "randaugment=1",
    ]
    assert main(["run", "captions", *settings, "num_validations=1", "--out", str(data / "runs"), "--track", "off"]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    scores = json.loads((run / "result.json").read_text())["metrics"]
    groups = ("", "_seen_artist", "_other_artist_fr")
    assert scores.keys() >= {f"test/emoji_names/{score}{group}" for score in ("exact", "word_f1") for group in groups}
    assert "attention-emoji_names-0.svg" in [path.name for path in (run / "figures").iterdir()]
    assert '"image"' in (run / "samples.json").read_text()
    assert "seen_artist seen_artist_en" in (run / "predictions.csv").read_text()
    Image.new("RGB", (8, 8)).save(data / "a.png")
    table = data / "table.csv"
    table.write_text("text,picture,label\n<de>,a.png,Katze 1\n<fr>,a.png,chat 1\n")
    drawn = data / "drawn"
    assert main(["predict", str(run), str(table), "--attention", str(drawn)]) == 0
    assert len(list(drawn.glob("*.svg"))) >= 2
    assert main(["evaluate", str(run), str(table), "--out", str(data / "scores")]) == 0
    found = json.loads((data / "scores" / "evaluation.json").read_text())["scores"]["exact"]
    assert found["low"] <= found["score"] <= found["high"]
    table.write_text("text,picture\ncat,a.png\n")
    capsys.readouterr()
    assert main(["predict", str(run), str(table)]) == 2
    assert "<de>" in capsys.readouterr().err


@pytest.mark.slow
def test_picture_is_a_setting_of_the_comparison(data: Path) -> None:
    recipe = list_experiments(EXPERIMENTS / "picture_and_text.py")["picture_and_text"]
    comparison = recipe(seeds=(0, 1))
    assert isinstance(comparison, uf.Comparison)
    assert len([*plan_trials(comparison)]) == 6
    translate = load_experiment(str(EXPERIMENTS / "picture_and_text.py") + ":emoji_translation")
    options: dict[str, Any] = SMALL | {"steps": 1, "num_validations": 1, "out": data / "runs", "track": "off"}
    pictures = only_task(build(f"{EXPERIMENTS / 'picture_and_text.py'}:emoji_translation", **SMALL, crop=2))
    assert pictures.augmentation is not None
    with pytest.raises(InputError, match="picture=none"):
        build(f"{EXPERIMENTS / 'picture_and_text.py'}:emoji_translation", **SMALL, crop=2, picture="none")
    for picture in ("none", "other"):
        [result] = uf.run(translate, picture=picture, target="fr", **options)
        assert result.metrics["test/emoji_names/exact_seen_artist_fr"] >= 0


@pytest.mark.slow
def test_soft_attention_is_the_baseline_of_the_comparison(data: Path) -> None:
    comparison = list_experiments(EXPERIMENTS / "captions.py")["soft_and_hard"](seeds=(0, 1))
    assert isinstance(comparison, uf.Comparison)
    trials = [*plan_trials(comparison)]
    assert len(trials) == 6
    assert comparison.grid["attention"][0] == "soft"


def test_unknown_attention_is_refused(data: Path) -> None:
    with pytest.raises(InputError, match="attention"):
        build("captions", attention="sharp", **SMALL)


def test_intervals_of_names_have_groups(data: Path) -> None:
    task = only_task(build("captions", **SMALL))
    test = task.source.split("test")
    targets = [test[k].target for k in range(len(test))]  # pyright: ignore[reportAttributeAccessIssue]
    answers = ["" if "other_artist" in target.groups else target for target in targets]
    intervals = score_intervals(task.head, answers, targets)
    assert intervals["exact_seen_artist"].low == 100
    assert intervals["exact"].low < 100
    # The test split contains one picture of the other artist, and one independent example has no interval.
    assert "exact_other_artist" not in intervals


def test_names_of_one_emoji_are_resampled_together(data: Path) -> None:
    head = only_task(build("captions", **SMALL)).head
    names = ["cat", "dog", "owl", "fox"]
    answers = ["cat", "pig", "owl", "pig"]
    alone = score_intervals(head, answers, [GroupedText(name, cluster=name) for name in names])
    copies = score_intervals(head, answers * 3, [GroupedText(name, cluster=name) for name in names * 3])
    independent = score_intervals(head, answers * 3, names * 3)
    assert copies["exact"] == alone["exact"]
    assert independent["exact"].low > alone["exact"].low
