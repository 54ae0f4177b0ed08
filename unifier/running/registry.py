"""Experiments in a file, by name."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

from unifier.study.comparison import Comparison
from unifier.study.experiment import Experiment
from unifier_tokenizers import InputError


def experiments(file: str | Path) -> dict[str, Callable[..., Experiment | Comparison]]:
    """The functions a file defines that are annotated to return an Experiment or a Comparison, by name."""
    path = Path(file).resolve()
    if not path.exists():
        raise InputError(f"{file}: no such file; an experiment is a Python file")
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{file}: an experiment is a Python file, and this is none")
    module = _load(path)
    found: dict[str, Callable[..., Experiment | Comparison]] = {}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ != module.__name__:
            continue
        try:
            returned = get_type_hints(function).get("return")
        except NameError as error:  # imported for type checkers alone, it may be: a helper's does no harm
            if function.__annotations__.get("return") in (Experiment, Comparison, "Experiment", "Comparison"):
                raise InputError(f"{file}: the annotations of {name} cannot be read: {error}") from error
            continue
        if returned in (Experiment, Comparison):
            found[name] = function
    if not found:
        raise InputError(f"{file}: no experiment in it; one is a function with '-> Experiment' or '-> Comparison'")
    return found


def experiment(reference: str) -> Callable[..., Experiment | Comparison]:
    """The experiment that FILE or FILE:name names; without a name, the one called as its file, or the only one."""
    file, name = split_reference(reference)
    found = experiments(file)
    name = name or (Path(file).stem if len(found) > 1 else next(iter(found)))
    if name not in found:
        raise InputError(f"{file}: no experiment '{name}'; take {' or '.join(f'{file}:{one}' for one in found)}")
    return found[name]


def split_reference(reference: str) -> tuple[str, str]:
    """FILE:name or FILE as FILE and name, or nothing; other colons are of the file's path."""
    file, _, name = reference.rpartition(":")
    return (file, name) if file and name.isidentifier() else (reference, "")


def _load(path: Path) -> Any:
    # Under its plain name and with its folder on the path, so that studies may import each other as neighbours.
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if known is not None and (path.stem in sys.stdlib_module_names or hasattr(known, "__path__")):
        raise InputError(f"{path.name}: a Python module or package has that name already: rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]  # or half of it would be found there again
        if isinstance(error, SyntaxError):
            file = Path(error.filename or path).name
            raise InputError(f"{file}, line {error.lineno}: not Python ({error.msg})") from error
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{path.name}: not a text file in UTF-8") from error
        raise
    return module
