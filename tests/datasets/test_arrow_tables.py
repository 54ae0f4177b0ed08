"""Data sets in Parquet files, and in the format of Hugging Face's `save_to_disk`, written with pyarrow."""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.data.conftest import refused
from unifier.data.packed import PackedSource
from unifier.data.packing import PackOptions, PackOrigin, pack
from unifier.datasets import ArrowTable, create_audio_dataset, create_image_dataset, create_text_dataset
from unifier.datasets.factory import create_plain_text_dataset, create_token_dataset, modality_of
from unifier.heads.classification import ClassificationHead
from unifier.options import ParallelTextConfig
from unifier_tokenizers import InputError, PatchTokenizer

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.extras

CLASSES = {"_type": "ClassLabel", "names": ["cat", "dog"]}


def picture(number: int) -> bytes:
    file = BytesIO()
    Image.fromarray(np.full((4, 6, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def sound(number: int) -> bytes:
    file = BytesIO()
    soundfile.write(file, np.full(800, number / 100, np.float32), 8000, format="WAV", subtype="FLOAT")
    return file.getvalue()


ROWS = range(30)
COLUMNS: Mapping[str, Mapping[str, list[Any]]] = {
    "image": {"image": [{"bytes": picture(k), "path": None} for k in ROWS], "label": [k % 2 for k in ROWS]},
    "audio": {"audio": [{"bytes": sound(k), "path": "a.wav"} for k in ROWS], "label": ["ab"[k % 2] for k in ROWS]},
    "text": {"text": [f"the number {k}" for k in ROWS], "label": [k % 2 for k in ROWS]},
    "words": {"tokens": [["see", f"x{k}"] for k in ROWS], "ner_tags": [["O", f"B-{k % 2}"] for k in ROWS]},
    "pair": {"translation": [{"en": f"number {k}", "fr": f"nombre {k}"} for k in ROWS]},
}


def table(kind: str, rows: slice = slice(None)) -> Any:
    made = pyarrow.table({name: cells[rows] for name, cells in COLUMNS[kind].items()})
    features = {"label": CLASSES} if kind != "audio" else {}
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def save(folder: Path, kind: str, splits: Mapping[str, slice]) -> str:
    """Write a data set like `DatasetDict.save_to_disk`."""
    folder.mkdir()
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*splits]}))
    for name, rows in splits.items():
        (folder / name).mkdir()
        (folder / name / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
        content = table(kind, rows)
        with pyarrow.ipc.new_stream(str(folder / name / "data-0.arrow"), content.schema) as writer:
            writer.write_table(content, max_chunksize=7)
    return f"datasets:{folder}"


def write_parquet(path: Path, kind: str, rows: slice = slice(None)) -> str:
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table(kind, rows), path, row_group_size=7)
    return f"parquet:{path.parent}"


def test_saved_data_set_has_its_own_splits(tmp_path: Path) -> None:
    splits = {"train": slice(20), "validation": slice(20, 26), "test": slice(26, 30)}
    source = create_image_dataset(save(tmp_path / "pets", "image", splits))
    assert (source.name, source.labels) == ("pets", ("cat", "dog"))
    examples = [list(source.split(part)) for part in ("train", "val", "test")]
    assert [int(example.input[0, 0, 0]) for part in examples for example in part] == list(ROWS)
    assert [example.target for example in examples[1]] == ["cat", "dog"] * 3
    assert examples[0][0].input.shape == (4, 6, 3)


def test_one_saved_split_is_divided(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    save(tmp_path / "all", "text", {"train": slice(None)})
    (tmp_path / "all" / "train").rename(folder)
    source = create_text_dataset(f"datasets:{folder}")
    texts = {part: {example.input for example in source.split(part)} for part in ("train", "val", "test")}
    assert sorted(map(len, texts.values())) == [4, 4, 22]
    assert set().union(*texts.values()) == set(COLUMNS["text"]["text"])


def test_parquet_files_of_each_kind(tmp_path: Path) -> None:
    words = {kind: write_parquet(tmp_path / kind / "train-0.parquet", kind) for kind in COLUMNS}
    sounds = create_audio_dataset(words["audio"]).split("train")
    assert sounds[0].input.sample_rate == 8000
    assert {example.target for example in sounds} == {"a", "b"}
    tagged = create_token_dataset(words["words"])
    assert tagged.labels == ("B-0", "B-1", "O")
    assert tagged.split("train")[0].input[0] == "see"
    pair: Any = ParallelTextConfig(words["pair"], source="fr", target="en").build().split("test")[0]
    assert pair.input.replace("nombre", "number") == pair.target
    assert create_plain_text_dataset(words["text"], words=2).split("train")[0].input == "the number"
    assert [modality_of(words[kind]) for kind in ("image", "audio", "text")] == ["image", "audio", "text"]


def test_parquet_pictures_are_packed(tmp_path: Path) -> None:
    source = create_image_dataset(write_parquet(tmp_path / "pets" / "part.parquet", "image"), size=4)
    tokenizer = PatchTokenizer(8, patch=2, channels=3).fit(example.input for example in source.split("train"))
    head = ClassificationHead(source.labels, 8)
    origin = PackOrigin("pictures", {"data": "parquet:pets"}, {})
    pack(source, tokenizer, head, None, str(tmp_path / "pack"), origin, PackOptions(num_workers=0))
    packed = PackedSource(str(tmp_path / "pack"))
    assert packed.labels == source.labels
    assert np.array_equal(packed.split("test")[0].input, source.split("test")[0].input)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("datasets:{}/none", "none"),
        ("parquet:{}/none", "none"),
        ("parquet:{}/text", "image or img"),
        ("parquet:{}/torn", "torn.parquet"),
        ("datasets:{}/torn", "state.json"),
    ],
)
def test_unfit_table_is_refused(data: str, expected: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "text" / "a.parquet", "text")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "torn" / "state.json").write_text("{}")
    with refused(expected):
        create_image_dataset(data.format(tmp_path)).split("train")


def test_bad_cell_names_its_row(tmp_path: Path) -> None:
    columns = {
        "image": [{"bytes": b"text", "path": None}, {"bytes": None, "path": "/etc/passwd"}] * 9,
        "label": [0, 1] * 9,
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    examples = ArrowTable(f"parquet:{tmp_path}", "image").split("train")
    for row, expected in ((0, "cannot be read as a picture"), (1, "no bytes")):
        with pytest.raises(InputError, match=rf"a\.parquet, block 1, row {row + 1}.*{expected}"):
            examples[row]


def test_class_without_a_name_is_refused(tmp_path: Path) -> None:
    made = table("text").set_column(1, "label", pyarrow.array([-1] * len(ROWS)))
    parquet.write_table(made.replace_schema_metadata(table("text").schema.metadata), tmp_path / "a.parquet")
    with refused("label -1"):
        create_text_dataset(f"parquet:{tmp_path}").split("train")
