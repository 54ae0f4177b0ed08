"""Graphs of a model give its numbers and texts in a process that cannot import unifier."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import unifier as uf
from tests.small_models import LABELS, PARTS, VOCABULARY, D, save_model, small_model
from unifier.augmentation.image import image_tta
from unifier.data.inputs import ImageReader, SeriesReader
from unifier.heads.head import Head
from unifier.heads.masked_language_modeling import MaskedLanguageModelingHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.token_classification import TokenClassificationHead
from unifier.models.export import export_model
from unifier.models.folder import ModelTask, write_model
from unifier.models.graph import trace_graphs
from unifier.network import Network
from unifier_tokenizers import Audio, InputError, Mixture, PatchTokenizer, SubwordTokenizer, WordTokenizer, pad_columns

PAIRS = [(batch, size) for batch in (1, 2, 3, 5, 8) for size in range(1, 7)]
"""30 pairs of a batch size and the largest size of an input."""

pytestmark = [pytest.mark.extras, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def example(kind: str, size: int) -> Any:
    """Return an input that grows with `size`."""
    random = np.random.default_rng(size)
    match kind:
        case "picture" | "tags" | "caption" | "segmentation":
            return random.integers(0, 256, (3 + 5 * size, 30 - 4 * size, 3)).astype(np.uint8)
        case "sound" | "symbols":
            return Audio(random.normal(scale=0.1, size=2000 + 1500 * size).astype(np.float32), 16000)
        case "mixture":
            return {"caption": example("text", size), "image": example("picture", size)}
        case "questions":
            return {"question": "one two", "context": example("text", size)}
        case "sentences":
            return example("text", size).split()
        case "shop":
            return random.integers(1, 31, size).tolist()
        case "music":
            return [[21 + 9 * k, 70] for k in range(size)]
        case _:
            pass
    return " ".join(["one", "two", "three", "four", "five", "six"][size - 1 :: -1])


def run_without_unifier(folder: Path, *arguments: object) -> list[Any]:
    script = Path(__file__).with_name("without_unifier.py")
    command = [sys.executable, "-I", str(script), str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("kind", "form", "trunk"),
    [
        *((kind, "onnx", "transformer") for kind in ("picture", "translation", "prefix")),
        *((kind, "torch", "transformer") for kind in ("text", "tags", "sound", "translation")),
        *((kind, "torch", "transformer") for kind in ("caption", "words", "numbers")),
        *(
            (kind, "onnx", "transformer")
            for kind in ("mixture", "segmentation", "symbols", "music", "sentences", "questions")
        ),
        *(("shop", "torch", "transformer"), ("text", "onnx", "lstm"), ("text", "torch", "gru")),
    ],
)
def test_process_without_unifier_gets_the_same_numbers_and_texts(
    kind: str, form: Any, trunk: str, tmp_path: Path
) -> None:
    model = uf.load(save_model(tmp_path, kind, trunk=trunk))
    task = model.tasks[kind]
    arrays: dict[str, Any] = {}
    expected: list[Any] = []
    for number, (batch, size) in enumerate(PAIRS):
        units = [task.tokenizer.encode(example(kind, 1 + (size + k) % size)) for k in range(batch)]
        parts = dict(zip(("values", "positions", "mask"), pad_columns(units), strict=True))
        arrays |= {f"{name}_{number}": part.numpy() for name, part in parts.items()}
        with torch.inference_mode():
            tokens = task.head.run_trunk(
                model.network.trunk,
                uf.Tokens(task.tokenizer.embed(parts["values"], parts["positions"]), parts["mask"], parts["positions"]),
            )
            is_text = isinstance(task.head, TextGenerationHead)
            expected.append(task.head.predict(tokens) if is_text else task.head.graph_output(tokens))
    np.savez(tmp_path / "batches.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = export_model(model.folder, tmp_path / "graph", form)
    assert ("text_length" in (folder / "README.md").read_text()) == (kind in ("translation", "caption", "prefix"))
    found = run_without_unifier(folder, tmp_path / "batches.npz")
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, list):
            assert one == other
        else:
            np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_graph_of_experts_gets_the_numbers_of_the_routed_model(form: Any, tmp_path: Path) -> None:
    model = uf.load(save_model(tmp_path, "text", experts=3))
    texts = [example("text", size) for size in (1, 6, 4)]
    units = [model.tasks["text"].tokenizer.encode(text) for text in texts]
    parts = dict(zip(("values", "positions", "mask"), pad_columns(units), strict=True))
    np.savez(tmp_path / "batches.npz", **{f"{name}_0": part.numpy() for name, part in parts.items()})  # pyright: ignore
    (found,) = run_without_unifier(export_model(model.folder, tmp_path / "graph", form), tmp_path / "batches.npz")
    expected = [answer.tolist() for answer in model.network.predict("text", texts)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("joint", [False, True])
def test_graph_of_a_forecaster_gets_the_numbers_of_the_model(joint: bool, tmp_path: Path) -> None:
    tokenizer = uf.SeriesTokenizer(D, context=12, patch=4, stride=4)
    model = small_model(series=(tokenizer, uf.ForecastingHead(5, D, num_patches=tokenizer.num_patches)))
    reader = SeriesReader(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, context=12, joint=joint)
    task = replace(model.tasks["series"], reader=reader)
    model = replace(model, tasks={"series": task})
    write_model(tmp_path / "model", model, "card")
    windows = np.random.default_rng(0).normal(size=(4, 3 if joint else 1, 12))
    parts = dict(zip(("values", "positions", "mask"), pad_columns([*map(tokenizer.encode, windows)]), strict=True))
    np.savez(tmp_path / "batches.npz", **{f"{name}_0": part.numpy() for name, part in parts.items()})  # pyright: ignore
    graph = export_model(tmp_path / "model", tmp_path / "graph", "torch")
    (found,) = run_without_unifier(graph, tmp_path / "batches.npz")
    matrix, mask, positions = tokenizer.embed(parts["values"], parts["positions"]), parts["mask"], parts["positions"]
    with torch.inference_mode():
        expected = task.head.graph_output(model.trunk(uf.Tokens(matrix, mask, positions)))
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


def test_program_written_from_the_card_answers_like_predict(tmp_path: Path) -> None:
    picture, sound, turned = tmp_path / "a.png", tmp_path / "b.wav", tmp_path / "c.jpg"
    Image.fromarray(example("picture", 3)).save(picture)
    soundfile.write(sound, example("sound", 4).waveform, 16000)
    exif = Image.Exif()
    exif[0x0112] = 6  # The camera was turned.
    Image.fromarray(example("picture", 3)).resize((150, 83)).save(turned, exif=exif)
    values = {"picture": picture, "sound": sound, "translation": "three one two", "resized": turned}
    values["mixture"] = json.dumps({"caption": "two one", "image": str(picture)})
    for kind, value in values.items():
        (tmp_path / kind).mkdir()
        folder = save_model(tmp_path / kind, "picture" if kind == "resized" else kind)
        if kind == "resized":
            model = small_model("picture")
            task = replace(model.tasks["picture"], reader=ImageReader(3, size=20))
            write_model(Path(folder), replace(model, tasks={"picture": task}), "card")
        (answer,) = run_without_unifier(export_model(folder, tmp_path / f"{kind}-graph", "onnx"), value)
        (expected,) = uf.load(folder).predictions([json.loads(str(value)) if kind == "mixture" else value])
        if kind == "translation":
            assert answer == expected
        else:
            np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)


def masked_words() -> tuple[Any, Head]:
    vocabulary = uf.Vocabulary.fit(["one two"], size=280, extra=("<mask>",))
    tokenizer = SubwordTokenizer(vocabulary, D)
    return tokenizer, MaskedLanguageModelingHead(vocabulary, D, embedding=tokenizer.embedding)


def subwords(head: Callable[..., Head]) -> tuple[Any, Head]:
    return SubwordTokenizer(VOCABULARY, D), head(VOCABULARY, D, depth=1)


@pytest.mark.parametrize(
    ("trunk", "parts"),
    [
        ("transformer", lambda: subwords(uf.LuongHead)),
        ("transformer", lambda: subwords(uf.AdditiveHead)),
        ("transformer", lambda: subwords(uf.RecurrentHead)),
        ("transformer", lambda: subwords(uf.ConvDecoderHead)),
        ("transformer", lambda: subwords(uf.HardAttentionHead)),
        ("transformer", PARTS["pixels"]),
        ("transformer", lambda: (Mixture({"t": PARTS["text"]()[0], "s": PARTS["sound"]()[0]}), PARTS["text"]()[1])),
        ("convolutional", lambda: (WordTokenizer(VOCABULARY, D), TokenClassificationHead(LABELS, D))),
        ("transformer", masked_words),
        (
            "mean_attention",
            lambda: (PatchTokenizer(D, stem="pooled"), uf.ClassificationHead(LABELS, D, pooling="attention")),
        ),
        ("transformer", lambda: (uf.WaveformTokenizer(D, normalize="example"), uf.TaggingHead(LABELS, D))),
        ("transformer", lambda: (uf.FrameTokenizer(D, stack=4, stem="strided"), uf.TaggingHead(LABELS, D))),
    ],
)
def test_parts_of_the_library_have_graphs(trunk: str, parts: Callable[[], tuple[Any, Head]], tmp_path: Path) -> None:
    model = small_model(task=parts(), trunk=trunk)
    Network(model.trunk, model.tasks).eval()
    for name, graph in trace_graphs(model.trunk, model.tasks["task"]).items():  # Each graph is compared with the model.
        graph.save_onnx(tmp_path / name)


def test_graph_averages_the_views_of_test_time_augmentation(tmp_path: Path) -> None:
    model = small_model("tags")
    task = model.tasks["tags"]
    tta = image_tta(task.tokenizer, 3, crop=2, flip=True)  # pyright: ignore[reportArgumentType]
    task = ModelTask(task.tokenizer, task.head, task.reader, task.longest, tta)
    network = Network(model.trunk, {"tags": task}).eval()
    picture = example("tags", 4)
    values, positions, mask = pad_columns([task.tokenizer.encode(picture)])
    programs = [trace_graphs(model.trunk, part)["model"].program for part in (task, replace(task, tta=None))]
    (found,) = programs[0].module()(values, positions, mask)
    torch.testing.assert_close(found[0], network.predict("tags", [picture])[0], rtol=0, atol=1e-5)
    products = [sum(node.target == torch.ops.aten.linear.default for node in one.graph.nodes) for one in programs]
    assert products[0] == products[1] > 0, "the graph has one copy of the network for all views"


def test_part_without_a_graph_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    tokenizer = PatchTokenizer(D)
    folder = save_model(tmp_path, hidden=(tokenizer, uf.MaskedReconstructionHead(tokenizer.patch**2 * 3, D)))
    with pytest.raises(InputError, match="MaskedReconstructionHead cannot be exported"):
        export_model(folder, tmp_path / "graph", "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
