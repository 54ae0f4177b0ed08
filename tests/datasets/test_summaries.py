"""Texts with summaries: the files of SciTLDR, the three kinds of targets, and files of one's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier.datasets.summaries import SCITLDR_FILES, SciTLDR, TextsWithSummaries
from unifier.heads.sentence_selection import SummaryTarget
from unifier_tokenizers import InputError


def paper(**changed: Any) -> str:
    content = {"source": ["One.", " ", "Two three."], "target": ["Short.", "Other."], "title": "A title"} | changed
    return json.dumps(content) + "\n"


def scitldr(folder: Path, kind: Any = "choose", *lines: str) -> SciTLDR:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCITLDR_FILES:
        papers = [paper(title=f"{name} {k}", source=[f"{name} {k}.", "Two."]) for k in range(3)]
        (folder / name).write_text("".join(lines or papers))
    return SciTLDR(kind, data=folder)


def test_contract(check_source: Callable[..., None]) -> None:
    check_source(scitldr, named=True)


def test_kinds_have_their_targets(tmp_path: Path) -> None:
    sentences, summaries = ("One.", "Two three."), ("Short.", "Other.")
    examples = {kind: scitldr(tmp_path, kind, paper()).split("val")[0] for kind in ("choose", "title", "summary")}
    assert examples["choose"] == (sentences, SummaryTarget(sentences, summaries))
    assert examples["title"] == ("One. Two three.", "A title")
    assert examples["summary"] == ("One. Two three.", summaries)


@pytest.mark.parametrize("line", ["[]", "{", paper(source=[]), paper(target="text"), '{"source": ["a"]}'])
def test_broken_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=r"train\.jsonl, line 2: an object"):
        scitldr(tmp_path, "title", paper(), line.strip() + "\n").split("train")


def test_own_pairs_are_split_into_sentences(tmp_path: Path) -> None:
    path = tmp_path / "own.tsv"
    path.write_text("".join(f"First {k}. Second!\tshort {k}\n" for k in range(20)))
    first = TextsWithSummaries(path).split("train")[0]
    number = first.target.references[0].removeprefix("short ")
    assert first.input == first.target.sentences == (f"First {number}.", "Second!")
    assert TextsWithSummaries(path, "title").split("train")[0] == (f"First {number}. Second!", f"short {number}")
