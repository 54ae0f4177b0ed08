"""Functions that load the experiments of a file and check the settings of an experiment."""

import difflib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from unifier.comparison import Comparison
from unifier.experiment import Experiment
from unifier.plugins import find_recipe
from unifier.settings import REQUIRED, flatten, keyword_arguments, list_settings
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

MAX_INTEGER = 2**53
"""Largest absolute value of an integer setting. With larger numbers, the sizes of tensors overflow."""


def list_experiments(file: str | Path) -> dict[str, Callable[..., Experiment | Comparison]]:
    """Return the experiments and comparisons of a file, as a mapping from names to functions.

    Args:
        file: A Python file, or the name of an installed recipe, such as `pictures`.

    Raises:
        InputError: The file does not exist, is not a Python file, or does not define an experiment.
    """
    path = find_recipe(file)
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{file}: not a Python file; give a file whose name ends in .py")
    module = _load_file(path)
    functions: dict[str, Callable[..., Experiment | Comparison]] = {}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ != module.__name__:
            continue
        try:
            returned = get_type_hints(function).get("return")
        except NameError as error:  # Annotations may contain types that are imported for type checkers only.
            if function.__annotations__.get("return") in (Experiment, Comparison, "Experiment", "Comparison"):
                raise InputError(f"{file}: the annotations of {name} cannot be read: {error}") from error
            continue
        if returned in (Experiment, Comparison):
            functions[name] = function
    if not functions:
        raise InputError(f"{file}: no experiment found; define a function with '-> Experiment' or '-> Comparison'")
    return functions


def load_experiment(reference: str) -> Callable[..., Experiment | Comparison]:
    """Return the function of an experiment, given a reference FILE or FILE:name.

    If the reference contains no name, return the only experiment of the file. If the file has several experiments and
    no name is given, return the experiment with the name of the file.
    """
    file, name = split_reference(reference)
    functions = list_experiments(file)
    name = name or (Path(file).stem if len(functions) > 1 else next(iter(functions)))
    if name not in functions:
        choices = " or ".join(f"{file}:{choice}" for choice in functions)
        raise InputError(f"{file}: no experiment '{name}'; use {choices}")
    return functions[name]


def split_reference(reference: str) -> tuple[str, str]:
    """Split a reference into file and name. The name is empty if the reference has no name.

    The path of the file may contain colons.
    """
    file, _, name = reference.rpartition(":")
    return (file, name) if file and name.isidentifier() else (reference, "")


