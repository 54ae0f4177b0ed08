"""Texts with summaries: SciTLDR, and pairs of texts and summaries of your own."""

import json
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

from unifier.data.arrow_files import TABLES
from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import hash_files
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, data_folder
from unifier.data.text_files import open_lines
from unifier.datasets.arrow_tables import ArrowTable
from unifier.datasets.class_folders import task_name
from unifier.datasets.parallel_text import ParallelText
from unifier.heads.sentence_selection import SummaryTarget, split_sentences
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

SummaryKind = Literal["choose", "title", "summary"]
"""The target of a text: its best sentence ("choose"), its title, or its summaries."""

SCITLDR_HOME = (
    "https://raw.githubusercontent.com/allenai/scitldr/5ccad9c00a60ad75c9e04abf7f27d0f53f983b20/SciTLDR-Data/SciTLDR-A/"
)

SCITLDR_FILES = {
    "train.jsonl": RemoteFile(3155015, "b222771d387be585cfdf5ae957b36757138415a352e0a3e3b23f73f87c3b1119"),
    "dev.jsonl": RemoteFile(1124865, "3191fa98ccc09521332b7a1cd63b1930be4e8df125a235ccd31e40329709525e"),
    "test.jsonl": RemoteFile(1204107, "fb42dd6cd4f4a1928ae8a01a189456fbfe994a07e938bd49f68653933f6503c9"),
}


class Paper(NamedTuple):
    """The sentences of a paper's abstract, its title and its summaries, and the file and line that contain them."""

    path: Path
    line: int
    sentences: tuple[str, ...]
    title: str
    summaries: tuple[str, ...]


@final
class SciTLDR:
    """SciTLDR: abstracts of papers on machine learning with summaries in one sentence, 1,992 / 619 / 618.

    With the kind "choose", the input is the sequence of sentences, and the target is a `SummaryTarget`. With "title"
    and "summary", the input is the abstract as one text, and the target is the title, or the tuple of summaries. Each
    paper of train has one summary, and the papers of val and test have one to several summaries.

    Source: Cachola et al., "TLDR: Extreme Summarization of Scientific Documents", 2020; license Apache 2.0.
    """

    name = "scitldr"
    license = "Apache 2.0"

    def __init__(self, kind: SummaryKind = "choose", *, data: str | Path | None = None) -> None:
        """Choose the target, and the folder with the files (None means the default folder; see `data_folder`)."""
        self.kind: SummaryKind = check_choice("kind", kind, get_args(SummaryKind))
        self._data = data
        # Chance is the first sentence, measured on test.
        self.score_range = ScoreRange("rouge1", 18.7, None, NO_SCORE_RANGE)
        if kind != "title":
            origin = "the sentence with the highest ROUGE-1 of each abstract; chance is the first sentence"
            self.score_range = ScoreRange("rouge1", 28.2, 45.8, origin)

    def split(self, name: SplitName) -> Examples[Paper]:
        """Return the papers of one split in the order of the file."""
        papers = _read_papers(self._paths[check_choice("split", name, SPLITS)])
        return Examples(papers, partial(_read_paper, self.kind), _line_of, origin=_sentences_of)

    @cached_property
    def sha256(self) -> str:
        """The hash of the files and of the kind of target."""
        return hash_files({f"{self.kind} {part}": path for part, path in self._paths.items()})

    @cached_property
    def _paths(self) -> dict[SplitName, Path]:
        folder = data_folder(self.name, self._data)
        compressed = [folder / f"{file}.gz" for file in SCITLDR_FILES]
        if all(path.is_file() for path in compressed):
            return dict(zip(SPLITS, compressed, strict=True))
        folder = ensure_files(self.name, SCITLDR_HOME, SCITLDR_FILES, self._data)
        return dict(zip(SPLITS, (folder / file for file in SCITLDR_FILES), strict=True))


@final
class TextsWithSummaries:
    """Your own texts, each with one summary.

    The texts are a file with two columns that are separated by a tab (see `ParallelText`), or a table (see
    `ArrowTable`). A tenth of the pairs is held out for each missing split.
    """

    def __init__(self, path: str | Path, kind: SummaryKind = "choose") -> None:
        """Store the path, or a word such as "parquet:DIR", and the target.

        With "title" and "summary", the target is the second column of the file, or the summary of the table.
        """
        self.kind: SummaryKind = check_choice("kind", kind, get_args(SummaryKind))
        if str(path).startswith(TABLES):
            self._pairs = ArrowTable(str(path), "summary")
            self.name = self._pairs.name
        else:
            self._pairs = ParallelText(path)
            self.name = task_name(Path(Path(path).name.partition(".")[0]))

    def split(self, name: SplitName) -> Examples[int]:
        """Return the texts of one split in the order of the file."""
        pairs = self._pairs.split(name)
        return Examples(range(len(pairs)), partial(_read_pair, pairs, self.kind), pairs.example_id)

    @property
    def sha256(self) -> str:
        """The hash of the file."""
        return self._pairs.sha256


def _read_papers(path: Path) -> list[Paper]:
    papers: list[Paper] = []
    for number, line in enumerate(open_lines(path), start=1):
        try:
            paper: dict[str, Any] = json.loads(line)
            sentences, summaries = (_texts(paper[key]) for key in ("source", "target"))
            papers.append(Paper(path, number, sentences, str(paper["title"]), summaries))
        except (ValueError, KeyError, TypeError) as error:
            expected = 'an object with "source" and "target" (lists of texts) and "title"'
            raise InputError(f"{path}, line {number}: {expected} is expected ({type(error).__name__})") from error
    if not papers:
        raise InputError(f"{path} has no papers: one JSON object per line is expected")
    return papers


def _texts(items: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that are not empty. Raises ValueError if all texts are empty."""
    if isinstance(items, str) or not (texts := tuple(item.strip() for item in items if item.strip())):
        raise ValueError("no texts")
    return texts


def _read_paper(kind: SummaryKind, paper: Paper) -> Example:
    if kind == "choose":
        return Example(paper.sentences, SummaryTarget(paper.sentences, paper.summaries))
    return Example(" ".join(paper.sentences), paper.title if kind == "title" else paper.summaries)


def _read_pair(pairs: Examples[Any], kind: SummaryKind, index: int) -> Example:
    text, summary = pairs[index]
    if kind != "choose":
        return Example(text, summary)
    sentences = split_sentences(text)
    return Example(sentences, SummaryTarget(sentences, (summary,)))


def _line_of(paper: Paper) -> str:
    return f"{paper.path}, line {paper.line}"


def _sentences_of(paper: Paper) -> tuple[str, ...]:
    return paper.sentences
