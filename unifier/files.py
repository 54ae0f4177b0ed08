"""Writing a run's files, each whole or not at all.

Progress messages, which never stop a run."""

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


def is_recoverable(error: BaseException) -> bool:
    """Whether it is what a user can mend: a full disk, one not to be written, or a name that no file can have."""
    return isinstance(error, OSError) and error.errno in RECOVERABLE_ERRORS


def write_text(path: Path, text: str) -> None:
    """Write a text as `write_bytes` does."""
    # A file's name may be no UTF-8; what stands for its bytes is written as JSON would.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file under another name, then rename it, so that no reader finds half of it."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except BaseException:  # Ctrl-C too
        beside.unlink(missing_ok=True)
        raise


def to_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """A copy as it comes back from JSON; what that has no word for is text, infinity too ("inf"), as settings read."""
    return json.loads(json.dumps(content, default=str), parse_constant=lambda name: str(float(name)))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON of the content as `as_json` has it."""
    write_text(path, json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> None:
    """Write a CSV: the columns named, then those that rows have besides, in the order in which they come up."""
    file = io.StringIO(newline="")
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, file.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV that a run left. Raises InputError naming the file where it is none."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: broken ({error})") from error


def read_json(path: Path, **needed: type) -> dict[str, Any]:
    """Read JSON that a run left, an object with what is `needed`, each of its type.

    Raises InputError naming the file where it is missing or broken.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; is {path.parent} the folder of a run?") from None
    except ValueError as error:
        raise InputError(f"{path}: broken ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: broken (an object is expected)")
    if lacking := [name for name, kind in needed.items() if not isinstance(content.get(name), kind)]:
        raise InputError(f"{path}: broken (it lacks {', '.join(lacking)})")
    return content


def new_folder(parent: Path, label: str = "") -> Path:
    """Make a folder in `parent`, named as no other is, on whatever machine: by the time, what it is about, and chance.

    Raises InputError where none can be made.
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
    """Print a line at once, to standard output where nothing else is named.

    A reader that has gone away, such as `head`, or a full disk, ends no training.
    """
    with suppress(OSError):
        print(line, file=file, flush=True)
