"""The expected content of result files. Parts of a file that do not fit are named and left out."""

import fnmatch
import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from unifier.files import printable, read_bytes, read_csv, read_json, recorded_hashes
from unifier_tokenizers import InputError

MAX_NUMBER = 1e30
"""Maximum absolute value of a number in a result file, because larger numbers overflow in figures and in squares."""

MAX_NAMED = 3
"""Maximum number of faults or runs that one line names."""

ALWAYS_WRITTEN = ("metrics.csv", "samples.json")
"""The files that every finished run has. The other files depend on the kind of the tasks."""


def _check_score(value: float) -> float:
    if math.isinf(value) or abs(value) > MAX_NUMBER:
        raise ValueError("the number is too large")
    return value


Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
CostNumber = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, strict=False)]
Rate = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**63)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**64)]
ScoreNumber = Annotated[float, AfterValidator(_check_score)]
"""A number, or NaN for a score that is not defined."""
Name = Annotated[str, Field(max_length=200)]
Text = Annotated[str, Field(max_length=10_000)]
Settings = dict[Name, Any]


class _Part(BaseModel):
    """An object in a file. Unknown keys are ignored, because files of other versions may contain them."""

    model_config = ConfigDict(strict=True, defer_build=True)


class _Budget(_Part):
    tokens: CostNumber
    flops: CostNumber
    seconds: CostNumber
    steps: CostNumber
    examples: CostNumber | None = None
    peak_memory_bytes: CostNumber | None = None


class _Parameters(_Part):
    total: CostNumber


class _Speed(_Part):
    tokens_per_second: CostNumber | None = None
    test_seconds: CostNumber | None = None


class _ScoreRange(_Part):
    metric: Name
    chance: Number
    reference: Number | None = None
    origin: Text


class _Data(_Part):
    name: Text
    sha256: Name
    train: Count
    val: Count
    test: Count
    max_score: Number | None = None
    lower_is_better: list[Name] = []
    score_range: _ScoreRange | None = None
    skipped: dict[Name, Count] = {}
    dropped: dict[Name, Count] = {}
    copies: Count | None = None


class _Lineage(_Part):
    start: Name = ""
    tokenizers: list[Name] = []
    heads: list[Name] = []
    teachers: list[Name] = []
    pretraining: dict[Name, CostNumber] = {}
    counted: bool = True


class ResultFile(_Part):
    """The content of result.json."""

    name: Name
    status: Name
    tasks: list[Name]
    seed: Seed
    metrics: dict[str, ScoreNumber | None]
    parameters: _Parameters
    budget: _Budget
    task_budgets: dict[str, _Budget] = {}
    speed: _Speed | None = None
    settings: Settings = {}
    data: dict[str, _Data] = {}
    lineage: _Lineage = Field(default_factory=_Lineage)
    signatures: dict[str, Text] = {}
    versions: dict[str, Name] = {}
    commit: Name = ""
    machine: Text = ""
    error: Text | None = None


class _Varied(_Part):
    model_config = ConfigDict(strict=True, defer_build=True, extra="allow")
    share: Share = 1.0

    @model_validator(mode="after")
    def _check_length(self) -> "_Varied":
        if len(str(self)) > 2000:
            raise ValueError("the settings are longer than 2000 characters")
        return self


class TrialFacts(_Part):
    """The facts that distinguish a trial from other trials of a comparison."""

    mode: Literal["solo", "joint", "transfer", "showcase"] = "solo"
    start: Name | None = None
    shuffled: bool = False
    trainable: Name = "all"
    varied: _Varied = Field(default_factory=lambda: _Varied())


class RowEntry(TrialFacts):
    """A row of comparison.json."""

    experiment: Name
    task: Name
    seed: Seed
    folder: Text | None = None
    result: ResultFile | None = None


class ComparisonFile(_Part):
    """The content of comparison.json. Its rows and pairs are checked one by one."""

    name: Name
    status: Name
    rows: list[Any]
    question: Text | None = None
    problems: list[Any] = []
    settings: Settings = {}
    representation: list[Any] = []


