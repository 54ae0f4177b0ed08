"""Representations and attention of a model are written for every modality, task and trunk."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

from unifier import ConvolutionalTrunk, RecurrentHead, RecurrentTrunk, Transformer, TranslationHead, Trunk, run
from unifier.analysis import activations
from unifier.analysis.activations import align_examples, spread_indices
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import Example
from unifier.datasets import Digits, GrammarPairs, SyntheticMusic
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.nn.attention import AttentionMode
from unifier.nn.experts import mixtures_of
from unifier.training.lightning_module import UnifierModule
from unifier.training.probe import probe
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier_tokenizers import Audio, FrameTokenizer, Mixture, PatchTokenizer, SubwordTokenizer, Tokens, Vocabulary
from unifier_tokenizers.subwords import Level

D, DEPTH = 12, 2
PAIRS = GrammarPairs(train=40, val=12, test=3)
MUSIC = SyntheticMusic(train=6, val=6, test=6, seconds=1.0, target="tags")
NAMES = ("columns", "blocks.0", "blocks.1")


def few(examples: Sequence[Example]) -> Any:
    """Return a source with the same examples in every split."""
    return SimpleNamespace(name="few", split=lambda _: examples)


def text(level: Level = "bpe") -> Task:
    vocabulary = Vocabulary.fit((text for pair in PAIRS.split("train") for text in pair), size=400, level=level)
    head = TranslationHead(vocabulary, D, depth=2, heads=2, ffn_dim=16, dropout=0.3)
    return Task(PAIRS, SubwordTokenizer(vocabulary, D, dropout=0.3), head)


def picture(pooling: Literal["mean", "cls"] = "mean") -> Task:
    tokenizer = PatchTokenizer(D, patch=2, channels=1, class_token=pooling == "cls")
    return Task(Digits(), tokenizer, ClassificationHead(Digits.labels, D, pooling=pooling))


def sound(**shape: Any) -> Task:
    return Task(MUSIC, FrameTokenizer(D, sample_rate=8000, **shape), TaggingHead(MUSIC.labels, D))


def transformer() -> Trunk:
    return Transformer(D, DEPTH, 2, 16, dropout=0.3)


def model_of(trunk: Trunk, **tasks: Task) -> tuple[UnifierModule, dict[str, EncodedSplit]]:
    """Return an untrained model of these tasks, and their validation splits."""
    encoded = {name: encode_split(open_split(t.source, "val"), t.tokenizer, t.head)[0] for name, t in tasks.items()}
    return UnifierModule(Experiment(trunk, tasks, Training(steps=1), name="seen")), encoded


@pytest.mark.slow
def test_run_leaves_representations_and_attention(tmp_path: Path) -> None:
    def together() -> Experiment:
        tasks = {"en-fr": text(), "digits": picture(), "music": sound(stack=4)}
        return Experiment(transformer(), tasks, Training(steps=3, batch_tokens=256, num_validations=1), name="together")

    (result,) = run(together, out=tmp_path, track="off")
    with np.load(result.folder / "representations.npz") as kept:
        sizes = {name: (each.shape, each.dtype.name) for name, each in kept.items()}
    examples = {"en-fr": 12, "digits": 200, "music": 6}
    assert sizes == {f"{task}/{name}": ((count, D), "float32") for task, count in examples.items() for name in NAMES}
    found = json.loads((result.folder / "attention.json").read_text())
    units = {task: each["unit"] for task, each in found.items()}
    assert units == {"en-fr": "words", "digits": "pixels", "music": "seconds"}
    for task, each in found.items():
        assert len(each["layers"]) == DEPTH
        for layer in each["layers"]:
            assert set(layer) == {"entropy", "distance", "uniform_distance", "agreement"}
            assert all(0 < layer[name] <= 1 for name in ("entropy", "agreement"))
            assert 0 < layer["distance"] < 2 * layer["uniform_distance"]
        assert ("alignment_error_rate" in each) == ("alignment_error_rate_chance" in each) == (task == "en-fr")
    drawn = {path.name for path in (result.folder / "figures").glob("attention-*")}
    assert drawn == {f"attention-{task}-{k}.svg" for task in examples for k in (0, 1, "heads")}
    for name in drawn - {f"attention-{task}-heads.svg" for task in examples}:
        said = "".join(ElementTree.parse(result.folder / "figures" / name).getroot().itertext())
        assert ("seconds" in said) == ("music" in name)
        assert ("relative to uniform attention" in said) == ("digits" in name)
        assert ("the true alignment" in said) == ("en-fr" in name)
    assert (result.folder / "figures" / "attention-music-0.svg").stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("longest", [20, 10])
def test_long_examples_have_no_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    whole = MUSIC.split("val")
    pieces = [Audio(example.input.waveform[: 8000 if k % 2 else 4000], 8000) for k, example in enumerate(whole)]
    source = few([Example(piece, example.target) for piece, example in zip(pieces, whole, strict=True)])
    model, splits = model_of(transformer(), music=replace(sound(stack=4), source=source))
    assert sorted(set(splits["music"].lengths()[:, 0].tolist())) == [12, 25]
    own, read = Transformer.attention, list[int]()
    monkeypatch.setattr(Transformer, "attention", lambda *given: (read.append(given[1].mask.shape[1]), own(*given))[1])  # pyright: ignore
    probe(model, splits, tmp_path, max_length=longest)
    assert set(read) == ({12} if longest == 20 else set())
    assert len(np.load(tmp_path / "representations.npz")["music/columns"]) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "trunk",
    [MeanAttentionTrunk(D, 1, 16), RecurrentTrunk(D, 1), ConvolutionalTrunk(D, 1), Transformer(D, 0, 2, 16)],
    ids=lambda each: type(each).__name__,
)
def test_trunk_without_attention(trunk: Trunk, tmp_path: Path) -> None:
    model, splits = model_of(trunk, words=text(), digits=picture())
    probe(model, splits, tmp_path)
    with np.load(tmp_path / "representations.npz") as kept:
        assert len(kept.files) == 2 * 2
    found = json.loads((tmp_path / "attention.json").read_text())
    assert found["words"]["layers"] == []
    assert 0 <= found["words"]["alignment_error_rate"] <= 1, "the decoder has attention with any trunk"
    assert {path.name for path in tmp_path.glob("figures/*")} == {f"attention-words-{k}.svg" for k in (0, 1, "heads")}
    assert ("digits" in found) == isinstance(trunk, Transformer)


class TorchAttention(Trunk):
    """A trunk whose module `attention` is not the method of an AttentiveTrunk."""

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.attention = D, nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        x = tokens.matrix.mT
        return tokens._replace(matrix=self.attention(x, x, x, key_padding_mask=~tokens.mask)[0].mT)


def test_model_without_attention_leaves_no_file(tmp_path: Path) -> None:
    model, splits = model_of(TorchAttention(), digits=picture())
    probe(model, splits, tmp_path)
    assert set(np.load(tmp_path / "representations.npz")) == {"digits/columns", "digits/trunk"}
    vocabulary = Vocabulary.fit(text for pair in PAIRS.split("train") for text in pair)
    task = Task(PAIRS, SubwordTokenizer(vocabulary, D), RecurrentHead(vocabulary, D, depth=1))
    probe(*model_of(RecurrentTrunk(D, 1, bidirectional=False), words=task), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["representations.npz"]


@pytest.mark.slow
def test_probe_leaves_the_model_unchanged(tmp_path: Path) -> None:
    model, splits = model_of(transformer(), words=text(), digits=picture())
    before, random = {name: each.clone() for name, each in model.state_dict().items()}, torch.get_rng_state()
    probe(model.train(), splits, tmp_path)
    assert all(module.training for module in model.modules())
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    first = (tmp_path / "representations.npz").read_bytes()
    probe(model.eval(), splits, tmp_path)
    assert not any(module.training for module in model.modules())
    assert (tmp_path / "representations.npz").read_bytes() == first


@torch.no_grad()
def test_representation_is_mean_of_one_example() -> None:
    model, splits = model_of(transformer(), words=text())
    task, split = model.eval().tasks["words"], splits["words"]
    rows = [7, 2, 11, 0]
    found = activations.representations(model.trunk, task, split, rows)
    assert tuple(found) == NAMES
    for place, row in enumerate(rows):
        matrix = task.tokenizer(PAIRS.split("val")[row].input)
        alone = Tokens(matrix[None], torch.ones(1, matrix.shape[1], dtype=torch.bool), split.units(row).positions[None])
        for name, columns in activations.layer_activations(model.trunk, alone).items():
            torch.testing.assert_close(found[name][place], columns[0].mean(0), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("task", [sound(stack=4), sound(patch=(16, 16)), picture("cls")], ids=("stack", "patch", "cls"))
def test_sounds_and_patches_without_class_token_are_drawn(task: Task, tmp_path: Path) -> None:
    probe(*model_of(transformer(), drawn=task), tmp_path)
    assert len(list(tmp_path.glob("figures/*.svg"))) == 3


def test_mixture_has_statistics_and_a_drawing_of_its_picture(tmp_path: Path) -> None:
    words, pictures = text(), picture()
    drawn = zip(PAIRS.split("val"), Digits().split("val"), strict=False)
    both = few([Example({"text": pair.input, "image": one.input}, one.target) for pair, one in drawn])
    head = ClassificationHead(Digits.labels, D)
    tokenizer = Mixture({"text": words.tokenizer, "image": pictures.tokenizer})
    probe(*model_of(transformer(), both=Task(both, tokenizer, head)), tmp_path)
    found = json.loads((tmp_path / "attention.json").read_text())["both"]
    assert found["unit"] == "columns"
    assert all(layer["distance"] > 0 for layer in found["layers"])
    assert (tmp_path / "figures" / "attention-both-0.svg").exists()


@torch.no_grad()
def test_aligned_sentences_have_words_and_links() -> None:
    model, splits = model_of(transformer(), words=text())
    found = align_examples(model.trunk, model.eval().tasks["words"], splits["words"], range(12))
    assert sorted(found) == list(range(12))
    for row, sentence in found.items():
        said = PAIRS.split("val")[row]
        assert ("".join(sentence.source), "".join(sentence.target)) == tuple(each.replace(" ", "") for each in said)
        assert sentence.attention.shape == (len(sentence.target), len(sentence.source))
        assert sentence.gold == set(PAIRS.split("val").alignment(row))


@torch.no_grad()
def test_sentences_split_otherwise_and_pictures_are_left_out() -> None:
    model, splits = model_of(transformer(), words=text("word"))
    found = align_examples(model.trunk, model.eval().tasks["words"], splits["words"], range(12))
    elided = {row for row, pair in enumerate(PAIRS.split("val")) if "'" in pair.target}
    assert set(found) == set(range(12)) - elided
    assert elided
    model, splits = model_of(transformer(), digits=picture())
    assert align_examples(model.trunk, model.tasks["digits"], splits["digits"], [0, 1]) == {}


def test_batches_hold_each_row_once() -> None:
    _, splits = model_of(transformer(), music=sound(stack=1))
    task, rows = sound(stack=1), [5, 0, 3, 4, 1, 2] * 9
    seen = [(part, tokens.mask.numel()) for part, tokens, _ in activations.iterate_batches(task, splits["music"], rows)]
    assert sorted(row for part, _ in seen for row in part) == sorted(rows)
    assert max(columns for _, columns in seen) <= 2048


@pytest.mark.parametrize(("length", "most"), [(5, 8), (8, 8), (9, 8), (1000, 256)])
def test_spread_indices_are_even(length: int, most: int) -> None:
    rows = spread_indices(length, most)
    assert len(rows) == min(length, most) == len(set(rows))
    assert rows[0] == 0
    gaps = {after - row for row, after in zip(rows, [*rows[1:], length], strict=True)}
    assert max(gaps) - min(gaps) <= 1


def test_experts_are_counted_and_an_unused_expert_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trunk = Transformer(D, 1, 2, 16, experts=3)
    (mixture,) = mixtures_of(trunk)
    with torch.no_grad():  # The third logit is never the largest.
        mixture.router.weight[1], mixture.router.weight[2] = -mixture.router.weight[0], 0.0
    model, encoded = model_of(trunk, digits=picture(), music=sound(stack=4))
    probe(model, encoded, tmp_path)
    found = json.loads((tmp_path / "experts.json").read_text())
    for task, split in encoded.items():
        ((first, second, third),) = found[task]
        assert (third, first + second) == (0, int(split.lengths()[:, 0].sum()))
    assert "expert 3 of layer 1" in capsys.readouterr().err
