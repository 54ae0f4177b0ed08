"""Texts with their label as a control code: the codes, and texts that contain a code."""

from itertools import chain
from pathlib import Path

import pytest

import unifier as uf
from tests.experiments.test_recipes import build, only_task
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.data.source import SPLITS
from unifier.datasets import create_long_text
from unifier_tokenizers import InputError, MarkedText, SubwordTokenizer


def write_table(path: Path, **changed: str) -> str:
    texts = [changed.get(f"text{k}", f"film {k}") for k in range(30)]
    path.write_text("text,label\n" + "".join(f"{text},{('bad', 'very good')[k % 2]}\n" for k, text in enumerate(texts)))
    return str(path)


def test_label_is_the_code_in_front(tmp_path: Path) -> None:
    source = create_long_text(write_table(tmp_path / "films.csv"))
    examples = list(chain.from_iterable(open_split(source, name) for name in SPLITS))
    expected = {f"<{('bad', 'very_good')[k % 2]}> film {k}" for k in range(30)}
    assert {example.input for example in examples} == expected
    assert all(type(example.input) is MarkedText for example in examples)


def test_text_with_a_code_is_refused(tmp_path: Path) -> None:
    source = create_long_text(write_table(tmp_path / "films.csv", text3="a <bad> film"))
    with pytest.raises(InputError, match=r"line 5.*<bad>"):
        list(chain.from_iterable(open_split(source, name) for name in SPLITS))


def test_recipe_encodes_a_code_as_one_token(tmp_path: Path) -> None:
    data = write_table(tmp_path / "films.csv")
    task = only_task(build("language_model", data=data, dim=16, depth=1, heads=2, steps=1))
    assert isinstance(task.tokenizer, SubwordTokenizer)
    split, _ = encode_split(open_split(task.source, "train"), task.tokenizer, task.head)
    codes = {split.units(row).values[1].item() for row in range(len(split))}
    assert codes == {task.tokenizer.vocabulary.extra[code] for code in ("<bad>", "<very_good>")}
    assert isinstance(task.objective, uf.NextToken)