class SettingsFile(_Part):
    """The content of settings.json."""

    settings: Settings
    seed: Seed
    comparison: Name | None = None
    trial: Settings | None = None


class _Trunk(_Part):
    mode: Literal["solo", "joint", "transfer", "showcase"]
    start: Name | None
    shuffled: bool
    trainable: Name
    varied: _Varied
    experiment: Name = ""


class SimilarityEntry(_Part):
    """The similarity of two trunks in one layer."""

    a: _Trunk
    b: _Trunk
    task: Name
    layer: Name
    cka: Number | None = None
    cka_chance: Number | None = None
    cka_calibrated: Number | None = None
    cka_p: Number | None = None
    neighbors: Number | None = None
    neighbors_chance: Number | None = None
    neighbors_calibrated: Number | None = None
    neighbors_p: Number | None = None

    @model_validator(mode="after")
    def _check_measures(self) -> "SimilarityEntry":
        for name in ("cka", "neighbors"):
            values = [getattr(self, f"{name}{part}") for part in ("", "_chance", "_calibrated")]
            if f"{name}_calibrated" in self.model_fields_set and None in values:
                raise ValueError(f"{name} is not complete")
        return self


ImageUrl = Annotated[str, Field(pattern=r"^data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]*={0,2}$")]
AudioUrl = Annotated[str, Field(pattern=r"^data:audio/[a-z0-9.+-]+;base64,[A-Za-z0-9+/]*={0,2}$")]


class Sample(_Part):
    """A test example in samples.json. Pictures and sounds are data URLs, so that a page loads nothing."""

    input: Text
    target: Text
    prediction: Text
    question: Text = ""
    context: Text = ""
    """The context of a question, in the notation of `marks`."""
    image: ImageUrl = ""
    target_image: ImageUrl = ""
    """The picture with the true mask."""
    prediction_image: ImageUrl = ""
    """The picture with the predicted mask, or the alignment of speech."""
    marks: Literal["", "entities", "continuation", "speech"] = ""
    """The notation of target and prediction. With "entities", an entity is written as [words: type].

    With "continuation", the predicted picture or tune is a continuation of the first half of the target. With "speech",
    the predicted sound is the speech of the input.
    """
    audio: AudioUrl = ""
    target_audio: AudioUrl = ""
    """The true tune, or the recorded sound."""
    prediction_audio: AudioUrl = ""
    """The tune whose second half is generated, or the generated sound."""


class _Point(_Part):
    x: Rate
    y: Rate
    label: Text = ""
    input: Text = ""
    image: ImageUrl = ""
    audio: AudioUrl = ""
    count: Count = 0


class _Map(_Part):
    method: Name
    points: Annotated[list[_Point], Field(min_length=1, max_length=1000)]


class MapsEntry(_Part):
    """The entry of a task in maps.json."""

    examples: _Map | None = None
    tokens: _Map | None = None


class _Layer(_Part):
    entropy: Number | None = None
    distance: Number | None = None
    uniform_distance: Number | None = None
    agreement: Number | None = None