def _load_file(path: Path) -> Any:
    # The file's folder is added to `sys.path`, so experiments can import each other by file name.
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None and (path.stem in sys.stdlib_module_names or hasattr(loaded, "__path__")):
        raise InputError(f"{path.name}: a Python module or package already has this name: rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]  # A later import must not use a half-initialized module.
        if isinstance(error, SyntaxError):
            file = Path(error.filename or path).name
            raise InputError(f"{file}, line {error.lineno}: not Python ({error.msg})") from error
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{path.name}: not a text file in UTF-8") from error
        raise
    return module


DescribedT = TypeVar("DescribedT")


RESERVED_NAMES = (
    "seed",
    "data_folder",
    "out",
    "track",
    "tensorboard",
    "loggers",
    "callbacks",
    "trainer",
    "resume",
    "name",
    "devices",
    "nodes",
    "ray",
    "trial_cpus",
    "trial_gpus",
)
"""Parameter names of the function `run`, which are reserved. An experiment cannot have settings with reserved names."""


def check_settings(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from the name of each setting to its value. A setting without a given value has its default.

    Args:
        function: The function of an experiment or a comparison.
        given: A mapping from setting names to values. The name of a parameter may be mapped to a complete setting
            group. Texts from the command line are converted to the setting's type.

    Raises:
        InputError: A name is unknown or reserved, a value has the wrong type, or a required setting is missing.
    """
    settings = list_settings(function)
    if reserved := [name for name in RESERVED_NAMES if name in settings]:
        raise InputError(
            f"{function.__name__} has a setting with the reserved name '{reserved[0]}': rename the setting"
        )
    given = flatten(function, given)
    for name in given:
        if name not in settings:
            raise unknown_setting(name, {function.__name__: list(settings)})
    values: dict[str, Any] = {}
    for name, setting in settings.items():
        if name in given:
            values[name] = parse_setting(name, given[name], setting.type)
        elif setting.default is REQUIRED:
            raise InputError(f"the setting '{name}' of {function.__name__} has no default: give {name}=VALUE")
        else:  # A function is stored by its import path.
            default = setting.default
            values[name] = parse_setting(name, default, setting.type) if callable(default) else default
    return values


def unknown_setting(name: str, known: Mapping[str, Sequence[str]]) -> InputError:
    """Return the error for an unknown setting. `known` is a mapping from function names to names of settings."""
    if name == "seeds":
        return InputError("no setting 'seeds': give seed=N, or seeds=0,1,... with folds=N")
    owners = {setting: owner for owner, settings in reversed(list(known.items())) for setting in settings}
    if close := difflib.get_close_matches(name, owners, n=1):
        return InputError(f"no setting '{name}'; did you mean '{close[0]}'? (of {owners[close[0]]})")
    listed = "; ".join(f"{owner} has {', '.join(settings) or 'none'}" for owner, settings in known.items())
    return InputError(f"no setting '{name}'; {listed}")


def build_comparison(function: Callable[..., Any], given: Mapping[str, Any]) -> tuple[Comparison, dict[str, Any]]:
    """Build a comparison. Return the comparison, and a mapping from setting names to values.

    Settings that the comparison's function does not accept are passed to the experiments that accept these settings.
    """
    own_names = {*list_settings(function), *inspect.signature(function).parameters}
    own = check_settings(function, {name: value for name, value in given.items() if name in own_names})
    comparison = build_described(function, own, Comparison)
    experiments = {make.__name__: list_settings(make) for make in comparison.experiments}
    passed: dict[str, Any] = {}
    for name, value in given.items():
        if name not in own_names:
            owner = next((settings for settings in experiments.values() if name in settings), None)
            if owner is None:
                known = {function.__name__: list(list_settings(function))}
                raise unknown_setting(name, known | {make: list(names) for make, names in experiments.items()})
            passed[name] = parse_setting(name, value, owner[name].type)
    return replace(comparison, settings={**comparison.settings, **passed}), {**own, **passed}


def build_described(function: Callable[..., Any], settings: Mapping[str, Any], kind: type[DescribedT]) -> DescribedT:
    """Call the function of an experiment or a comparison with the values of all settings.

    An experiment without a name gets the name of the function.

    Raises:
        InputError: The function does not return an object of the type `kind`, or code in the function's own file raises
            a ValueError. A ValueError from another file is not changed, so its traceback stays visible.
    """
    try:
        described = function(**keyword_arguments(function, settings))
    except InputError:
        raise
    except ValueError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename != inspect.getfile(function):
            raise
        raise InputError(f"{Path(last.filename).name}, line {last.lineno}: {one_line(error)}") from error
    if not isinstance(described, kind):
        message = f"{function.__name__} returns {type(described).__name__}, but {kind.__name__} is expected"
        raise InputError(f"{message}: check the function's return annotation")
    if isinstance(described, Experiment) and described.name is None:
        described = replace(described, name=function.__name__)
    return described


def parse_setting(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to the type `kind`.

    A text value may be `none`, JSON, or a list whose items are separated by commas.

    Raises:
        InputError: The value does not fit the type, or is an integer above `MAX_INTEGER`.
    """
    parsed = _convert_setting(name, value, kind)
    if isinstance(parsed, int) and abs(parsed) > MAX_INTEGER:
        raise InputError(f"the setting {name}={parsed} does not fit: at most {MAX_INTEGER:,} is possible")
    return parsed


def _convert_setting(name: str, value: Any, kind: Any) -> Any:
    adapter = TypeAdapter(kind)
    if isinstance(value, str) and value.lower() in ("none", "null"):
        with suppress(ValidationError):
            return adapter.validate_python(None)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reason, is_list = _reason(error), _is_no_list(error)
    if isinstance(value, str):
        for read in (json.loads, lambda text: json.loads(f"[{text}]"), lambda text: text.split(",")):
            try:
                return adapter.validate_python(read(value))
            except ValidationError as error:
                if is_list and not _is_no_list(error):  # The error is in an item of the list.
                    reason = f"{error.errors()[0]['input']!r}: {_reason(error)}"
            except (ValueError, RecursionError):  # The text is not JSON, or is nested too deeply.
                continue
    raise InputError(f"the setting {name}={value!r} does not fit: {reason}")


def _is_no_list(error: ValidationError) -> bool:
    return any(detail["type"] in ("tuple_type", "list_type") for detail in error.errors())


def _reason(error: ValidationError) -> str:
    """Describe the expected type of a setting. For a union, describe all types of the union."""
    first, *others = dict.fromkeys(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
    reason = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    return f"{reason[0].lower()}{reason[1:]}"


def experiment_reference(function: Callable[..., Any]) -> str:
    """Return the reference FILE:name of a function, for `load_experiment`."""
    return f"{Path(inspect.getfile(function)).resolve()}:{function.__name__}"
