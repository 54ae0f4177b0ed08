"""The plug-ins of other people's packages, and our own among them, by name.

Experiments in a file, by name.

The settings of an experiment: the keyword arguments of its function, checked against its signature."""

import difflib
import importlib.util
import inspect
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from unifier.comparison import Comparison
from unifier.experiment import Experiment
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

PluginKind = Literal["tokenizers", "heads", "sources"]


def plugins(kind: PluginKind) -> dict[str, Any]:
    """What installed packages register under `unifier.<kind>`, by name.

    One that is broken is named in a warning, and so is one with the name of another, which is left out.
    """
    loaded = {entry.name: _load_entry(entry) for entry in _entries(kind)}
    return {name: plugin for name, plugin in loaded.items() if plugin is not None}


def plugin_names(kind: PluginKind) -> list[str]:
    """The names of `plugins`, in order; this package's own are not loaded for that, which would take seconds."""
    return sorted(entry.name for entry in _entries(kind) if _is_own(entry) or _load_entry(entry) is not None)


def _entries(kind: PluginKind) -> Iterator[EntryPoint]:
    known: dict[str, str] = {}
    for entry in entry_points(group=f"unifier.{kind}"):
        if entry.name in known:
            said = f"the plug-in '{entry.name}' ({entry.value}) has the name of another ({known[entry.name]})"
            warnings.warn(f"{said}: it is left out until it has its own", stacklevel=3)
            continue
        known[entry.name] = entry.value
        yield entry


def _load_entry(entry: EntryPoint) -> Any:
    """What an entry point stands for; None where it is broken, which is said."""
    try:
        return entry.load()
    except Exception as error:  # whatever a stranger's module raises as it is imported
        warnings.warn(f"the plug-in '{entry.name}' ({entry.value}) is broken: {error!r}", stacklevel=3)
        return None


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "unifier"


def list_experiments(file: str | Path) -> dict[str, Callable[..., Experiment | Comparison]]:
    """The functions a file defines that are annotated to return an Experiment or a Comparison, by name."""
    path = Path(file).resolve()
    if not path.exists():
        raise InputError(f"{file}: no such file; an experiment is a Python file")
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{file}: an experiment is a Python file, and this is none")
    module = _load_file(path)
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


def load_experiment(reference: str) -> Callable[..., Experiment | Comparison]:
    """The experiment that FILE or FILE:name names; without a name, the one called as its file, or the only one."""
    file, name = split_reference(reference)
    found = list_experiments(file)
    name = name or (Path(file).stem if len(found) > 1 else next(iter(found)))
    if name not in found:
        raise InputError(f"{file}: no experiment '{name}'; take {' or '.join(f'{file}:{one}' for one in found)}")
    return found[name]


def split_reference(reference: str) -> tuple[str, str]:
    """FILE:name or FILE as FILE and name, or nothing; other colons are of the file's path."""
    file, _, name = reference.rpartition(":")
    return (file, name) if file and name.isidentifier() else (reference, "")


def _load_file(path: Path) -> Any:
    # Under its plain name and with its folder on the path, so that studies may import each other as neighbors.
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


DescribedT = TypeVar("DescribedT")


RESERVED_NAMES = ("seed", "data_folder", "out", "track", "tensorboard", "resume")
"""What `run` takes for itself, so that no experiment would be given it."""


def check_settings(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a function, defaults filled in; a text (from the command line) becomes what its type says,
    or the default's where none is said.

    Raises InputError for a name that the signature lacks, a value of another type, and one that is missing.
    """
    parameters = inspect.signature(function).parameters
    if taken := [name for name in RESERVED_NAMES if name in parameters]:
        raise InputError(f"{function.__name__} has a setting '{taken[0]}', which is a reserved name: rename it")
    for parameter in parameters.values():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InputError(f"{function.__name__} has {parameter}, and no setting can be given by that: name each")
    hints = get_type_hints(function)
    for name in given:
        if name not in parameters:
            if name == "seeds":
                raise InputError("no setting 'seeds': give seed=N, or seeds=0,1,... with folds=N")
            close = difflib.get_close_matches(name, parameters, n=1)
            owner = function.__name__
            hint = (
                f"did you mean '{close[0]}'? (of {owner})"
                if close
                else f"{owner} has {', '.join(parameters) or 'none'}"
            )
            raise InputError(f"no setting '{name}'; {hint}")
    settings: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name in given:
            unsaid = Any if parameter.default in (parameter.empty, None) else type(parameter.default)
            settings[name] = parse_setting(name, given[name], hints.get(name, unsaid))
        elif parameter.default is inspect.Parameter.empty:
            raise InputError(f"the setting '{name}' of {function.__name__} has no default: give {name}=VALUE")
        else:
            settings[name] = parameter.default
    return settings


def build_described(function: Callable[..., Any], settings: Mapping[str, Any], kind: type[DescribedT]) -> DescribedT:
    """What a function describes under settings that fit its signature.

    Raises InputError where that is not of the kind expected, and for a ValueError that its own file raises; one from
    deeper within keeps its traceback.
    """
    try:
        described = function(**settings)
    except InputError:
        raise
    except ValueError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename != inspect.getfile(function):
            raise
        raise InputError(f"{Path(last.filename).name}, line {last.lineno}: {one_line(error)}") from error
    if not isinstance(described, kind):
        said = f"{type(described).__name__}, where {kind.__name__} is expected"
        raise InputError(f"{function.__name__} returns {said}: is it annotated so?")
    return described


def parse_setting(name: str, value: Any, kind: Any) -> Any:
    """A value as the type `kind`; a text may also be None, JSON, or a list with commas."""
    adapter = TypeAdapter(kind)
    if isinstance(value, str) and value.lower() in ("none", "null"):
        with suppress(ValidationError):
            return adapter.validate_python(None)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reason = _reason(error)
        listed = any(one["type"] in ("tuple_type", "list_type") for one in error.errors())
    if isinstance(value, str):
        for read in (json.loads, lambda text: json.loads(f"[{text}]"), lambda text: text.split(",")):
            try:
                return adapter.validate_python(read(value))
            except ValidationError as error:
                wrong = error.errors()[0]["input"]
                reason = f"{wrong!r}: {_reason(error)}" if listed and wrong != value else reason
            except ValueError:  # json's
                continue
    raise InputError(f"the setting {name}={value!r} does not fit: {reason}")


def _reason(error: ValidationError) -> str:
    """What was expected: of a union each member says so."""
    first, *others = dict.fromkeys(one["msg"] for one in error.errors())
    reason = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    return f"{reason[0].lower()}{reason[1:]}"


def experiment_reference(function: Callable[..., Any]) -> str:
    """FILE:name of an experiment's function, by which a run finds it again."""
    return f"{Path(inspect.getfile(function)).resolve()}:{function.__name__}"