class _LayerLines(_Part):
    name: Name
    queries: list[str]
    keys: list[str]
    heads: Annotated[list[list[list[Number]]], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_shape(self) -> "_LayerLines":
        if any([len(row) for row in head] != [len(self.keys)] * len(self.queries) for head in self.heads):
            raise ValueError("a head is not a matrix with a row per query and a column per key")
        return self


class AttentionEntry(_Part):
    """The entry of a task in attention.json."""

    unit: Name
    layers: list[_Layer]
    heads: list[_LayerLines] = []
    alignment_error_rate: Number = 0.0
    alignment_error_rate_chance: Number = 0.0

    @model_validator(mode="after")
    def _check_rates(self) -> "AttentionEntry":
        if len(self.model_fields_set & {"alignment_error_rate", "alignment_error_rate_chance"}) == 1:
            raise ValueError("an alignment error rate is missing")
        return self


class Confusion(_Part):
    """The entry of a task in confusions.json."""

    labels: Annotated[list[str], Field(min_length=1)]
    counts: list[list[Count]] = []

    @model_validator(mode="after")
    def _check_square(self) -> "Confusion":
        size = len(self.labels)
        if "counts" in self.model_fields_set and [len(row) for row in self.counts] != [size] * size:
            raise ValueError("counts is not a matrix with a row and a column per label")
        return self


class _Bucket(_Part):
    model_config = ConfigDict(strict=True, defer_build=True, extra="allow")
    words: CostNumber
    examples: Count | None = None
    bleu: Number
    to: Count


LengthsEntry = Annotated[list[_Bucket], Field(min_length=1)]
"""The entry of a task in lengths.json."""


class _Distance(_Part):
    distance: Count
    examples: Count | None = None
    score: Number


DistancesEntry = Annotated[list[_Distance], Field(min_length=1)]
"""The entry of a task in distances.json."""

ExpertsEntry = Annotated[list[Annotated[list[Count], Field(min_length=1)]], Field(min_length=1)]
"""The entry of a task in experts.json: the number of tokens of each expert, by layer."""

_problems: ContextVar[dict[tuple[str, str], dict[str, None]] | None] = ContextVar("problems", default=None)


@contextmanager
def collect_problems() -> Generator[Callable[[], list[str]]]:
    """Collect the faults in the files of runs that are read within the context.

    The context's function returns one line for each kind of fault.
    """
    problems = dict[tuple[str, str], dict[str, None]]()

    def describe() -> list[str]:
        return [
            f"{name} of {', '.join([*runs][:MAX_NAMED])}"
            f"{f' and {len(runs) - MAX_NAMED} other runs' if len(runs) > MAX_NAMED else ''}: {reason}; left out"
            for (name, reason), runs in problems.items()
        ]

    token = _problems.set(problems)
    try:
        yield describe
    finally:
        _problems.reset(token)


def add_problem(path: Path, reason: str) -> None:
    """Add a fault of a run's file to the current `collect_problems`."""
    if (problems := _problems.get()) is not None:
        problems.setdefault((path.name, reason), {})[path.parent.name] = None


def parse_entry(kind: Any, content: Any, name: str, needed: Collection[str] = ()) -> tuple[Any, list[str]]:
    """Return the content without the parts that do not fit, and one line per part.

    A list with a wrong entry is left out completely, because the meaning of an entry can depend on its index.

    Args:
        kind: The expected type: a class of this module, or a type such as list[Sample].
        content: The content of a JSON file.
        name: The name of the content for messages.
        needed: The keys without which the content has no meaning.

    Raises:
        InputError: No part or not each needed part fits.
    """
    problems: list[str] = []
    while True:
        try:
            _adapter(kind).validate_python(content)
            return content, problems
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False, include_context=False)
        except RecursionError:
            raise InputError(f"{name}: broken (nested too deeply)") from None
        for fault in faults[:MAX_NAMED]:
            problems.append(f"{name}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"[:300])
        if any(not fault["loc"] or fault["loc"][0] in needed for fault in faults):
            raise InputError(f"{problems[-1]}; left out")
        paths = {_removable(content, fault["loc"]) for fault in faults}
        if () in paths:
            raise InputError(f"{problems[-1]}; left out")
        for path in sorted(paths, key=len):
            content = _without(content, path)


def read_object(path: Path, **required: type) -> dict[str, Any]:
    """Return the object in a JSON file like `read_json`. Control characters in its texts are escaped.

    Raises:
        InputError: The file is a link out of its folder, or `read_json` raises InputError.
    """
    return clean(read_json(_check_link(path), **required))


