"""Writing and reading the folder of a model: equal predictions, and one clear line for a damaged folder."""

import json
import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unifier import (
    AdditiveHead,
    Audio,
    ClassificationHead,
    ConvDecoderHead,
    FrameTokenizer,
    HardAttentionHead,
    Head,
    LuongHead,
    Mixture,
    Network,
    PatchTokenizer,
    PrefixHead,
    RecurrentHead,
    SubwordTokenizer,
    TaggingHead,
    Tokenizer,
    TranslationHead,
    Units,
    Vocabulary,
    WaveformTokenizer,
    create_trunk,
)
from unifier.augmentation import image_tta
from unifier.data.inputs import ImageReader, reader_of
from unifier.files import read_json, write_sealed_json
from unifier.models.config import construct
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier_tokenizers import InputError

D = 16
VOCABULARY = Vocabulary.fit(["one two three", "four five six"], size=280)
SOUND = Audio(np.sin(np.arange(8000) / 9).astype(np.float32), 16000)
PICTURE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)

TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], Any]] = {
    "text": (lambda: SubwordTokenizer(VOCABULARY, D), "one four"),
    "vectors": (lambda: SubwordTokenizer(VOCABULARY, D, vectors=torch.randn(len(VOCABULARY), 5)), "one four"),
    "image": (lambda: PatchTokenizer(D, class_token=True), PICTURE),
    "audio": (lambda: FrameTokenizer(D, patch=(16, 16), normalize="band").fit([SOUND]), SOUND),
    "waveform": (lambda: WaveformTokenizer(D), SOUND),
    "mixture": (
        lambda: Mixture({"text": SubwordTokenizer(VOCABULARY, D), "image": PatchTokenizer(D)}),
        {"text": "one", "image": PICTURE},
    ),
}
HEADS: dict[str, Callable[[SubwordTokenizer], Head]] = {
    "classification": lambda _: ClassificationHead(["a", "b"], D, pooling="attention"),
    "tagging": lambda _: TaggingHead(["a", "b"], D),
    "translation": lambda text: TranslationHead(
        text.vocabulary, D, depth=1, heads=2, ffn_dim=D, embedding=text.embedding
    ),
    "recurrent": lambda text: RecurrentHead(text.vocabulary, D, depth=1),
    "additive": lambda text: AdditiveHead(text.vocabulary, D, depth=1),
    "luong": lambda text: LuongHead(text.vocabulary, D, depth=1),
    "hard": lambda text: HardAttentionHead(text.vocabulary, D, depth=1),
    "convolutional": lambda text: ConvDecoderHead(text.vocabulary, D, depth=1),
    "prefix": lambda text: PrefixHead(text.vocabulary, D),
}


def stored(tokenizer: Tokenizer, head: Head, trunk: str = "transformer", **changes: Any) -> StoredModel:
    task = ModelTask(tokenizer, head, reader_of(None, tokenizer), longest=9, **changes)
    return StoredModel("small", create_trunk(trunk, D, 1, 2, D), {"task": task}, 256, {"scores": {}})


