"""Vectors of inputs: the mean output of a layer of the trunk, for search, maps and probes."""

import io
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
from numpy.typing import NDArray

from unifier.data.readers import iterate_table
from unifier.files import write_bytes, write_csv
from unifier.inference.inputs import Input, read_inputs
from unifier.inference.model import Model
from unifier.inference.predict import BadInputs, InputPredictions
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

Probe = Literal["linear", "knn"]
"""A classifier of vectors: logistic regression ("linear"), or the 5 nearest neighbors by cosine ("knn")."""

NEIGHBORS = 5


@final
class Vectors(NamedTuple):
    """The content of a file that `write_vectors` wrote."""

    values: NDArray[np.float32]
    """The vectors (inputs, D)."""
    names: list[str]
    """The path or the text of each input."""
    labels: list[str]
    """The label of each input: the column `label` of a table, or the folder of a file."""


def write_vectors(
    model: Model,
    task: str,
    paths: Sequence[str],
    out: Path,
    *,
    layer: str | None = None,
    bad_inputs: BadInputs = "stop",
) -> int:
    """Write the vectors of the inputs to a file, and their names and labels to a table. Return the number of vectors.

    For train.npy, the table is train.names.csv. A .parquet file contains the columns name, label and
    vector.

    Args:
        model: The model.
        task: The name of the task.
        paths: See `read_inputs`.
        out: The file, which ends with .npy or .parquet.
        layer: See `Model.embed`.
        bad_inputs: "stop" raises an error for an input that cannot be read, and "skip" leaves out the input.

    Raises:
        InputError: The file has another suffix or cannot be written, or an input cannot be read.
    """
    if out.suffix not in (".npy", ".parquet"):
        raise InputError(f"{out}: vectors are written as .npy or .parquet; give a name such as vectors.npy")
    inputs = read_inputs(paths, model.tasks[task].reader)
    rows = list(InputPredictions(partial(model.embed, task=task, layer=layer, bad_inputs="yield"), bad_inputs)(inputs))
    vectors = Vectors(
        np.stack([vector.numpy() for _, vector in rows]),
        [each.name for each, _ in rows],
        [_label(each) for each, _ in rows],
    )
    try:
        content = io.BytesIO()
        if out.suffix == ".parquet":
            _write_parquet(content, vectors)
        else:
            np.save(content, vectors.values)
            table = [{"name": name, "label": label} for name, label in zip(*vectors[1:], strict=True)]
            write_csv(names_file(out), table)
        write_bytes(out, content.getbuffer())
    except OSError as error:
        raise InputError(f"{out} cannot be written: {one_line(error)}") from error
    return len(rows)


def names_file(path: Path) -> Path:
    """Return the path of the table with the names and labels of a .npy file, such as train.names.csv."""
    return path.with_suffix(".names.csv")


def _label(each: Input) -> str:
    if "label" in each.cells:
        return each.cells["label"]
    return each.value.parent.name if isinstance(each.value, Path) else ""


def _write_parquet(content: io.BytesIO, vectors: Vectors) -> None:
    pyarrow, parquet = _import_parquet()
    columns = {"name": vectors.names, "label": vectors.labels, "vector": list(vectors.values)}
    parquet.write_table(pyarrow.table(columns), content)


def _import_parquet() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            "a .parquet file needs pyarrow: install unifier-torch[parquet], or give a .npy file"
        ) from error


def read_vectors(path: str | Path) -> Vectors:
    """Read a file that `write_vectors` wrote. Raises InputError if the file or its table cannot be read."""
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            columns = _import_parquet()[1].read_table(path).to_pydict()
            return Vectors(np.array(columns["vector"], np.float32), columns["name"], columns["label"])
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    rows = list(iterate_table(names_file(path), ("name", "label"), tab_separated=False))
    if values.ndim != 2 or len(rows) != len(values):
        raise InputError(f"{path} has {len(values)} vectors, but {names_file(path)} has {len(rows)} rows")
    return Vectors(values, [row.cells["name"] for row in rows], [row.cells["label"] for row in rows])


def probe_vectors(train: str | Path, test: str | Path, method: Probe = "linear") -> float:
    """Return the accuracy in percent of a classifier of vectors, which is trained on one file and tested on another.

    Args:
        train: A file of `write_vectors` for training.
        test: A file of `write_vectors` for the test.
        method: "linear" is logistic regression on standardized vectors (Alain and Bengio 2017). "knn" is a vote of the
            5 nearest neighbors by cosine similarity.

    Raises:
        InputError: A file cannot be read, its vectors have another width, or the labels have fewer than two classes.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    check_choice("method", method, get_args(Probe))
    known, new = read_vectors(train), read_vectors(test)
    if known.values.shape[1] != new.values.shape[1]:
        raise InputError(f"{train} has vectors of width {known.values.shape[1]}, but {test} of {new.values.shape[1]}")
    if len(set(known.labels)) < 2:
        raise InputError(f"{train}: at least two different labels are needed")
    neighbors = KNeighborsClassifier(min(NEIGHBORS, len(known.labels)), metric="cosine")
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier: Any = linear if method == "linear" else neighbors
    return 100 * float(classifier.fit(known.values, known.labels).score(new.values, new.labels))
