"""Questions with answers in a context: the development set of SQuAD 1.1, and your own files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

from unifier.data.arrow_files import TABLES, find_column, find_split_files, locate_row, read_cell, rows_of
from unifier.data.dataset import Examples
from unifier.data.download import require_file
from unifier.data.readers import hash_files
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, data_folder
from unifier.data.splits import hold_out_rows
from unifier.data.text_files import open_decompressed, open_lines, remove_compressed_suffix
from unifier.datasets.class_folders import task_name
from unifier.heads.question_answering import CONTEXT, QUESTION, SpanTarget, word_span
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

AnswerKind = Literal["span", "write"]
"""The target of a question: the span of its answer in the context, or the texts of its answers."""

QUESTION_FORMAT = 'texts "question" and "context", and "answers" as texts or as objects with "text" and "answer_start"'


class Question(NamedTuple):
    """A question with its context and its answers, and the place in a file."""

    place: str
    question: str
    context: str
    answers: tuple[tuple[str, int | None], ...]
    """The text of each answer, and the index of its first character in the context, or None to search the text."""
    split: str = ""


@final
class SQuADDev:
    """The development set of SQuAD 1.1: 8,686 questions on 36 articles of Wikipedia for train, 550 for val, 1,334 test.

    The input has the members "question" and "context". With the kind "span", the target is a `SpanTarget`. With
    "write", the target is the tuple of answers. The articles of a split are in no other split.

    Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016, of which the data
    folder has the development set, divided by article.
    """

    name = "squad_dev"
    license = "CC BY-SA 4.0"
    score_range = ScoreRange(
        "f1", 21.2, 52.5, "logistic regression trained on 87,599 questions; chance is the sentence with most words"
    )

    def __init__(self, kind: AnswerKind = "span", *, data: str | Path | None = None) -> None:
        """Choose the target, and the folder with the file (None means the default folder; see `data_folder`)."""
        self.kind: AnswerKind = check_choice("kind", kind, get_args(AnswerKind))
        self._data = data

    def split(self, name: SplitName) -> Examples[Question]:
        """Return the questions of one split in the order of the file."""
        check_choice("split", name, SPLITS)
        return _examples(self.kind, [row for row in self._questions if row.split == name])

    @cached_property
    def sha256(self) -> str:
        """The hash of the file and of the kind of target."""
        return hash_files({f"{self.kind} {self._path.name}": self._path})

    @cached_property
    def _questions(self) -> list[Question]:
        return read_questions(self._path)

    @cached_property
    def _path(self) -> Path:
        return squad_file(self._data)


@final
class QuestionFile:
    """Your own questions: a file in the format of SQuAD (.json), JSON Lines (.jsonl), or a table (see `ArrowTable`).

    A line or a row has one question, with the keys or columns question, context and answers. A tenth of the contexts is
    held out for each missing split.
    """

    def __init__(self, path: str | Path, kind: AnswerKind = "span") -> None:
        """Store the path, or a word such as "parquet:DIR", and the target (see `SQuADDev`)."""
        self._data = str(path)
        name = Path(self._data.partition(":")[2]) if self._is_table else Path(Path(path).name.partition(".")[0])
        self.name = task_name(name)
        self.kind: AnswerKind = check_choice("kind", kind, get_args(AnswerKind))
        self.score_range = ScoreRange("f1", 0.0, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[Question]:
        """Return the questions of one split in the order of the file."""
        questions = self._questions
        part = check_choice("split", name, SPLITS)
        missing: list[SplitName] = [other for other in SPLITS if other not in questions]
        if not missing or (part != "train" and part not in missing):
            return _examples(self.kind, questions[part])
        contexts = [*dict.fromkeys(row.context for row in questions["train"])]
        rows = hold_out_rows(self.name if self._is_table else self._data, len(contexts), missing)[part]
        chosen = {contexts[row] for row in rows.tolist()}
        return _examples(self.kind, [row for row in questions["train"] if row.context in chosen])

    @cached_property
    def sha256(self) -> str:
        """The hash of the files and of the kind of target."""
        return hash_files(
            {
                f"{self.kind} {f'{part} ' if self._is_table else ''}{path.name}": path
                for part, paths in self._files.items()
                for path in paths
            }
        )

    @property
    def _is_table(self) -> bool:
        return self._data.startswith(TABLES)

    @cached_property
    def _files(self) -> Mapping[SplitName, Sequence[Path]]:
        return find_split_files(self._data) if self._is_table else {"train": [Path(self._data)]}

    @cached_property
    def _questions(self) -> Mapping[SplitName, list[Question]]:
        read = _read_table if self._is_table else _read_file
        return {part: read(paths) for part, paths in self._files.items()}


def squad_file(data: str | Path | None) -> Path:
    """Return the path of the development set, given the folder with the file (see `data_folder`).

    Raises:
        InputError: The file is missing.
    """
    folder, file = data_folder(SQuADDev.name, data), "squad_dev.json.gz"
    hint = "it cannot be downloaded: put there the development set of SQuAD 1.1 with a split for each article"
    require_file(SQuADDev.name, folder, (file,), hint)
    return folder / file


def read_questions(path: Path) -> list[Question]:
    """Read questions from a file, which may be compressed (see `QuestionFile`).

    Raises:
        InputError: The file cannot be read, has another format, or has no questions.
    """
    questions = list[Question]()
    for row in iterate_questions(path):
        if isinstance(row, InputError):
            raise row
        questions.append(row)
    if not questions:
        raise InputError(f"{path} has no questions: give a file in the format of SQuAD, or JSON Lines")
    return questions


def iterate_questions(path: Path) -> Iterator[Question | InputError]:
    """Yield the questions of a file, and an InputError for each line of JSON Lines that is no question.

    Raises:
        InputError: The file cannot be read, or has another format.
    """
    is_lines = remove_compressed_suffix(path.name).endswith(".jsonl")
    return _read_lines(path) if is_lines else _read_squad(path)


def _read_file(paths: Sequence[Path]) -> list[Question]:
    return read_questions(paths[0])


def _read_table(paths: Sequence[Path]) -> list[Question]:
    """Read the rows of a table, in which a cell of answers has the lists "text" and "answer_start", as in SQuAD."""
    columns = [find_column(paths[0], [name], "questions") for name in ("question", "context", "answers")]
    questions = list[Question]()
    for row in rows_of(paths):
        place = locate_row(row)
        cells: dict[str, Any] = {column: read_cell(row, column) for column in columns}
        try:
            if isinstance(answers := cells["answers"], dict):
                found = zip(answers["text"], answers["answer_start"], strict=True)
                cells["answers"] = [{"text": text, "answer_start": start} for text, start in found]
            questions.append(_question(place, cells, cells["context"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{place}: {QUESTION_FORMAT} are expected ({type(error).__name__})") from error
    if not questions:
        raise InputError(f"{paths[0]} has no questions: give one row per question")
    return questions


def _read_lines(path: Path) -> Iterator[Question | InputError]:
    for number, line in enumerate(open_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
            yield _question(place, row, row["context"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else type(error).__name__
            yield InputError(f"{place}: an object with {QUESTION_FORMAT} is expected ({reason})")


def _read_squad(path: Path) -> Iterator[Question]:
    place = str(path)
    try:
        with open_decompressed(path) as file:
            articles = json.loads(file.read())["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for row in paragraph["qas"]:
                    place = f"{path}, question {row.get('id', row['question'])}"
                    yield _question(place, row, paragraph["context"], str(article.get("split", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{place}: the format of SQuAD is expected, or JSON Lines in a file .jsonl ({one_line(error)})"
        ) from error


def _question(place: str, row: Mapping[str, Any], context: str, split: str = "") -> Question:
    answers: list[tuple[str, int | None]] = []
    for answer in [row["answers"]] if isinstance(row["answers"], str) else row["answers"]:
        found = (answer, None) if isinstance(answer, str) else (answer["text"], answer["answer_start"])
        answers.append(found)
    texts, starts = [row["question"], context, *(text for text, _ in answers)], [start for _, start in answers]
    if not all(isinstance(text, str) for text in texts) or not all(
        start is None or type(start) is int for start in starts
    ):
        raise TypeError
    return Question(place, row["question"], context, tuple(answers), split)


def _examples(kind: AnswerKind, rows: Sequence[Question]) -> Examples[Question]:
    return Examples(rows, partial(read_question, kind), _place_of, origin=_input_of)


def read_question(kind: AnswerKind, row: Question) -> Example:
    """Return a question as an example.

    Raises:
        InputError: The question has no answers, or an answer is not in its context.
    """
    if not row.answers:
        raise InputError(f"{row.place}: the question has no answers; remove it, or give its answers")
    texts = tuple(text for text, _ in row.answers)
    if kind == "write":
        return Example(_input_of(row), texts)
    try:
        spans = tuple(
            word_span(row.context, row.context.find(text) if start is None else start, text)
            for text, start in row.answers
        )
    except InputError as error:
        raise InputError(f"{row.place}: {error}") from error
    return Example(_input_of(row), SpanTarget(spans, texts, row.context))


def _input_of(row: Question) -> dict[str, str]:
    return {QUESTION: row.question, CONTEXT: row.context}


def _place_of(row: Question) -> str:
    return row.place
