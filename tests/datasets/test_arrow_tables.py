"""Data sets in Parquet files, and in the format of Hugging Face's `save_to_disk`, written with pyarrow."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
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
from unifier.datasets import (
    ArrowTable,
    SeriesWindows,
    create_audio_dataset,
    create_box_dataset,
    create_image_dataset,
    create_item_dataset,
    create_mask_dataset,
    create_number_dataset,
    create_plain_text_dataset,
    create_question_dataset,
    create_speech_dataset,
    create_summary_dataset,
    create_symbolic_music,
    create_text_dataset,
    create_token_dataset,
    modality_of,
)
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
    "summary": {"document": [f"It is {k}. It is odd." for k in ROWS], "summary": [f"It is {k}!" for k in ROWS]},
    "speech": {"audio": [{"bytes": sound(k), "path": None} for k in ROWS], "sentence": ["A b!", "C."] * 15},
    "question": {
        "question": [f"Which number is in {k}?" for k in ROWS],
        "context": [f"The number {k // 2} is here" for k in ROWS],
        "answers": [{"text": [str(k // 2)], "answer_start": [11]} for k in ROWS],
    },
    "numbers": {
        "sentence": [f"a house {k}" for k in ROWS],
        "image": [{"bytes": picture(k), "path": None} for k in ROWS],
        "price": [k / 2 for k in ROWS],
        "size": [*ROWS],
    },
    "series": {
        "date": [datetime(2026, 1, 1) + timedelta(hours=k) for k in ROWS],
        "wind": [float(k) for k in ROWS],
        "rain": [k % 3 for k in ROWS],
    },
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


def test_rows_with_numbers(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "houses" / "part.parquet", "numbers")
    pictures = create_number_dataset(data, ("price", "size"))
    texts = create_number_dataset(data, ("size",), text="sentence")
    assert (pictures.kind, texts.kind) == ("image", "text")
    assert pictures.labels == ("price", "size")
    for example in pictures.split("train"):
        assert example.target == (int(example.input[0, 0, 0]) / 2, int(example.input[0, 0, 0]))
    first = texts.split("val")[0]
    assert first.input == f"a house {first.target[0]:.0f}"
    for columns, expected in (((), "columns="), (("price", "price"), "columns="), (("area",), "area")):
        with refused(expected):
            create_number_dataset(data, columns).split("train")
    with refused("text or sentence"):
        create_number_dataset(write_parquet(tmp_path / "words" / "a.parquet", "words"), ("tokens",)).split("train")
    with refused("block 1, row 1, text"):
        create_number_dataset(write_parquet(tmp_path / "text" / "a.parquet", "text"), ("text",)).split("train")


def test_rows_with_summaries(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "news" / "part.parquet", "summary")
    text, summary = create_summary_dataset(data, "summary").split("test")[0]
    assert text == f"{summary[:-1]}. It is odd."
    chosen = create_summary_dataset(data, "choose").split("test")[0]
    assert chosen.input == tuple(text.replace(". ", ".|").split("|"))


def test_rows_with_spoken_texts(tmp_path: Path) -> None:
    source = create_speech_dataset(write_parquet(tmp_path / "talks" / "part.parquet", "speech"))
    assert source.labels == (" ", "a", "b", "c")
    assert {example.target for example in source.split("train")} == {"a b", "c"}
    assert source.split("train")[0].input.sample_rate == 8000
    assert source.split("train").identities() is not None, "the texts are read without the sounds"


def test_rows_with_questions(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "all" / "part.parquet", "question")
    splits = [create_question_dataset(data, "span").split(part) for part in ("train", "val", "test")]
    assert [*map(len, splits)] == [22, 4, 4], "both questions of a context are in one split"
    assert splits[0][0].target.spans == ((2, 2),)
    assert create_question_dataset(data, "write").split("val")[0].target[0].isdecimal()
    given = save(tmp_path / "given", "question", {"train": slice(20), "validation": slice(20, 30)})
    source = create_question_dataset(given, "span")
    assert [len(source.split(part)) for part in ("train", "val", "test")] == [18, 10, 2]


def test_rows_of_a_time_series(tmp_path: Path) -> None:
    def windows(data: str, **settings: Any) -> SeriesWindows:
        return SeriesWindows(data, context=3, horizon=1, **settings)

    whole = windows(write_parquet(tmp_path / "whole" / "part.parquet", "series"))
    assert whole.reader.channels == ("wind", "rain")
    assert [len(whole.split(part)) for part in ("train", "val", "test")] == [36, 6, 12]
    splits = {"train": slice(20), "validation": slice(20, 25), "test": slice(25, 30)}
    given = windows(save(tmp_path / "given", "series", splits), channels=("wind",))
    assert [len(given.split(part)) for part in ("train", "val", "test")] == [17, 5, 5]
    wind = np.arange(20)
    expected = (np.arange(22, 25) - wind.mean()) / wind.std()
    assert np.allclose(given.split("test")[0].input, expected)
    assert given.sha256 != whole.sha256
    (tmp_path / "gap").mkdir()
    rows = pyarrow.concat_tables([table("series", slice(20)), table("series", slice(22, 30))])
    parquet.write_table(rows, tmp_path / "gap" / "a.parquet")
    with refused("2026-01-01 22:00"):
        windows(f"parquet:{tmp_path / 'gap'}").split("train")
    with refused("snow"):
        windows(f"parquet:{tmp_path / 'whole'}", channels=("snow",)).split("train")


@pytest.mark.parametrize(
    "create", [create_box_dataset, create_item_dataset, create_mask_dataset, create_symbolic_music]
)
@pytest.mark.parametrize("word", ["datasets:", "parquet:", "torchvision:", "packed:"])
def test_word_is_refused_if_rows_cannot_hold_the_data(
    create: Callable[[str], object], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{word}x").mkdir()
    with refused(f"{word}x"):
        create(f"{word}x")
