"""The folder of a model: config.json, the weights in model.safetensors, vocabularies, and a model card."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from unifier.data.dataloader import Objective, TestTimeAugmentation
from unifier.data.inputs import InputReader
from unifier.data.readers import hash_each
from unifier.files import read_json, write_bytes, write_sealed_json, write_text
from unifier.heads.head import Head
from unifier.models.config import ConfigReader, ConfigWriter, class_path, file_name
from unifier.models.hub import HUB, download_model
from unifier.network import Network, check_weights
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, SubwordTokenizer, Tokenizer, Vocabulary
from unifier_tokenizers.errors import one_line

MODEL_FOLDER = "model"
"""Name of the model's folder in the folder of a run."""

FORMAT = 1
"""Number of the format of config.json. A later version of unifier also reads all earlier formats."""

CONFIG_FILE, WEIGHTS_FILE, TENSORS_FILE, CARD_FILE = (
    "config.json",
    "model.safetensors",
    "tensors.safetensors",
    "README.md",
)


@final
@dataclass(frozen=True)
class ModelTask:
    """A task of a trained model: a tokenizer, a head, and the preparation of raw inputs."""

    tokenizer: Tokenizer
    head: Head
    reader: InputReader
    longest: int
    """Number of tokens of the longest training example."""
    tta: TestTimeAugmentation | None = None
    objective: Objective | None = None


@final
@dataclass(frozen=True)
class StoredModel:
    """The content of a model's folder."""

    name: str
    trunk: Trunk
    tasks: Mapping[str, ModelTask]
    batch_tokens: int
    """Number of tokens per batch of the training."""
    facts: Mapping[str, Any]
    """Scores, data, cost and versions of the run, for people."""
    sha256: str = ""
    """The hash of the weights, which is known after reading."""


def write_model(folder: Path, model: StoredModel, card: str) -> None:
    """Write a model's folder. The file config.json is written last, so a folder without it is incomplete.

    Args:
        folder: The folder, which is created.
        model: The trained model.
        card: The text of the model card.
    """
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    writer = ConfigWriter()
    config = {
        "format": FORMAT,
        "unifier": version("unifier-torch"),
        "name": model.name,
        "trunk": writer.encode(model.trunk, "trunk"),
        "tasks": {name: _encode_task(writer, name, task) for name, task in model.tasks.items()},
        "batch_tokens": model.batch_tokens,
        "facts": model.facts,
    }
    write_bytes(folder / WEIGHTS_FILE, save(distinct_weights(Network(model.trunk, model.tasks))))
    if writer.tensors:
        write_bytes(
            folder / TENSORS_FILE, save({name: part.cpu().contiguous() for name, part in writer.tensors.items()})
        )
    for name, stored in writer.files.items():
        stored.save(folder / name)
    files = {name: folder / name for name in (WEIGHTS_FILE, *([TENSORS_FILE] if writer.tensors else []), *writer.files)}
    write_text(folder / CARD_FILE, card)
    write_sealed_json(folder / CONFIG_FILE, {**config, "files": dict(hash_each(files))})


def _encode_task(writer: ConfigWriter, name: str, task: ModelTask) -> dict[str, Any]:
    parts = {"tokenizer": task.tokenizer, "head": task.head, "reader": task.reader, "tta": task.tta}
    parts |= {"objective": task.objective} if task.objective is not None else {}
    return {part: writer.encode(value, f"tasks.{name}.{part}") for part, value in parts.items()} | {
        "longest": task.longest
    }


def read_model(folder: Path, classes: Sequence[type] = ()) -> StoredModel:
    """Read a model's folder. No code in the folder is executed.

    Args:
        folder: The folder.
        classes: The caller's own classes, which are in no installed package.

    Raises:
        InputError: A file is missing or has changed, a class is unknown, or the weights do not fit the classes.
    """
    config = read_config(folder)
    tensors = _read_tensors(folder / TENSORS_FILE) if TENSORS_FILE in config["files"] else {}
    reader = ConfigReader(folder, tensors, classes)
    with torch.random.fork_rng(devices=[]):  # The random initial weights are replaced.
        try:
            trunk = _decode_as(Trunk, reader, config["trunk"], "trunk")
            tasks = {name: _decode_task(reader, name, content) for name, content in config["tasks"].items()}
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error
    _load_weights(folder, Network(trunk, tasks))
    name, batch_tokens, facts, files = (config[key] for key in ("name", "batch_tokens", "facts", "files"))
    return StoredModel(name, trunk, tasks, batch_tokens, facts, files[WEIGHTS_FILE])


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, after a check of the format and of the files that it lists.

    Raises:
        InputError: The folder is not a model's folder, its format is newer, or a file is missing or has changed.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"{folder}: not the folder of a model, because {CONFIG_FILE} is missing")
    config = read_json(folder / CONFIG_FILE)
    if config.get("format") not in range(1, FORMAT + 1):
        raise InputError(
            f"{folder / CONFIG_FILE}: format {config.get('format')!r} is not one of the formats 1 to {FORMAT}: "
            f"update unifier (the folder was written by version {config.get('unifier')})"
        )
    config = read_json(folder / CONFIG_FILE, name=str, trunk=dict, tasks=dict, batch_tokens=int, files=dict, facts=dict)
    if WEIGHTS_FILE not in config["files"]:
        raise InputError(f"{folder / CONFIG_FILE}: broken (files must contain the hash of {WEIGHTS_FILE})")
    check_files(folder, config["files"])
    return config