def read_entry(path: Path, task: str, kind: Any) -> Any:
    """Return the entry of a task in a run's JSON file, or None. A fault of the file is added to the problems.

    Args:
        path: The file, which may be missing.
        task: The name of the task.
        kind: The expected type of the entry.
    """
    try:
        if not _is_present(path) or (entry := read_object(path).get(task)) is None:
            return None
        entry, problems = parse_entry(kind, entry, task)
    except InputError as error:
        add_problem(path, _reason(path, error))
        return None
    for problem in problems:
        add_problem(path, problem)
    return entry


def read_text(path: Path) -> str:
    """Return the text of a run's file. Raise InputError if the file is damaged or too large."""
    try:
        return read_bytes(_check_link(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: broken ({error})") from error


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a run's folder whose names match, with missing files that the run wrote.

    A fault of hashes.json is added to the problems.
    """
    names = {path.name for path in folder.glob(pattern)}
    try:
        names |= {*fnmatch.filter(recorded_hashes(folder), pattern)}
    except InputError as error:
        add_problem(folder, str(error))
    return [folder / name for name in sorted(names)]


def read_rows(path: Path, required: Collection[str] = (), numeric: Collection[str] = ()) -> list[dict[str, str]]:
    """Return the rows of a run's CSV file, or no rows. A fault of the file is added to the problems.

    Args:
        path: The file, which may be missing.
        required: The columns without which the file has no meaning.
        numeric: The beginnings of the names of columns with numbers. Empty cells are allowed.
    """
    try:
        return parse_rows(path, required, numeric) if _is_present(path) else []
    except InputError as error:
        add_problem(path, _reason(path, error))
        return []


def parse_rows(path: Path, required: Collection[str] = (), numeric: Collection[str] = ()) -> list[dict[str, str]]:
    """Return the rows of a CSV file as `read_rows` does, but raise InputError for a fault."""
    rows = read_csv(_check_link(path))
    if rows and (missing := [name for name in required if name not in rows[0]]):
        raise InputError(f"{path}: broken (it lacks the column {missing[0]})")
    for number, row in enumerate(rows, start=1):
        for name, cell in row.items():
            if cell and name.startswith(tuple(numeric)) and not _is_number(cell):
                raise InputError(f"{path}: broken (row {number}: {name} is not a number)")
    return rows


def _is_number(cell: str) -> bool:
    try:
        _check_score(float(cell))
    except ValueError:
        return False
    return True


def clean(value: Any) -> Any:
    """Return JSON content with escapes in place of the control characters of its texts. Line ends and tabs stay."""
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    if isinstance(value, Mapping):
        return {clean(key): clean(entry) for key, entry in value.items()}
    return [clean(entry) for entry in value] if isinstance(value, list) else value


def _check_link(path: Path) -> Path:
    """Return the path. Raise InputError for a link out of the folder, because the target then enters the page."""
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise InputError(f"{path}: broken (it is a link out of the folder)")
    return path


def _is_present(path: Path) -> bool:
    """Return True if the file exists. Raise InputError if a file is missing that the run wrote."""
    if path.exists():
        return True
    if path.is_symlink() or path.name in ALWAYS_WRITTEN or path.name in recorded_hashes(path.parent):
        raise InputError("the file is missing")
    return False


def _reason(path: Path, error: InputError) -> str:
    """Return the message of an error without the path of the file, so that equal faults of runs form one line."""
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _removable(content: Any, place: Sequence[Any]) -> tuple[Any, ...]:
    """Return the path of the smallest entry of a mapping around a fault. A list is always removed as a whole."""
    path: list[Any] = []
    for key in place:
        if not isinstance(content, Mapping) or key not in content:
            break
        content = content[key]
        path.append(key)
    return tuple(path)


def _without(content: Any, path: Sequence[Any]) -> Any:
    """Return a copy of nested mappings without the entry at a path, which may be removed already."""
    if not isinstance(content, Mapping) or path[0] not in content:
        return content
    if len(path) == 1:
        return {key: value for key, value in content.items() if key != path[0]}
    return {**content, path[0]: _without(content[path[0]], path[1:])}
