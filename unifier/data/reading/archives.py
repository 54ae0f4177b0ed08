"""Files in a tar or zip archive, read without unpacking it."""

import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

_UNREADABLE = (OSError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


def read_archive(path: Path) -> dict[Path, bytes]:
    """The contents of every file in a .zip or a tar, packed or not, in its order: by `path` / its name in there.

    Raises InputError where the archive cannot be read.
    """
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return {path / one.filename: archive.read(one) for one in archive.infolist() if not one.is_dir()}
        with tarfile.open(path) as archive:
            streams = ((one.name, archive.extractfile(one)) for one in archive if one.isfile())
            return {path / name: stream.read() for name, stream in streams if stream is not None}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as an archive: {one_line(error)}") from error
