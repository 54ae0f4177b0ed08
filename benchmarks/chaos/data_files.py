"""Small valid data files of every format, with the function that reads each file and an independent reader."""

import bz2
import csv
import gzip
import io
import lzma
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np
import soundfile
from PIL import Image

from benchmarks.chaos.mutations import Mutator, mutate_bytes, mutate_json_file, mutate_table
from benchmarks.chaos.subject import Subject, agree
from unifier.data.audio_files import read_audio
from unifier.data.dataset import open_split
from unifier.data.image_files import read_image
from unifier.data.readers import read_archive
from unifier.data.source import SPLITS, Source
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.cifar10 import CIFAR10
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.mnist import MNIST, MNIST_FILES
from unifier.datasets.parallel_text import ParallelText
from unifier.datasets.text_classification import TREC, TextTable
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, Vocabulary
from unifier_tokenizers.word_vectors import load_vectors

PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (gzip.compress, gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".xz": (lzma.compress, lzma.decompress),
}


def data_subjects(folder: Path) -> list[Subject]:
    """Write the files below a folder, and return a subject for each format."""
    folder.mkdir()
    return [*_pictures(folder), *_sounds(folder), *_texts(folder), *_tables(folder), *_archives(folder)]


def _pictures(folder: Path) -> Iterator[Subject]:
    generator = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(0, 240, 8), np.arange(0, 240, 10)).astype(np.uint8)
    color = Image.fromarray(np.stack([smooth, smooth.T[:24].repeat(2, 0)[:30, :24], 255 - smooth], 2))
    noise = Image.fromarray(generator.integers(0, 256, (30, 24, 3), np.uint8))
    gray16 = Image.fromarray(generator.integers(0, 2**16, (30, 24)).astype(np.uint16))
    clear = color.convert("RGBA")
    clear.putalpha(noise.getchannel(0))
    palette = noise.quantize(16)
    kinds: dict[str, list[tuple[Image.Image, dict[str, Any]]]] = {
        "png": [(color, {}), (gray16, {}), (clear, {}), (palette, {"transparency": 3})],
        "jpg": [(color, {}), (color, {"progressive": True}), (noise.convert("L"), {}), (color.convert("CMYK"), {})],
        "tif": [(noise, {}), (gray16, {}), (color, {"compression": "tiff_lzw"}), (color, {"compression": "jpeg"})],
        "tga": [(noise, {}), (color, {"compression": "tga_rle"}), (clear, {}), (palette, {})],
        "bmp": [(noise, {}), (palette, {}), (noise.convert("1"), {}), (clear, {})],
        "gif": [(palette, {}), (palette, {"save_all": True, "append_images": [palette]}), (color.convert("L"), {})],
        "webp": [(color, {}), (noise, {"lossless": True}), (clear, {})],
        "ppm": [(noise, {}), (color.convert("L"), {}), (noise.convert("1"), {})],
        "jp2": [(color, {}), (noise, {"irreversible": True})],
        "avif": [(color, {}), (clear, {})],
    }
    for suffix, variants in kinds.items():
        contents = [_saved(image, suffix, options) for image, options in variants]
        path = folder / f"picture.{suffix}"
        mutate = _mutate_png if suffix == "png" else mutate_bytes
        yield Subject(suffix, path, contents, partial(_read_picture, path), mutate, detects_cuts=True)


def _saved(image: Image.Image, suffix: str, options: Mapping[str, Any]) -> bytes:
    content = io.BytesIO()
    Image.init()
    image.save(content, Image.EXTENSION[f".{suffix}"], **options)
    return content.getvalue()


def _read_picture(path: Path) -> Any:
    pixels = read_image(path)
    with suppress(InputError):
        PatchTokenizer(8, positions="sinusoid").encode(pixels)
    return pixels


