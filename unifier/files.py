"""Functions that read and write a run's files and print status messages. Files are written completely or not at all."""

import csv
import errno
import fcntl
import io
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

RECOVERABLE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.EAGAIN,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
}
"""Error numbers of problems that a user can solve, such as no space, no permission, a long name or a limit."""


def is_recoverable(error: BaseException) -> bool:
    """Return True if a user can solve the problem, such as a full or read-only disk."""
    return isinstance(error, OSError) and error.errno in RECOVERABLE_ERRORS


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading.

    Raises InputError if the file is missing or cannot be opened. The error is also raised for a pipe, a device or a
    folder, because reading from a pipe or a device may never end.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # A file name with a NUL byte raises ValueError.
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{path} is not a regular file: give a file, not a pipe, a device or a folder")
    return file


def write_text(path: Path, text: str) -> None:
    """Write a text to a file as UTF-8, completely or not at all."""
    # The text may contain file names with bytes that are not UTF-8. These bytes are written as escapes.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a temporary file and then rename it. Other programs therefore never read an incomplete file."""
    with create_temporary(path) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            temporary.replace(path)
        except BaseException:  # KeyboardInterrupt must remove the temporary file too.
            temporary.unlink(missing_ok=True)
            raise


def create_temporary(path: Path) -> io.BufferedWriter:
    """Create a hidden file with a random name beside `path` for writing, and delete the files of killed processes.

    An existing file or link is never opened, because another user may have created it in a shared folder. Each file is
    locked by its process. A file without a lock therefore belongs to a process that was killed.
    """
    for leftover in path.parent.glob(".*.part"):
        with suppress(OSError), open_regular(leftover) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()
    while True:
        file = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.part").open("xb")
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # Another process deleted the file before the file was locked.


def to_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the content to JSON types: dictionaries, lists, texts, numbers, booleans and None.

    Objects of other types become texts. Infinity and NaN become "inf" and "nan", as in settings.
    """
    return json.loads(json.dumps(content, default=str), parse_constant=lambda name: str(float(name)))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Convert the content with `to_json`, and write it to a JSON file."""
    write_text(path, json.dumps(to_json(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> None:
    """Write rows to a CSV file. The given columns come first. Other keys follow in the order of their first use."""
    lines = list[str]()
    output: Any = SimpleNamespace(write=lines.append)
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    # Python quotes a cell with a carriage return only if the line terminator contains a carriage return.
    writer = csv.DictWriter(output, names, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, "".join(f"{line[:-2]}\n" for line in lines))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a run's CSV file. Raises InputError if the file is not valid."""
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
        InputError: The file does not exist, is not a JSON object, or has no value of the expected type for a key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; check that {path.parent} is the folder of a run") from None
    except ValueError as error:
        raise InputError(f"{path}: broken ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: broken (a JSON object is expected)")
    if missing := [name for name, kind in required.items() if not isinstance(content.get(name), kind)]:
        raise InputError(f"{path}: broken (it lacks {', '.join(missing)})")
    return content


def new_folder(parent: Path, label: str = "") -> Path:
    """Create a folder with a unique name in `parent`. The name consists of the time, the label and a random number.

    Raises InputError if the folder cannot be created.
    """
    folder = parent / "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S"), label, secrets.token_hex(2))))
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        if folder.exists():
            return new_folder(parent, label)
        raise InputError(f"{parent}: the target of this link does not exist; give another folder with --out") from error
    except (PermissionError, NotADirectoryError, FileNotFoundError) as error:
        raise InputError(
            f"{parent}: no folder can be created there ({error.strerror}); give another folder with --out"
        ) from error
    return folder


LOCK_FILE = ".lock"
"""Name of the empty file in the folder of a run or a comparison whose lock belongs to the process that writes there."""

_lock_files = set[TextIO]()
# A worker process must not keep the lock of a killed run.
os.register_at_fork(after_in_child=lambda: [file.close() for file in _lock_files])


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Hold the lock of a run's or a comparison's folder. The system releases the lock of a killed process.

    A folder that cannot be written, or whose file system has no locks, is not locked.

    Raises:
        InputError: Another process holds the lock.
    """
    try:
        file = (folder / LOCK_FILE).open("a")
    except OSError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another process is writing this run; wait for the end of the process, or stop it"
            ) from None
        except OSError:
            pass
        _lock_files.add(file)
        try:
            yield
        finally:
            _lock_files.remove(file)


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that move the cursor, change the direction of text, or are not allowed in XML."""

MAX_MESSAGE = 500
"""Maximum length of a warning or an error in characters. The middle of a longer message is left out."""


def printable(text: object, keep: str = "") -> str:
    """Return a text with escapes in place of control characters, such as "\\x1b" for a terminal's escape.

    Args:
        text: The text, or an object that is converted to a text.
        keep: Control characters that are not replaced.
    """
    return CONTROL.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], str(text))


def print_status(line: str, file: TextIO | None = None) -> None:
    """Print a line and flush it. Control characters are escaped, and a long message to `file` is shortened.

    If the output cannot be written, for example because a pipe is closed, the error is ignored and training continues.

    Args:
        line: The line.
        file: The output for a warning or an error. The default is standard output, for other lines.
    """
    line = printable(line, keep="\t")
    if file and len(line) > MAX_MESSAGE:
        line = f"{line[: MAX_MESSAGE * 3 // 5]} … {line[-MAX_MESSAGE * 2 // 5 :]}"
    with suppress(OSError):
        print(line, file=file, flush=True)


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as "40 s", "12 min" or "2 h 05 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
