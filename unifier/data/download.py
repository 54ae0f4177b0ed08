"""Download and verification of data sets, and the idx file format of MNIST."""

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
"""Seconds without a response after which a download fails."""

CHUNK_BYTES = 1 << 16
"""Bytes per step of the progress bar."""

IdxArray = NDArray[np.uint8]


class RemoteFile(NamedTuple):
    """The size and hash that a downloaded file must have."""

    size: int
    """Size in bytes."""
    sha256: str


def ensure_files(name: str, base_url: str, files: Mapping[str, RemoteFile], data: str | Path | None = None) -> Path:
    """Return the folder of a data set after downloading its missing files into the user's cache.

    Args:
        name: Name of the data set.
        base_url: Address to which a file's name is appended.
        files: The expected size and hash of each file, by name.
        data: Folder that the user gave. Nothing is downloaded into it, nor into a folder given by `--data`.

    Raises:
        InputError: Files are missing and cannot be downloaded. The message names the files and their folder.
    """
    folder = data_folder(name, data)
    if not (missing := [file for file in files if not (folder / file).is_file()]):
        return folder
    if data is not None or os.environ.get("UNIFIER_DATA"):
        raise InputError(
            f"{folder} has no {', '.join(missing)}: put {'it' if len(missing) == 1 else 'them'} there "
            f"from {base_url}, or name no data folder to download {name}"
        )
    for file in missing:
        try:
            download(f"{base_url}{file}", folder / file, files[file])
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()
            raise InputError(
                f"{name} could not be downloaded: {base_url}{file}: {one_line(error)}; "
                f"put {', '.join(missing)} into {folder}"
            ) from error
    return folder


def download(url: str, path: Path, expected: RemoteFile) -> None:
    """Download one file to `path`, with a progress bar if standard error is a terminal.

    The file appears at `path` complete and verified, or not at all. Raises OSError, HTTPException, or ValueError if
    the content is not the expected one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a terminal the bar would still print a line end, which fails on a closed pipe.
    disable = not sys.stderr.isatty()
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with (
        TemporaryDirectory(dir=path.parent, prefix=".download-") as temporary,
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
            raise ValueError(f"not the expected {expected.size:,} bytes of SHA-256 {expected.sha256[:16]}...")
        part.replace(path)


def require_file(name: str, folder: Path, files: Sequence[str], hint: str) -> None:
    """Raise InputError with a hint if a folder lacks files of a data set that cannot be downloaded."""
    if missing := [file for file in files if not (folder / file).exists()]:
        raise InputError(f"{name}: {folder} has no {', '.join(missing)}; {hint}")


def read_idx(path: Path) -> IdxArray:
    """Return the array in an idx file of bytes.

    The format is two zero bytes, the type (8 is uint8), the number of axes, their lengths, and the data. Source: the
    description on the home page of MNIST (LeCun, Cortes, Burges). Raises InputError for other contents.
    """
    with open_decompressed(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path} is not an idx file of bytes")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise InputError(f"{path} promises {' x '.join(map(str, shape))} bytes and holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_idx_pair(images: Path, labels: Path, names: Sequence[str]) -> tuple[IdxArray, list[str]]:
    """Return pictures (count, H, W) and each picture's label name, from two idx files.

    Args:
        images: File of the pictures.
        labels: File of the label numbers.
        names: Name of each label number.

    Raises:
        InputError: The files do not match, or a label number has no name.
    """
    pixels, indices = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or indices.ndim != 1 or len(pixels) != len(indices):
        raise InputError(
            f"{images} holds an array {pixels.shape} and {labels} {indices.shape}: they do not fit each other"
        )
    if indices.size and indices.max() >= len(names):
        raise InputError(f"{labels} holds label {indices.max()}: there are {len(names)}, from 0")
    return pixels, [names[int(index)] for index in indices]
