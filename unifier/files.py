"""Reading and writing a run's files, and status messages. A file is written completely or not at all."""

import csv
import errno
import io
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from unifier_tokenizers import InputError

RECOVERABLE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
}
"""Error numbers that a user can repair: no space, no permission, a read-only disk, or a name that is too long."""


def is_recoverable(error: BaseException) -> bool:
    """Return True if a user can repair the error's cause, such as a full or read-only disk."""
    return isinstance(error, OSError) and error.errno in RECOVERABLE_ERRORS


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8 with `write_bytes`."""
    # A file name may contain bytes that are not UTF-8. Python's surrogates for them are written as escapes.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a temporary file and rename it, so that no reader sees an incomplete file."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:  # KeyboardInterrupt must remove the temporary file too.
        temporary.unlink(missing_ok=True)
        raise


def to_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the content as JSON would load it.

    Objects without a JSON form become text. Infinity and NaN become "inf" and "nan", as settings spell them.
    """
    return json.loads(json.dumps(content, default=str), parse_constant=lambda name: str(float(name)))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content as JSON, converted by `to_json`."""
    write_text(path, json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> None:
    """Write a CSV file: first the named columns, then the rows' other keys in the order of their first use."""
    file = io.StringIO(newline="")
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, file.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a run's CSV file. Raises InputError with the file's name if it is broken."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: broken ({error})") from error


def read_json(path: Path, **required: type) -> dict[str, Any]:
    """Return the object in a run's JSON file.

    Args:
        path: The file.
        **required: Keys that the object must have, each with the type of its value.

    Raises:
        InputError: The file is missing, is not a JSON object, or lacks a required key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; is {path.parent} the folder of a run?") from None
    except ValueError as error:
        raise InputError(f"{path}: broken ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: broken (an object is expected)")
    if missing := [name for name, kind in required.items() if not isinstance(content.get(name), kind)]:
        raise InputError(f"{path}: broken (it lacks {', '.join(missing)})")
    return content


def new_folder(parent: Path, label: str = "") -> Path:
    """Create a folder in `parent` with a unique name, made of the time, the label and a random number.

    Raises InputError if the folder cannot be created.
    """
    folder = parent / "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S"), label, secrets.token_hex(2))))
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        if folder.exists():
            return new_folder(parent, label)
        raise InputError(f"{parent}: a link to nowhere; give another folder with --out") from error
    except (PermissionError, NotADirectoryError, FileNotFoundError) as error:
        raise InputError(f"{parent}: cannot be written ({error.strerror}); give another folder with --out") from error
    return folder


def print_status(line: str, file: TextIO | None = None) -> None:
    """Print a line and flush it, to standard output by default.

    An output that cannot be written to, such as a closed pipe or a full disk, does not stop training.
    """
    with suppress(OSError):
        print(line, file=file, flush=True)
