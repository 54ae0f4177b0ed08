"""Archives: the files in there as if they lay in folders, and one line for what is no archive."""

import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.data.readers import read_archive, read_audio, read_image
from unifier_tokenizers import InputError


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz", "tar.xz"])
def test_pictures_and_sounds_are_read_as_from_a_folder(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)).save(folder / "a.png")
    soundfile.write(folder / "b.wav", np.linspace(-0.5, 0.5, 50), 8000)
    (folder / "broken.wav").write_bytes((folder / "b.wav").read_bytes()[:60])
    path = tmp_path / f"packed.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.mkdir("some")
            for file in folder.iterdir():
                archive.write(file, f"some/{file.name}")
    else:
        with tarfile.open(tmp_path / "plain", "w") as archive:
            archive.add(folder, "some")
        plain = (tmp_path / "plain").read_bytes()
        path.write_bytes({"tar": bytes, "tar.gz": gzip.compress, "tar.xz": lzma.compress}[ending](plain))
    packed = read_archive(path)
    assert packed == {path / "some" / file.name: file.read_bytes() for file in folder.iterdir()}
    assert (read_image(path / "some" / "a.png", archive=packed) == read_image(folder / "a.png")).all()
    there, here = (read_audio(path / "some" / "b.wav", packed), read_audio(folder / "b.wav"))
    assert there.sample_rate == here.sample_rate
    assert np.array_equal(there.waveform, here.waveform)
    with pytest.raises(InputError, match=rf"packed\.{ending}/some/broken\.wav cannot be read as a sound: the file is"):
        read_audio(path / "some" / "broken.wav", packed)
    with pytest.raises(InputError, match=r"none\.wav cannot be read as a sound: no such file"):
        read_audio(path / "some" / "none.wav", packed)


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a", bytes(1000))
    (tmp_path / "cut.zip").write_bytes(content.getvalue()[:500])
    (tmp_path / "page.zip").write_text("<html>")
    (tmp_path / "page.tar.xz").write_text("<html>")
    for name in ("cut.zip", "page.zip", "page.tar.xz", "."):
        with pytest.raises(InputError, match="cannot be read as an archive") as error:
            read_archive(tmp_path / name)
        assert "\n" not in str(error.value)
    for name in ("none.zip", "none.tar.xz"):
        with pytest.raises(InputError, match="no such file"):
            read_archive(tmp_path / name)
