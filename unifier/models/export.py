"""Export of a trained model: a checked copy of its folder, or graphs that run without unifier."""

import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from unifier.models.folder import find_model, list_model_files, read_model
from unifier.models.graph_folder import write_graphs
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

ExportFormat = Literal["folder", "torch", "onnx"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)


def export_model(
    source: str | Path,
    target: str | Path,
    form: ExportFormat = "folder",
    *,
    task: str | None = None,
    classes: Sequence[type] = (),
) -> Path:
    """Write a trained model into a new folder, completely or not at all.

    Args:
        source: The folder of a run or of a model. Its files must have the hashes in config.json.
        target: The new folder, which may be an empty folder.
        form: "folder" copies the model's folder. "torch" and "onnx" write graphs (see `write_graphs`).
        task: The task of a graph. The name is required if the model has several tasks.
        classes: The caller's own classes of a graph's model, which are in no installed package.

    Returns:
        The new folder.

    Raises:
        InputError: The source is not a whole model, the target cannot be created, or the model has no graph.
    """
    form = check_choice("format", form, EXPORT_FORMATS)
    if form == "folder" and task is not None:
        raise InputError(f"task={task}: a folder contains all tasks; leave out the task, or choose a format of graphs")
    folder, target = find_model(source), Path(target).absolute()
    names = list_model_files(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} already exists and is not an empty folder: give another folder")
    if folder in target.parents:
        raise InputError(f"{target} is in the folder of the model itself: give another folder")
    part = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        if form == "folder":
            for name in names:
                shutil.copyfile(folder / name, part / name)
            list_model_files(part)
        else:
            write_graphs(read_model(folder, classes), part, form, task)
        part.rename(target)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{target} cannot be created ({error.strerror}): give another folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target
