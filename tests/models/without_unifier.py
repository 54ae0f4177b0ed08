"""A program that runs an exported folder. It was written from the folder's card, and imports no part of unifier.

The arguments are the folder and a file of arrays, or the folder and inputs.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER, ARGUMENTS = Path(sys.argv[1]), sys.argv[2:]
FACTS = json.loads((FOLDER / "preprocessing.json").read_text())
IS_ONNX = any(FOLDER.glob("*.onnx"))


class Blocked:
    """A finder that refuses to import unifier, and with ONNX also torch."""

    names = ("unifier", "unifier_tokenizers", *(("torch",) if IS_ONNX else ()))

    def find_spec(self, name: str, *_: Any) -> None:
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Blocked())  # pyright: ignore[reportArgumentType]


class Graph:
    """One graph of the folder, which maps named arrays to named arrays."""

    def __init__(self, name: str) -> None:
        self.facts, self.outputs = FACTS["graphs"][name], [part["name"] for part in FACTS["graphs"][name]["outputs"]]
        path = str(FOLDER / self.facts["file"])
        if IS_ONNX:
            import onnxruntime

            self.session = onnxruntime.InferenceSession(path)
        else:
            import torch

            self.torch, self.program = torch, torch.export.load(path).module()

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {part["name"]: arrays[part["name"]] for part in self.facts["inputs"]}
        if IS_ONNX:
            found = self.session.run(None, inputs)
        else:
            found = [part.numpy() for part in self.program(*map(self.torch.from_numpy, inputs.values()))]
        return dict(zip(self.outputs, found, strict=True))


@cache
def load_graph(name: str) -> Graph:
    return Graph(name)


def encode_picture(path: str, facts: Mapping[str, Any]) -> tuple[Any, Any]:
    from PIL import Image, ImageOps

    with Image.open(path) as file:
        if side := facts["max_side"]:
            file.draft(None, (2 * side, 2 * side))
        image = ImageOps.exif_transpose(file).convert("RGB" if facts["channels"] == 3 else "L")
        if side and max(image.size) > side:
            image.thumbnail((side, side))
        pixels = np.asarray(image).reshape(image.height, image.width, -1)
    patch, stride = facts["patch"], facts["stride"]
    rows, columns = (max(-(-(size - patch) // stride), 0) + 1 for size in pixels.shape[:2])
    canvas = np.zeros(((rows - 1) * stride + patch, (columns - 1) * stride + patch, pixels.shape[2]), np.uint8)
    canvas[: pixels.shape[0], : pixels.shape[1]] = pixels
    places = [(row, column) for row in range(rows) for column in range(columns)]
    corners = [(row * stride, column * stride) for row, column in places]
    values = [canvas[y : y + patch, x : x + patch].transpose(2, 0, 1).ravel() for y, x in corners]
    if facts["class_token"]:
        values, places = [np.zeros_like(values[0]), *values], [(-1, -1), *places]
    return np.stack(values, 1), np.array(places, np.int64).T


def encode_sound(path: str, facts: Mapping[str, Any]) -> tuple[Any, Any]:
    import soundfile

    samples, rate = soundfile.read(path, always_2d=True)
    assert rate == facts["sample_rate"], "this program does not resample"
    wave, fft, window, hop, bands = samples.mean(1), *(facts[name] for name in ("fft", "window", "hop", "mel_bands"))
    taper = np.zeros(fft)
    left = (fft - window) // 2
    taper[left : left + window] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    starts = range(0, len(wave) - fft + 1, hop)
    power = np.stack([np.abs(np.fft.rfft(wave[start : start + fft] * taper)) ** 2 for start in starts])
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    frequencies = np.linspace(0, rate // 2, fft // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    plane = np.log(np.maximum(power @ np.maximum(np.minimum(rising, falling), 0), facts["min_power"]))
    (frames, height), (step, rise) = facts["tile"], facts["tile_step"]
    steps, rows = (
        max(-(-(size - side) // by) + 1, 1)
        for size, side, by in zip(plane.shape, (frames, height), (step, rise), strict=True)
    )
    canvas = np.full(((steps - 1) * step + frames, (rows - 1) * rise + height), facts["fill"])
    canvas[: plane.shape[0], : plane.shape[1]] = plane
    places = [(time, row) for time in range(steps) for row in range(rows)]
    values = [canvas[t * step : t * step + frames, r * rise : r * rise + height].ravel() for t, r in places]
    return np.stack(values, 1).astype(np.float32), np.array(places, np.int64).T[: facts["position_axes"]]


def encode_text(text: str, facts: Mapping[str, Any]) -> tuple[Any, Any]:
    from tokenizers import Tokenizer

    codec = Tokenizer.from_file(str(FOLDER / facts["vocabulary"]))
    ids = [*codec.encode(" " + text, add_special_tokens=False).ids, facts["end"]]
    return np.array(ids, np.int64), np.arange(len(ids), dtype=np.int64)[None]


def encode_mixture(raw: str, facts: Mapping[str, Any]) -> tuple[Any, Any]:
    """Encode a JSON object with one input per member."""
    inputs, packed, places = json.loads(raw), list[Any](), list[Any]()
    for number, (name, member) in enumerate(facts["members"].items(), start=1):
        values, positions = ENCODERS[member["class"]](inputs[name], member)
        rows = len(values) if values.ndim == 2 else 0
        header = [number, facts["dtypes"].index(str(values.dtype)), rows, len(positions)]
        body = (values.view if values.dtype == np.float32 else values.astype)(np.int32).reshape(-1, values.shape[-1])
        packed.append(np.concatenate([np.repeat(np.array(header, np.int32)[:, None], body.shape[1], 1), body]))
        places.append(positions)
    rows, axes = (max(map(len, parts)) for parts in (packed, places))
    values = [np.pad(part, ((0, rows - len(part)), (0, 0))) for part in packed]
    return np.concatenate(values, 1), np.concatenate([np.pad(p, ((0, axes - len(p)), (0, 0))) for p in places], 1)


ENCODERS = {
    "PatchTokenizer": encode_picture,
    "FrameTokenizer": encode_sound,
    "SubwordTokenizer": encode_text,
    "Mixture": encode_mixture,
}


def stack(units: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Pad the examples of a batch at the end."""
    lengths = [values.shape[-1] for values, _ in units]

    def pad(part: Any, fill: int) -> Any:
        return np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, max(lengths) - part.shape[-1])], constant_values=fill)

    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    values, positions = zip(*units, strict=True)
    return {
        "values": np.stack([pad(part, 0) for part in values]),
        "positions": np.stack([pad(part, -1) for part in positions]),
        "mask": mask,
    }