def _mutate_png(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Mutate the bytes, or the content of a chunk with a new checksum, which reaches the code behind the checks."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, content)
    chunks, at = list[tuple[bytes, bytes]](), 8
    while at < len(content):
        size = int.from_bytes(content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    k = rng.choice([k for k, (_, data) in enumerate(chunks) if data])
    kind, data = chunks[k]
    if kind == b"IDAT":
        name, data = mutate_bytes(rng, zlib.decompress(data))
        data = zlib.compress(data)
    else:
        name, data = mutate_bytes(rng, data)
    chunks[k] = kind, data
    packed = b"".join(
        len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4) for kind, data in chunks
    )
    return f"{name} in the chunk {kind.decode()}", content[:8] + packed


SOUND_KINDS: dict[str, list[tuple[str, str]]] = {
    "wav": [("WAV", "PCM_16"), ("WAVEX", "FLOAT"), ("WAV", "MS_ADPCM"), ("WAV", "ULAW")],
    "flac": [("FLAC", "PCM_16"), ("FLAC", "PCM_24")],
    "mp3": [("MP3", "MPEG_LAYER_III")],
    "ogg": [("OGG", "VORBIS")],
    "opus": [("OGG", "OPUS")],
    "au": [("AU", "PCM_16"), ("AU", "FLOAT")],
    "w64": [("W64", "PCM_16"), ("W64", "DOUBLE")],
    "rf64": [("RF64", "PCM_16"), ("RF64", "PCM_24")],
    "aiff": [("AIFF", "PCM_16"), ("AIFF", "ULAW")],
    "caf": [("CAF", "PCM_16"), ("CAF", "ALAC_16")],
}
"""libsndfile's formats and encodings for each suffix."""


def _sounds(folder: Path) -> Iterator[Subject]:
    times = np.arange(4000) / 8000
    noise = np.random.default_rng(0).normal(0, 0.05, (4000, 2))
    samples = (np.sin(2 * np.pi * 440 * times)[:, None] * [0.4, 0.3] + noise).astype(np.float32)
    for suffix, variants in SOUND_KINDS.items():
        contents = list[bytes]()
        for form, encoding in variants:
            for channels in (1, 2):
                file = io.BytesIO()
                soundfile.write(file, samples[:, :channels], 8000, format=form, subtype=encoding)
                contents.append(file.getvalue())
        path = folder / f"sound.{suffix}"
        different = _different_wave if suffix == "wav" else agree
        yield Subject(suffix, path, contents, partial(_read_sound, path), mutate_bytes, different, detects_cuts=True)


def _read_sound(path: Path) -> Any:
    audio = read_audio(path)
    with suppress(InputError):
        FrameTokenizer(8, sample_rate=8000, n_mels=8).encode(audio)
    return audio.waveform, audio.sample_rate


def _different_wave(content: bytes, value: Any) -> str:
    """Compare 16-bit samples with Python's module wave, if the file declares its size correctly."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            frames, channels, width, rate = (
                file.readframes(10**7),
                file.getnchannels(),
                file.getsampwidth(),
                file.getframerate(),
            )
    except (wave.Error, EOFError, RuntimeError):
        return ""
    if width != 2 or len(frames) % (2 * channels) or int.from_bytes(content[4:8], "little") != len(content) - 8:
        return ""
    expected = (np.frombuffer(frames, "<i2").reshape(-1, channels).T / 32768).astype(np.float32)
    waveform = np.atleast_2d(value[0])
    is_equal = waveform.shape == expected.shape and bool((waveform == expected).all()) and value[1] == rate
    return (
        ""
        if is_equal
        else f"{waveform.shape} at {value[1]} Hz, but the module wave reads {expected.shape} at {rate} Hz"
    )


def _read_all(source: Source) -> list[tuple[Any, Any]]:
    """Return the input and the target of each example, in the order of the splits."""
    examples = [example for part in SPLITS for example in open_split(source, part)]
    return [(example.input, example.target) for example in examples]


def sentences(count: int) -> list[str]:
    """Return random sentences with letters of several scripts."""
    words = ["der", "Hund", "läuft", "über", "die", "Brücke", "und", "山田", "sieht", "7", "größere", "Häuser"]
    rng = Random(0)
    return [" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(count)]


def _texts(folder: Path) -> Iterator[Subject]:
    first, second = sentences(80)[:40], sentences(80)[40:]
    plain = "".join(f"{line}\n" for line in first).encode()
    for suffix in ("", *PACKERS):
        source, target = folder / f"pairs.de{suffix}", folder / f"pairs.fr{suffix}"
        pack = PACKERS[suffix][0] if suffix else bytes
        target.write_bytes(pack("".join(f"{line}\n" for line in second).encode()))
        yield Subject(
            f"text{suffix}",
            source,
            [pack(plain)],
            lambda files=(source, target): _read_all(ParallelText(files)),
            _packed(suffix, mutate_bytes),
            partial(_different_lines, suffix, second),
            detects_cuts=bool(suffix),
        )
    columns = "".join(f"{a}\t{b}\n" for a, b in zip(first, second, strict=True)).encode()
    path = folder / "columns.tsv"
    yield Subject("text columns", path, [columns], lambda: _read_all(ParallelText(path)), _either(mutate_table))
    questions = "".join(f"{k % 6} {text}\n" for k, text in enumerate(first)).encode()
    trec = folder / "TREC.train.all"
    (folder / "TREC.test.all").write_bytes(questions)
    yield Subject("trec", trec, [questions], lambda: _read_all(TREC(data=folder)), _either(mutate_table))
    memory = folder / "memory.tmx"
    units = "".join(
        f'<tu><tuv xml:lang="de"><seg>{a}</seg></tuv><tuv xml:lang="fr-FR"><seg>{b}</seg></tuv></tu>\n'
        for a, b in zip(first, second, strict=True)
    )
    codes = (
        '<tu><tuv xml:lang="de"><seg>a<ph x="1">&lt;br/&gt;</ph>b <bpt i="1">{\\b</bpt>c<ept i="1">}</ept></seg></tuv>'
    )
    codes += '<tuv xml:lang="fr"><seg>d &amp; e</seg></tuv></tu>'
    header = '<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><header/><body>'
    yield Subject(
        "tmx",
        memory,
        [f"{header}{units}{codes}</body></tmx>".encode()],
        lambda: _read_all(ParallelText(memory, languages=("de", "fr"))),
        mutate_bytes,
        _different_units,
    )
    yield from _vocabularies(folder, first)


def _vocabularies(folder: Path, texts: list[str]) -> Iterator[Subject]:
    file, vectors = folder / "vocabulary.json", folder / "vectors.txt"
    vocabulary = Vocabulary.fit(texts, size=300)
    vocabulary.save(file)
    contents = [file.read_bytes()]
    for level in ("word", "character"):
        Vocabulary.fit(texts, size=300, level=level).save(file)
        contents.append(file.read_bytes())
    file.unlink()

    def use() -> Any:
        read = Vocabulary.load(file)
        ids = [read.encode(text) for text in ("der Hund läuft", "x" * 50)]
        return ids, [read.decode(each) for each in ids], read.tokens(range(min(len(read), 1000))), read.word_ids(ids[0])

    yield Subject("vocabulary", file, contents, use, mutate_json_file)
    lines = [
        f"{word} {' '.join(f'{x:.3f}' for x in np.arange(4) / 7 + k)}" for k, word in enumerate(["der", "die", "und"])
    ]
    yield Subject(
        "word vectors",
        vectors,
        ["\n".join(["3 4", *lines]).encode()],
        lambda: load_vectors(vectors, vocabulary).numpy(),
        mutate_bytes,
        lambda _, value: "" if np.isfinite(value).all() else "a vector that is not finite",
    )


def _different_lines(suffix: str, targets: list[str], content: bytes, value: list[tuple[str, str]]) -> str:
    """Compare the texts with the lines of the file as Python splits the file."""
    try:
        plain = PACKERS[suffix][1](content) if suffix else content
    except Exception as error:
        return f"read, but Python's own module reports {error}"
    plain = plain.removeprefix(b"\xef\xbb\xbf")
    end = b"\r" if b"\r" in plain[:-1] and b"\n" not in plain[:-1] else b"\n"
    lines = [line.removesuffix(b"\r") for line in plain.removesuffix(end).split(end)]
    expected = sorted((line.decode(errors="replace"), target) for line, target in zip(lines, targets, strict=False))
    held = "" if len(lines) == len(targets) else f"{len(lines)} lines for {len(targets)} targets"
    return held or ("" if sorted(value) == expected else "other texts than the lines of the file")


def _different_units(content: bytes, value: list[tuple[str, str]]) -> str:
    """Compare the texts with the segments of the XML tree that have no inner elements."""
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        return f"read, but the XML is not valid: {error}"
    sources = {example[0] for example in value}
    plain = [
        " ".join((segment.text or "").split())
        for unit in root.iter("tu")
        if len(unit.findall("tuv")) == 2 and all(len(each.findall("seg")) == 1 for each in unit.findall("tuv"))
        for segment in unit.findall("tuv[1]/seg")
        if not len(segment)
    ]
    languages = [each.get("{http://www.w3.org/XML/1998/namespace}lang") for each in root.iter("tuv")]
    if set(languages) - {"de", "fr-FR", "fr"}:
        return ""
    missing = [text for text in plain if text and text not in {" ".join(each.split()) for each in sources}]
    return f"a text is missing: {missing[0][:80]}" if missing else ""


def _tables(folder: Path) -> Iterator[Subject]:
    texts, labels = sentences(40), ["ja", "nein"] * 20
    for suffix, delimiter in (("csv", ","), ("tsv", "\t"), ("csv.gz", ",")):
        file = io.StringIO(newline="")
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(
            [("text", "label"), *zip(texts, labels, strict=True)]
        )
        path = folder / f"texts.{suffix}"
        packed = suffix.endswith(".gz")
        content = file.getvalue().encode()
        yield Subject(
            suffix,
            path,
            [gzip.compress(content) if packed else content],
            lambda path=path: _read_all(TextTable(path)),
            _packed(".gz" if packed else "", _either(mutate_table)),
            partial(_different_rows, delimiter, ".gz" if packed else ""),
            detects_cuts=packed,
        )
    (folder / "sounds").mkdir()
    for k in range(12):
        soundfile.write(folder / "sounds" / f"{k}.wav", np.full(800, k / 20), 8000)
    rows = [
        f"{k}.wav,{'ab'[k % 2]},{k // 4},g{k // 2},{('train', 'train', 'val', 'test')[k // 2 % 4]}" for k in range(12)
    ]
    sounds = folder / "sounds" / "sounds.csv"
    for columns, name in ((4, "folds and groups"), (5, "splits")):
        header = ["file", "label", "fold", "group", "split"][:columns]
        lines = [",".join(header), *(",".join(row.split(",")[:columns]) for row in rows)]
        content = "".join(f"{line}\n" for line in lines).encode()
        for target in ("label", "tags"):
            yield Subject(
                f"sounds.csv with {name} and {target}",
                sounds,
                [content],
                partial(_read_sounds, sounds, target == "tags"),
                _either(mutate_table),
                _different_sounds,
            )
    for label in "ab":
        (folder / "folder" / label).mkdir(parents=True)
        for k in range(6):
            Image.new("RGB", (8, 8), (k, 7 * k, 0)).save(folder / "folder" / label / f"{k}.png")
    files = [f"{label}/{k}.png,{k % 3},{label}{k}" for label in "ab" for k in range(6)]
    yield Subject(
        "folds.csv",
        folder / "folder" / "folds.csv",
        ["\n".join(["file,fold,group", *files, ""]).encode()],
        lambda: _read_all(ImageFolder(folder / "folder")),
        _either(mutate_table),
    )


def _read_sounds(table: Path, has_tags: bool) -> list[tuple[int, str]]:
    """Return the number of each sound, which its samples contain, and its label or tags."""
    examples = _read_all(AudioFolder(table, target="tags" if has_tags else "label"))
    return [(round(20 * sound.waveform[0]), ";".join(label) if has_tags else label) for sound, label in examples]


def _different_sounds(content: bytes, value: list[tuple[int, str]]) -> str:
    """Compare the sounds and labels with the cells of the table as Python's module csv reads the table."""
    rows = list(_csv_rows(content, ","))
    file, label = rows[0].index("file"), rows[0].index("label")
    expected = {(int(Path(row[file]).stem), ";".join(tag.strip() for tag in row[label].split(";"))) for row in rows[1:]}
    other = [pair for pair in value if pair not in expected and pair[1]]
    return f"other sounds than the table: {other[:1]}" if other or len(value) != len(rows) - 1 else ""


def _csv_rows(content: bytes, delimiter: str) -> Iterator[list[str]]:
    plain = content.decode(errors="replace").removeprefix("\ufeff")
    end = "\r" if "\r" in plain[:-1] and "\n" not in plain[:-1] else "\n"
    lines = (f"{line.removesuffix(chr(13))}\n" for line in plain.removesuffix(end).split(end))
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    return (row for row in csv.reader(lines, delimiter=delimiter, quoting=quoting) if row)


def _different_rows(delimiter: str, suffix: str, content: bytes, value: list[tuple[str, str]]) -> str:
    """Compare the texts and labels with the rows that Python's module csv reads."""
    rows = list(_csv_rows(PACKERS[suffix][1](content) if suffix else content, delimiter))
    text, label = rows[0].index("text"), rows[0].index("label")
    expected = sorted((row[text], row[label].strip()) for row in rows[1:])
    return "" if sorted(value) == expected else f"{len(value)} other rows than the {len(expected)} of the module csv"


def _archives(folder: Path) -> Iterator[Subject]:
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 20)):
        images, labels = rng.integers(0, 256, (count, 4, 4), np.uint8), (np.arange(count) % 10).astype(np.uint8)
        idx = (
            b"\0\0\x08\3" + struct.pack(">3i", count, 4, 4) + images.tobytes(),
            b"\0\0\x08\1" + struct.pack(">i", count) + labels.tobytes(),
        )
        names = [name for name in MNIST_FILES if name.startswith(part)]
        for name, content in zip(names, idx, strict=True):
            (folder / name).write_bytes(gzip.compress(content))
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        yield Subject(
            f"idx {name[6:12]}",
            folder / name,
            [(folder / name).read_bytes()],
            lambda: _read_all(MNIST(data=folder)),
            _packed(".gz", mutate_bytes),
            partial(_different_idx, name),
            detects_cuts=True,
        )
    records = [bytes([k % 10]) + rng.integers(0, 256, 3072, np.uint8).tobytes() for k in range(40)]
    batches = {"data_batch_1.bin": b"".join(records[:30]), "test_batch.bin": b"".join(records[30:])}
    path = folder / "cifar-10-binary.tar.gz"
    yield Subject(
        "cifar tar.gz",
        path,
        [_packed_tar(batches, ".gz")],
        lambda: _read_all(CIFAR10(data=folder)),
        _packed(".gz", mutate_bytes),
        detects_cuts=True,
    )
    pictures = {
        f"train/{CIFAR10.labels[k % 10]}/{k:04}.jpg": _saved(Image.new("RGB", (32, 32), (k, 5 * k, 0)), "jpg", {})
        for k in range(20)
    }
    (folder / "test.tar.xz").write_bytes(
        _packed_tar({name.replace("train", "test"): content for name, content in pictures.items()}, ".xz")
    )
    yield Subject(
        "cifar tar.xz",
        folder / "train.tar.xz",
        [_packed_tar(pictures, ".xz")],
        lambda: _read_all(CIFAR10(jpeg=True, data=folder)),
        _packed(".xz", mutate_bytes),
        detects_cuts=True,
    )
    for suffix, content in (("zip", _zipped(pictures)), ("tar", _packed_tar(pictures, ""))):
        archive = folder / f"pictures.{suffix}"
        yield Subject(
            suffix, archive, [content], lambda archive=archive: _read_archive(archive), mutate_bytes, detects_cuts=True
        )


