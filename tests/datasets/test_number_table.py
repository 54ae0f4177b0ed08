"""Tables of numbers with texts, pictures and sounds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unifier.data.source import SPLITS
from unifier.datasets import NumberTable
from unifier_tokenizers import InputError


def text_table(folder: Path) -> NumberTable:
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["text,price,size", *(f"house {k},{k / 2},{k - 3}" for k in range(40))]
    (folder / "houses.csv").write_text("\n".join(rows) + "\n")
    return NumberTable(folder / "houses.csv", ("price", "size"), text="text")


def test_texts_have_their_numbers(tmp_path: Path) -> None:
    source = text_table(tmp_path)
    assert (source.name, source.kind, source.labels) == ("houses", "text", ("price", "size"))
    assert [len(source.split(name)) for name in SPLITS] == [32, 4, 4]
    for text, (price, size) in source.split("train"):
        assert text == f"house {2 * price:.0f}"
        assert size == 2 * price - 3
    assert source.split("val").example_id(0).startswith(str(tmp_path / "houses.csv, line "))


def test_files_are_read_and_split(tmp_path: Path, write_tone: Callable[..., Path]) -> None:
    Image.fromarray(np.full((4, 4), 9, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.csv").write_text("file,x,split\n" + "".join(f"a.png,{k},{name}\n" for k, name in enumerate(SPLITS)))
    pictures = NumberTable(tmp_path / "a.csv", ("x",))
    assert (pictures.kind, pictures.split("test")[0].input.shape, pictures.split("test")[0].target) == (
        "image",
        (4, 4, 3),
        (2,),
    )
    write_tone(tmp_path / "b.wav")
    (tmp_path / "b.csv").write_text("file,x\n" + "b.wav,1\n" * 9)
    assert NumberTable(tmp_path / "b.csv", ("x",)).kind == "audio"


@pytest.mark.parametrize(
    ("content", "columns", "text", "message"),
    [
        ("text,x\na,nan\n", ("x",), "text", r"line 2, x.*'nan'"),
        ("text,x\na,1e999\n", ("x",), "text", r"line 2, x.*'1e999'"),
        ("text,x\na,1\n", ("y",), "text", "no column y"),
        ("text,x\n", ("x",), "text", "no rows"),
        ("file,x\n" + "a.doc,1\n" * 9, ("x",), None, r"a\.doc is neither"),
        ("text,x\na,1\n", (), "text", "at least one number"),
        ("text,x\na,1\n", ("text",), "text", "different columns"),
    ],
)
def test_wrong_tables_are_named(
    content: str, columns: tuple[str, ...], text: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        NumberTable(tmp_path / "t.csv", columns, text=text).split("train")
