"""The settings of an experiment: the keyword arguments of its function, checked against its signature."""

import difflib
import inspect
import json
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

Described = TypeVar("Described")

TAKEN = ("seed", "data_folder", "out", "track", "tensorboard", "resume")
"""What `run` takes for itself, so that no experiment would be given it."""


def check_settings(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a function, defaults filled in; a text (from the command line) becomes what its type says,
    or the default's where none is said.

    Raises InputError for a name that the signature lacks, a value of another type, and one that is missing.
    """
    parameters = inspect.signature(function).parameters
    if taken := [name for name in TAKEN if name in parameters]:
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
            settings[name] = convert(name, given[name], hints.get(name, unsaid))
        elif parameter.default is inspect.Parameter.empty:
            raise InputError(f"the setting '{name}' of {function.__name__} has no default: give {name}=VALUE")
        else:
            settings[name] = parameter.default
    return settings


def describe(function: Callable[..., Any], settings: Mapping[str, Any], kind: type[Described]) -> Described:
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


def convert(name: str, value: Any, kind: Any) -> Any:
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
