"""Export of a trained model: a checked copy of its folder."""

import secrets
import shutil
from pathlib import Path
from typing import Literal, get_args

from unifier.models.folder import find_model, list_model_files
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

ExportFormat = Literal["folder"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)


def export_model(source: str | Path, target: str | Path, form: ExportFormat = "folder") -> Path:
    """Copy a trained model into a new folder, completely or not at all.

    Args:
        source: The folder of a run or of a model. Its files must have the hashes in config.json.
        target: The new folder, which may be an empty folder.
        form: The format of the copy.

    Returns:
        The new folder.

    Raises:
        InputError: The source is not a whole model, or the target cannot be created.
    """
    check_choice("format", form, EXPORT_FORMATS)
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
        for name in names:
            shutil.copyfile(folder / name, part / name)
        list_model_files(part)
        part.rename(target)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{target} cannot be created ({error.strerror}): give another folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target
