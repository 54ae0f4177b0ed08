"""Functions that download data sets and check their hashes, and a reader of MNIST's idx files."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from unifier.data.source import data_folder
from unifier.data.text_files import open_decompressed
from unifier.folders import lock_temporary, remove_unlocked
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

TIMEOUT_SECONDS = 30
"""Number of seconds without data from the server after which a download fails."""

UNFINISHED = ".download-"
"""Prefix of the temporary folders of downloads."""

CHUNK_BYTES = 1 << 16
"""Number of bytes that are downloaded between two updates of the progress bar."""

MAX_AXES = 8
"""Largest number of axes in an idx file. Pictures have three axes."""

IdxArray = NDArray[np.uint8]


class RemoteFile(NamedTuple):
    """The expected size and hash of a downloaded file."""

    size: int
    """Size in bytes."""
    sha256: str


def ensure_files(name: str, base_url: str, files: Mapping[str, RemoteFile], data: str | Path | None = None) -> Path:
    """Return the folder of a data set. If the folder is in the user's cache, first download missing files.

    Args:
        name: Name of the data set.
        base_url: Common start of the files' URLs. A file's URL is `base_url` followed by the file's name.
        files: Mapping from each file's name to its expected size and hash.
        data: Folder given by the user, or None. Files are downloaded only into the user's cache.

    Raises:
        InputError: Files are missing and cannot be downloaded. The message contains the files' names and the folder.
    """
    folder = data_folder(name, data)
    if data is None and not os.environ.get("UNIFIER_DATA"):
        remove_unlocked(folder, UNFINISHED)
    if not (missing := [file for file in files if not (folder / file).is_file()]):
        return folder
    if data is not None or os.environ.get("UNIFIER_DATA"):
        raise InputError(
            f"{folder} has no {', '.join(missing)}: put {'it' if len(missing) == 1 else 'them'} there "
            f"from {base_url}, or give no data folder to download {name}"
        )
    for file in missing:
        try:
            download(f"{base_url}{file}", folder / file, files[file])
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()
            raise InputError(
                f"{name} could not be downloaded: {base_url}{file}: {one_line(error)}; "
                f"try again, or put {', '.join(missing)} into {folder}"
            ) from error
    return folder


def download(url: str, path: Path, expected: RemoteFile) -> None:
    """Download one file to `path`, with a progress bar if standard error is a terminal.

    The file is written to `path` only after its size and hash were checked. Raises OSError or HTTPException if the
    download fails. Raises ValueError if the size or hash of the file is wrong.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a terminal, the progress bar would still print a line end, which fails if standard error is closed.
    disable = not sys.stderr.isatty()
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
        TemporaryDirectory(dir=path.parent, prefix=UNFINISHED) as temporary,
        lock_temporary(Path(temporary)),
        Progress(*columns, console=Console(stderr=True), transient=True, disable=disable) as progress,
        urlopen(url, timeout=TIMEOUT_SECONDS) as response,
    ):
        task = progress.add_task(path.name, total=expected.size)
        part = Path(temporary) / path.name
        digest, size = sha256(), 0
        with part.open("wb") as file:
            while size <= expected.size and (chunk := response.read(CHUNK_BYTES)):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                progress.update(task, completed=size)
        if size != expected.size or digest.hexdigest() != expected.sha256:
            raise ValueError(f"the file does not have {expected.size:,} bytes and SHA-256 {expected.sha256[:16]}...")
        part.replace(path)


def require_file(name: str, folder: Path, files: Sequence[str], hint: str) -> None:
    """Raise InputError if files are missing in a folder. `hint` explains how to get the files."""
    if missing := [file for file in files if not (folder / file).exists()]:
        raise InputError(f"{name}: {folder} has no {', '.join(missing)}; {hint}")


def read_idx(path: Path) -> IdxArray:
    """Read the uint8 array in an idx file.

    An idx file begins with two zero bytes, the type (8 is uint8) and the number of axes. Then come the lengths of all
    axes, and the data. Source: the description on the home page of MNIST (LeCun, Cortes, Burges). Raises InputError if
    the format or size of the file is wrong.
    """
    with open_decompressed(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        start = file.read(4)
        if len(start) < 4 or start[:3] != b"\0\0\x08" or not 1 <= start[3] <= MAX_AXES:
            raise InputError(f"{path} is not an idx file of bytes with 1 to {MAX_AXES} axes: check the file")
        lengths = file.read(4 * start[3])
        shape = [int.from_bytes(lengths[i : i + 4], "big") for i in range(0, 4 * start[3], 4)]
        if size != 4 + 4 * start[3] + math.prod(shape) or 0 in shape:
            raise InputError(
                f"{path} should contain {' x '.join(map(str, shape))} bytes of data, but contains "
                f"{size - 4 - 4 * start[3]}: download the file again"
            )
        return np.frombuffer(file.read(), np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, names: Sequence[str]) -> tuple[IdxArray, list[str]]:
    """Read two idx files, and return the pictures (count, H, W) and the name of each picture's label.

    Args:
        images: File with the pictures.
        labels: File with the label index of each picture.
        names: Names of the labels 0, 1, 2, ...

    Raises:
        InputError: The files have different numbers of examples, or a label index has no name.
    """
    pixels, indices = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or indices.ndim != 1 or len(pixels) != len(indices):
        raise InputError(
            f"{images} contains an array {pixels.shape}, and {labels} an array {indices.shape}: "
            "(count, H, W) and (count,) are expected, so check that the two files belong together"
        )
    if indices.size and indices.max() >= len(names):
        raise InputError(f"{labels} contains label {indices.max()}: labels must be below {len(names)}")
    return pixels, [names[int(index)] for index in indices]