def _read_archive(path: Path) -> Any:
    archive = read_archive(path)
    return {name.name: read_image(name, archive=archive) for name in archive}


def _packed_tar(files: Mapping[str, bytes], suffix: str) -> bytes:
    content = io.BytesIO()
    with tarfile.TarFile(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return PACKERS[suffix][0](content.getvalue()) if suffix else content.getvalue()


def _zipped(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def _different_idx(name: str, content: bytes, value: list[tuple[Any, str]]) -> str:
    """Compare the training pictures or labels with the bytes after the header."""
    plain = gzip.decompress(content)
    start = 4 + 4 * plain[3]
    count = int.from_bytes(plain[4:8])
    pixels = sorted(np.asarray(image).tobytes() for image, _ in value[:count])
    if "images" in name:
        size = len(plain[start:]) // count
        expected = sorted(plain[start + k * size : start + (k + 1) * size] for k in range(count))
        return "" if pixels == expected else "other pictures than the file"
    return (
        ""
        if sorted(label for _, label in value[:count]) == sorted(str(each) for each in plain[start:])
        else "other labels"
    )


def _packed(suffix: str, mutate: Mutator) -> Mutator:
    """Return a mutation of a compressed file, or of its content, which is compressed again."""
    if not suffix:
        return mutate
    pack, unpack = PACKERS[suffix]

    def changed(rng: Random, content: bytes) -> tuple[str, bytes]:
        if rng.random() < 0.5:
            return mutate_bytes(rng, content)
        name, inner = mutate(rng, unpack(content))
        return f"{name} in the content", pack(inner)

    return changed


def _either(mutate: Mutator) -> Mutator:
    """Return a mutation that changes bytes in one of three cases."""
    return lambda rng, content: (mutate_bytes if rng.random() < 1 / 3 else mutate)(rng, content)