def read_vocabulary(folder: Path, task: str, kind: type[Tokenizer] = SubwordTokenizer) -> Vocabulary | None:
    """Return the vocabulary of a model's tokenizer of texts, or None if no task has such a tokenizer.

    Args:
        folder: The model's folder.
        task: The name of the task whose vocabulary is preferred.
        kind: The class of the tokenizer.

    Raises:
        InputError: See `read_config`.
    """
    tasks = sorted(read_config(folder)["tasks"].items(), key=lambda item: item[0] != task)
    try:
        tokenizers = [content["tokenizer"] for _, content in tasks]
        names = [
            tokenizer["arguments"]["vocabulary"]["file"]
            for tokenizer in tokenizers
            if tokenizer["class"] == class_path(kind)
        ]
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / CONFIG_FILE}: broken ({one_line(error)})") from error
    return Vocabulary.load(file_name(folder, names[0])) if names else None


def list_model_files(folder: Path) -> list[str]:
    """Return the names of a model's files, after the checks of `read_config`. Other files are left out."""
    card = [CARD_FILE] if (folder / CARD_FILE).is_file() else []
    return [*read_config(folder)["files"], *card, CONFIG_FILE]


def _decode_task(reader: ConfigReader, name: str, content: object) -> ModelTask:
    longest = content.get("longest") if isinstance(content, dict) else None
    if not isinstance(content, dict) or type(longest) is not int or longest < 1:
        raise InputError(f"tasks.{name}: broken (longest must be the number of tokens of the longest example)")
    types = {
        "tokenizer": Tokenizer,
        "head": Head,
        "reader": InputReader,
        "tta": TestTimeAugmentation | None,
        "objective": Objective | None,
    }
    parts = {part: _decode_as(kind, reader, content.get(part), f"tasks.{name}.{part}") for part, kind in types.items()}
    return ModelTask(**parts, longest=longest)


def _decode_as(kind: Any, reader: ConfigReader, content: object, path: str) -> Any:
    """Decode a part, and raise InputError if the part is of another class than `kind`."""
    part = reader.decode(content, path)
    if not isinstance(part, kind):
        raise InputError(f"{path}: broken (a {type(part).__name__} cannot be this part of a model)")
    return part


def find_model(source: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a model: the folder itself, the folder of the model in a run, or a download from the hub.

    Args:
        source: The folder of a model or of a run, or hub:USER/NAME.
        revision: A branch, a tag or a commit on the hub. None means the main branch.

    Raises:
        InputError: The folder is missing, the run has no model, or the model cannot be downloaded.
    """
    if str(source).startswith(HUB):
        return download_model(str(source), revision)
    if revision is not None:
        raise InputError(f"revision={revision}: only a model on the hub, {HUB}USER/NAME, has revisions")
    folder = Path(source).absolute()
    if (folder / "settings.json").exists():
        if not (folder / MODEL_FOLDER).is_dir():
            raise InputError(f"{folder}: the run has no model yet; continue the run with --resume {folder}")
        return folder / MODEL_FOLDER
    return folder


def find_earlier_model(source: str) -> Path:
    """Return the folder of a model that a run uses, such as `start`. A model on the hub is looked up once per run.

    All parts of a run therefore read the same version of the model. See `find_model` for the argument and the error.
    """
    return _download_once(source) if source.startswith(HUB) else find_model(source)


@cache
def _download_once(source: str) -> Path:
    return download_model(source)


def forget_downloads() -> None:
    """Let the next call of `find_earlier_model` look up the models on the hub again."""
    _download_once.cache_clear()


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raise InputError if a file of the folder is missing or has another hash than in config.json."""
    found = hash_each({name: file_name(folder, name) for name in hashes if file_name(folder, name).is_file()})
    for name, digest in hashes.items():
        if found.get(name) != digest:
            fault = "is missing" if name not in found else "has changed since it was written"
            raise InputError(f"{folder / name} {fault}: copy the model's folder again")


def distinct_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a network on the CPU. A tied weight has only its first name."""
    names: dict[tuple[Any, ...], str] = {}
    state = network.state_dict()
    for name, weight in state.items():
        names.setdefault((weight.data_ptr(), weight.shape, weight.stride()) if weight.numel() else (name,), name)
    return {name: state[name].cpu().contiguous() for name in names.values()}


def _load_weights(folder: Path, network: nn.Module) -> None:
    weights, expected = _read_tensors(folder / WEIGHTS_FILE), distinct_weights(network)
    for name in sorted(weights.keys() ^ expected.keys()):
        fault = "is missing" if name in expected else "is not expected"
        raise InputError(f"{folder / WEIGHTS_FILE}: the weight {name} {fault}: the model's classes have changed")
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            raise InputError(
                f"{folder / WEIGHTS_FILE}: the weight {name} has the shape {tuple(weight.shape)}, "
                f"but the model's classes need {tuple(expected[name].shape)}"
            )
    check_weights(network, weights, folder / WEIGHTS_FILE)
    network.load_state_dict(weights, strict=False)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