def write_texts(batch: Mapping[str, Any]) -> list[str]:
    """Run the decoder by greedy search."""
    from tokenizers import Tokenizer

    output, step = FACTS["output"], load_graph("step")
    state = load_graph("encoder")(batch)
    limit = output["max_length"]
    limits = batch["mask"].sum(1) * limit["per_input_token"] + limit["constant"]
    ids = np.full(len(limits), output["begin"], np.int64)
    texts: list[list[int]] = [[] for _ in ids]
    open_rows = set(range(len(ids)))
    while open_rows:
        found = step({"ids": ids, **state})
        ids = found.pop("log_probs").argmax(1)
        state |= {name.removeprefix("next_"): part for name, part in found.items()}
        for row in [*open_rows]:
            if ids[row] != output["end"]:
                texts[row].append(int(ids[row]))
            if ids[row] == output["end"] or len(texts[row]) >= limits[row]:
                open_rows.remove(row)
    codec = Tokenizer.from_file(str(FOLDER / output["vocabulary"]))
    decoded = (codec.decode([i for i in text if i > 3], skip_special_tokens=False) for text in texts)
    return [text.removeprefix(" ") for text in decoded]


def answer(batch: Mapping[str, Any]) -> list[Any]:
    """Return the text of each example, or the probabilities of its labels."""
    if "step" in FACTS["graphs"]:
        return write_texts(batch)
    (found,) = load_graph("model")(batch).values()
    return found.tolist()


if ARGUMENTS[0].endswith(".npz"):
    with np.load(ARGUMENTS[0]) as file:
        arrays = dict(file)
    answers = [
        answer({name: arrays[f"{name}_{k}"] for name in ("values", "positions", "mask")})
        for k in range(len(arrays) // 3)
    ]
else:
    encode = ENCODERS[FACTS["input"]["class"]]
    answers = answer(stack([encode(argument, FACTS["input"]) for argument in ARGUMENTS]))
print(json.dumps(answers))
