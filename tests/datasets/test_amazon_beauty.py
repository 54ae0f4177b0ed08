"""Sequences of products: the last product belongs to test, and the last but one to val."""

from pathlib import Path

import pytest

from unifier.data.dataset import open_split
from unifier.datasets.amazon_beauty import AmazonBeauty
from unifier_tokenizers import InputError


def write(folder: Path, text: str) -> AmazonBeauty:
    (folder / "Beauty.txt").write_text(text)
    return AmazonBeauty(data=folder)


def test_splits_end_at_different_products(tmp_path: Path) -> None:
    source = write(tmp_path, "1 5 6 7 8 9\n2 1 2 3 1 2 12\n")
    inputs = {name: [example.input for example in open_split(source, name)] for name in ("train", "val", "test")}
    assert inputs["test"] == [[5, 6, 7, 8, 9], [1, 2, 3, 1, 2, 12]]
    assert inputs["val"] == [sequence[:-1] for sequence in inputs["test"]]
    assert inputs["train"] == [sequence[:-2] for sequence in inputs["test"]]
    assert source.num_items == 12


@pytest.mark.parametrize("line", ["2 1 2 3 4", "2 1 2 3 4 x", "2 1 2 3 4 0", "2 1 2 3 4 -5", ""])
def test_broken_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match="line 2"):
        write(tmp_path, f"1 5 6 7 8 9\n{line}\n3 1 2 3 4 5\n").split("train")