def predictions(model: StoredModel, raw: Any) -> list[Any]:
    torch.manual_seed(0)
    return [str(answer) for answer in Network(model.trunk, model.tasks).eval().predict("task", [raw, raw])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = SubwordTokenizer(VOCABULARY, D)
    write_model(tmp_path / "model", stored(text, HEADS["translation"](text)), "card")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizer_predicts_the_same_from_its_folder(kind: str, tmp_path: Path) -> None:
    create, raw = TOKENIZERS[kind]
    model = stored(create(), ClassificationHead(["a", "b"], D))
    write_model(tmp_path / "model", model, "card")
    assert predictions(read_model(tmp_path / "model"), raw) == predictions(model, raw)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_head_predicts_the_same_from_its_folder(kind: str, tmp_path: Path) -> None:
    text = SubwordTokenizer(VOCABULARY, D)
    model = stored(text, HEADS[kind](text))
    write_model(tmp_path / "model", model, "card")
    assert predictions(read_model(tmp_path / "model"), "one four") == predictions(model, "one four")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors", ".md"}


@pytest.mark.parametrize("trunk", ["mean_attention", "gru", "convolutional"])
def test_trunk_predicts_the_same_from_its_folder(trunk: str, tmp_path: Path) -> None:
    model = stored(PatchTokenizer(D), ClassificationHead(["a", "b"], D), trunk)
    write_model(tmp_path / "model", model, "card")
    assert predictions(read_model(tmp_path / "model"), PICTURE) == predictions(model, PICTURE)


def test_shared_parts_stay_shared(folder: Path) -> None:
    task = read_model(folder).tasks["task"]
    assert isinstance(task.tokenizer, SubwordTokenizer)
    assert isinstance(task.head, TranslationHead)
    assert task.head.embedding is task.tokenizer.embedding
    assert task.head.vocabulary is task.tokenizer.vocabulary
    images = PatchTokenizer(D)
    views = image_tta(images, 2, crop=1)
    write_model(folder, stored(images, ClassificationHead(["a", "b"], D), tta=views), "card")
    again = read_model(folder).tasks["task"]
    assert again.tta.tokenizer is again.tokenizer  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def damages(folder: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Yield damages of every file: missing, cut, and a flipped bit."""
    for path in sorted(folder.glob("*[!d]")):  # The card README.md is only for people.
        content = path.read_bytes()
        at = random.Random(path.name).randrange(len(content))
        flipped = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        yield path.name, lambda file: file.unlink()
        yield path.name, lambda file, content=content: file.write_bytes(content[: len(content) // 2])
        yield path.name, lambda file, flipped=flipped: file.write_bytes(flipped)


def test_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    for number, (name, damage) in enumerate(damages(folder)):
        copy = copytree(folder, tmp_path / str(number))
        damage(copy / name)
        with pytest.raises(InputError, match=name):
            read_model(copy)


def change(folder: Path, **entries: Any) -> None:
    """Change entries of config.json, with a new hash."""
    write_sealed_json(folder / "config.json", {**read_json(folder / "config.json"), **entries})


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        *(({"format": number}, repr(number)) for number in (99, 0, "1")),
        ({"trunk": {"class": "os.system", "arguments": {"command": "true"}}}, r"os\.system"),
        ({"trunk": {"class": "unifier.__main__.main", "arguments": {}}}, r"__main__"),
        ({"trunk": {"class": "unifier.files.write_text", "arguments": {}}}, "write_text"),
        ({"trunk": {"class": "parts.Own", "package": "no-such-package", "arguments": {}}}, "no-such-package"),
        ({"trunk": {"class": "unifier.trunks.transformer.Transformer", "arguments": {"dimm": 4}}}, "dimm"),
        ({"trunk": {"part": "tasks.task.head"}}, "trunk"),
        ({"files": {"model.safetensors": "0", "../secret": "0"}}, "secret"),
        ({"files": {}}, r"model\.safetensors"),
        ({"tasks": {"task": {}}}, "task"),
    ],
)
def test_config_that_does_not_fit_is_named(entries: dict[str, Any], named: str, folder: Path) -> None:
    change(folder, **entries)
    with pytest.raises(InputError, match=named):
        read_model(folder)


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    trunk = json.loads(json.dumps(read_json(folder / "config.json")["trunk"]))
    trunk["arguments"]["ffn_dim"] = 2 * D
    change(folder, trunk=trunk)
    with pytest.raises(InputError, match=r"feed_forward.*\(32"):
        read_model(folder)


@pytest.mark.parametrize("longest", [0, -1, True, 2.0, "9"])
def test_length_of_the_longest_example_is_positive(longest: Any, folder: Path) -> None:
    tasks = read_json(folder / "config.json")["tasks"]
    change(folder, tasks={"task": tasks["task"] | {"longest": longest}})
    with pytest.raises(InputError, match="longest must"):
        read_model(folder)


@pytest.mark.parametrize("value", [torch.tensor(torch.nan), torch.tensor(torch.inf), torch.tensor(1)])
def test_weights_that_are_no_numbers_are_named(value: Tensor, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name, weight in weights.items() if weight.is_floating_point())
    save_file(weights | {name: value.expand(weights[name].shape).contiguous()}, folder / "model.safetensors")
    files = read_json(folder / "config.json")["files"]
    change(folder, files={file: sha256((folder / file).read_bytes()).hexdigest() for file in files})
    with pytest.raises(InputError, match=f"model.safetensors.*{name}"):
        read_model(folder)


@pytest.mark.parametrize(
    "arguments", [{"size": "x"}, {"size": 1.5}, {"size": [8]}, {"channels": 2}, {"channels": None}, {"channels": ((),)}]
)
def test_argument_of_another_type_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"reader.{next(iter(arguments))}"):
        construct(ImageReader, arguments, "reader")
    assert construct(ImageReader, {"size": 8}, "reader").size == 8


class OwnTokenizer(Tokenizer):
    def __init__(self, dim: int, scale: float = 1.0) -> None:
        super().__init__(dim)
        self.scale, self.embedding = scale, nn.Embedding(10, dim)

    def encode(self, raw: Any) -> Units:
        return Units(torch.tensor(raw), torch.arange(len(raw))[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return self.scale * self.embedding(values).mT


def test_own_class_loads_only_if_it_is_given(tmp_path: Path) -> None:
    model = stored(OwnTokenizer(D, 2), ClassificationHead(["a", "b"], D))
    write_model(tmp_path, model, "card")
    with pytest.raises(InputError, match=r"OwnTokenizer\]"):
        read_model(tmp_path)
    assert predictions(read_model(tmp_path, [OwnTokenizer]), [1, 2]) == predictions(model, [1, 2])
    no_lists: tuple[Any, ...] = (OwnTokenizer, ["OwnTokenizer"], "OwnTokenizer")
    for classes in no_lists:
        with pytest.raises(InputError, match=r"classes=.*OwnTokenizer"):
            read_model(tmp_path, classes)


@pytest.mark.parametrize("value", [float("nan"), torch.float32, Path("x"), {1: 2}, [abs], Image.new("L", (1, 1))])
def test_argument_that_no_folder_can_store_is_refused_by_the_constructor(value: Any) -> None:
    with pytest.raises(InputError, match="OwnTokenizer"):
        OwnTokenizer(D, scale=value)


def test_folder_of_the_first_format_is_read() -> None:
    model = read_model(Path(__file__).parent / "format_1")
    [answer] = Network(model.trunk, model.tasks).eval().predict("letters", [PICTURE[:, :, 0]])
    assert answer.tolist() == pytest.approx(torch.tensor([0.0, 5.0]).softmax(0).tolist())  # The head has only a bias.
