"""Downloading a data set into the user's cache, and verifying it.

The idx format of MNIST and its kin: pictures in one file, labels in another."""

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
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

TIMEOUT_SECONDS = 30
"""Seconds a home may be silent."""


CHUNK_BYTES = 1 << 16
"""Bytes between two steps of the progress bar."""


class RemoteFile(NamedTuple):
    """What a file must be, once it is here."""

    size: int
    """In bytes."""
    sha256: str


def ensure_files(name: str, base_url: str, files: Mapping[str, RemoteFile], data: str | Path | None = None) -> Path:
    """The folder of the data set `name`, with all `files` in it.

    `home` is the address that a file's name follows. Files that lack are downloaded into the user's cache; a folder
    that the user named (`data`, `--data`) is never written to. Raises InputError, saying which files to put where.
    """
    folder = data_folder(name, data)
    if not (lacking := [file for file in files if not (folder / file).is_file()]):
        return folder
    if data is not None or os.environ.get("UNIFIER_DATA"):
        raise InputError(
            f"{folder} has no {', '.join(lacking)}: put {'it' if len(lacking) == 1 else 'them'} there "
            f"from {base_url}, or name no data folder to download {name}"
        )
    for file in lacking:
        try:
            download(f"{base_url}{file}", folder / file, files[file])
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()
            raise InputError(
                f"{name} could not be downloaded: {base_url}{file}: {one_line(error)}; "
                f"put {', '.join(lacking)} into {folder}"
            ) from error
    return folder


def download(url: str, path: Path, expected: RemoteFile) -> None:
    """Bring one file to `path`, with a progress bar where standard error is a terminal.

    It appears there whole and checked, or not at all. Raises OSError, HTTPException, and ValueError for other contents
    than expected.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unseen = not sys.stderr.isatty()  # it would still end a line there, and the program where nobody reads
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
        TemporaryDirectory(dir=path.parent, prefix=".download-") as temporary,
        Progress(*columns, console=Console(stderr=True), transient=True, disable=unseen) as progress,
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
            raise ValueError(f"not the expected {expected.size:,} bytes of SHA-256 {expected.sha256[:16]}...")
        part.replace(path)


def require_file(name: str, folder: Path, files: Sequence[str], hint: str) -> None:
    """Raise InputError with `advice` where the folder of a data set that has no home to download from lacks files."""
    if lacking := [file for file in files if not (folder / file).exists()]:
        raise InputError(f"{name}: {folder} has no {', '.join(lacking)}; {hint}")


IdxArray = NDArray[np.uint8]


def read_idx(path: Path) -> IdxArray:
    """An idx file of bytes as an array: two zeros, the type (8 is uint8), the number of axes, their lengths, the data.

    Source: the description of the format at the home of MNIST (LeCun, Cortes, Burges). Raises InputError.
    """
    with open_decompressed(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path} is no idx file of bytes")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise InputError(f"{path} promises {' x '.join(map(str, shape))} bytes and holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_idx_pair(images: Path, labels: Path, names: Sequence[str]) -> tuple[IdxArray, list[str]]:
    """Pictures (count, H, W) and the name of each one's label; raises InputError where the two files do not fit."""
    pixels, indices = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or indices.ndim != 1 or len(pixels) != len(indices):
        raise InputError(
            f"{images} holds an array {pixels.shape} and {labels} {indices.shape}: they do not fit each other"
        )
    if indices.size and indices.max() >= len(names):
        raise InputError(f"{labels} holds label {indices.max()}: there are {len(names)}, from 0")
    return pixels, [names[int(index)] for index in indices]
