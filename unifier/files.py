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
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from unifier.distributed import is_main
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

RECOVERABLE_ERRORS = {
    errno.ENOSPC,
    errno.ENOMEM,
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

MAX_FILE_BYTES = 40_000_000
"""Maximum size of a result file in bytes. In memory, a file can take 25 times its size."""

HASHES_FILE = "hashes.json"
"""A run's file with the SHA-256 hash of each file that the run wrote for its report."""

SEAL = "sha256"
"""The last key of a sealed JSON file. Its value is the SHA-256 hash of the file without this value."""

MAX_DEPTH = 100
"""Maximum nesting depth of a JSON file. Python's recursion ends at a depth of about 500."""

CHANGED = "broken (its SHA-256 hash has changed); restore the file, or to keep an edit, delete"
"""The fault of a file with another hash than the recorded hash. The entry that contains the hash follows."""


def check_output_folder(folder: Path) -> None:
    """Raise InputError if the path of an output folder, or of a parent folder, is a file."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: choose another folder for the output")


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


def find_files_named(folder: Path, *names: str) -> list[Path]:
    """Return the files with these names in a folder and in its subfolders, sorted by path.

    Links to folders are not followed. Folders that vanish during the search are left out.
    """
    found = ((Path(path), name) for path, _, files in os.walk(folder) for name in names if name in files)
    return sorted(path / name for path, name in found)


def write_text(path: Path, text: str) -> None:
    """Write a text to a file as UTF-8, completely or not at all."""
    write_bytes(path, _encode(text))


def _encode(text: str) -> bytes:
    """Encode a text as UTF-8. The text may contain file names that are not UTF-8, whose bytes become escapes."""
    return text.encode(errors="backslashreplace")


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a temporary file and then rename it. Other programs therefore never read an incomplete file."""
    try:
        with create_temporary(path) as file:
            temporary = Path(file.name)
            try:
                file.write(content)
                file.flush()
                temporary.replace(path)
            except BaseException:  # KeyboardInterrupt must remove the temporary file too.
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        error.filename = error.filename or str(path)  # Python names no file on a full disk.
        raise


def create_temporary(path: Path) -> io.BufferedWriter:
    """Create a hidden file with a random name beside `path` for writing, and delete the files of killed processes.

    An existing file or link is never opened, because another user may have created it in a shared folder. Each file is
    locked by its process. A file without a lock therefore belongs to a process that was killed.
    """
    _delete_leftovers(path.parent)
    while True:
        file = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.part").open("xb")
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # Another process deleted the file before the file was locked.


@cache  # A folder of many files would take long to list at each write.
def _delete_leftovers(folder: Path) -> None:
    for leftover in folder.glob(".*.part"):
        with suppress(OSError, InputError), open_regular(leftover) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def to_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the content to JSON types: dictionaries, lists, texts, numbers, booleans and None.

    Objects of other types become texts. Infinity and NaN become "inf" and "nan", as in settings.
    """
    return json.loads(json.dumps(content, default=str), parse_constant=lambda name: str(float(name)))


def _format_json(content: Mapping[str, Any]) -> bytes:
    return _encode(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Convert the content with `to_json`, and write it to a JSON file."""
    write_bytes(path, _format_json(to_json(content)))


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


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file like `write_json`, with the SHA-256 hash of all other bytes of the file as its last entry."""
    write_bytes(path, seal_json(content))


def seal_json(content: Mapping[str, Any]) -> bytes:
    """Return the content of a sealed JSON file; see `write_sealed_json`."""
    entries = {name: value for name, value in to_json(content).items() if name != SEAL}
    unsealed = _format_json({**entries, SEAL: ""})
    digest = sha256(unsealed).hexdigest().encode()
    end = b'"\n}\n'
    return unsealed.removesuffix(end) + digest + end


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file that a run or a comparison wrote.

    Raises:
        InputError: The file is missing, is larger than `max_bytes`, or has another hash than in hashes.json.
    """
    content = _read_limited(path, max_bytes)
    recorded = recorded_hashes(path.parent).get(path.name)
    if recorded is not None and recorded != sha256(content).hexdigest():
        raise InputError(f"{path}: {CHANGED} its entry in {HASHES_FILE}")
    return content


def recorded_hashes(folder: Path) -> dict[str, Any]:
    """Return a mapping from file name to hash for a run's folder or its folder `figures`, from hashes.json."""
    run, prefix = (folder.parent, "figures/") if folder.name == "figures" else (folder, "")
    stored = run / HASHES_FILE
    hashes = parse_json(stored, _read_limited(stored)) if stored.exists() else {}
    return {name.removeprefix(prefix): digest for name, digest in hashes.items() if name.startswith(prefix)}


def _read_limited(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise InputError(f"{path}: broken (it is larger than {max_bytes // 10**6:,} MB, the limit of a result file)")
    return content


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a run's CSV file. Raises InputError if the file is not valid."""
    content = read_bytes(path)
    if not content.strip():
        raise InputError(f"{path}: broken (the file is empty)")
    try:
        csv.field_size_limit(MAX_FILE_BYTES)
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: broken ({one_line(error)})") from error
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise InputError(f"{path}: broken (row {number} has more or fewer cells than the first line)")
    return rows


def read_json(path: Path, **required: type) -> dict[str, Any]:
    """Return the object in a JSON file of a run or a comparison, without its hash.

    Args:
        path: The file.
        **required: Keys that the object must have, each with the type of its value.

    Raises:
        InputError: The file does not exist, has changed since it was written, is not a JSON object, or has no value of
            the expected type for a key.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file; check that {path.parent} is the folder of a run")
    return parse_json(path, read_bytes(path), **required)


def parse_json(path: Path | str, data: bytes, **required: type) -> dict[str, Any]:
    """Return the object in the bytes of a JSON file. `path` is for error messages (see `read_json`)."""
    try:
        content = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise InputError(f"{path}: broken (nested too deeply)") from None
    except ValueError as error:
        raise InputError(f"{path}: broken ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: broken (a JSON object is expected)")
    if _is_deep(content):
        raise InputError(f"{path}: broken (nested too deeply)")
    if isinstance(digest := content.get(SEAL), str):
        if sha256(data.replace(digest.encode(errors="replace"), b"")).hexdigest() != digest:
            raise InputError(f'{path}: {CHANGED} its last entry "{SEAL}"')
        del content[SEAL]
    if missing := [name for name, kind in required.items() if not isinstance(content.get(name), kind)]:
        raise InputError(f"{path}: broken (it lacks {', '.join(missing)})")
    return content


def _is_deep(content: Any) -> bool:
    """Return True if lists and objects are nested in more than `MAX_DEPTH` levels."""
    level = [content]
    for _ in range(MAX_DEPTH):
        parts = chain.from_iterable(part.values() if isinstance(part, dict) else part for part in level)
        level = [part for part in parts if isinstance(part, dict | list)]
    return bool(level)


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

    If several processes train together, only rank 0 prints.

    If the output cannot be written, for example because a pipe is closed, the error is ignored and training continues.

    Args:
        line: The line.
        file: The output for a warning or an error. The default is standard output, for other lines.
    """
    if not is_main():
        return
    line = printable(line, keep="\t")
    if file and len(line) > MAX_MESSAGE:
        line = f"{line[: MAX_MESSAGE * 3 // 5]} … {line[-MAX_MESSAGE * 2 // 5 :]}"
    with suppress(OSError):
        print(line, file=file, flush=True)


def print_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning in one line. The function replaces `warnings.showwarning`."""
    print_status(f"warning: {message}", sys.stderr)


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as "40 s", "12 min" or "2 h 05 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
