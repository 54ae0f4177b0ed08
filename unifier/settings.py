"""The settings of a recipe: its keyword arguments, and the fields of its setting groups.

A parameter whose type is a dataclass is a setting group. Each field of the dataclass is a setting of the recipe. For
example, `dim=64` on the command line sets the field `dim` of the parameter `trunk`.
"""

import ast
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, final, get_type_hints

from pydantic_core import PydanticCustomError, core_schema

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

REQUIRED: Any = inspect.Parameter.empty
"""The value of `Setting.default` for a setting that has no default and must be given."""


@final
@dataclass(frozen=True)
class Setting:
    """One setting of a recipe, with its type and its default."""

    name: str
    parameter: str
    """The parameter of the recipe's function that receives the value."""
    field: str | None
    """The field of the setting group that receives the value. None if the parameter is not a setting group."""
    type: Any
    default: Any
    """The default value, or `REQUIRED` if the setting has no default value."""
    doc: str
    """The explanation of the setting without line ends, or an empty text."""


@final
class Function:
    """A function or a class as the value of a setting, stored as its import path, such as torch.optim.SGD.

    Two values with equal import paths are equal.
    """

    def __init__(self, path: str) -> None:
        """Import the function. Raise InputError if no function has the path."""
        try:
            self.function = resolve_name(path)
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(f"{path}: no function or class has this import path ({one_line(error)})") from error
        if not callable(self.function):
            raise InputError(f"{path} is not a function or a class")
        self.path = path

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Function":
        """Return the value for a function. Raise InputError for a lambda, and for others without an import path."""
        path = f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', '')}"
        with suppress(InputError):
            if (found := cls(path)).function is function:
                return found
        raise InputError(
            f"{function!r} has no import path, so a resumed run could not find the function: define the function at "
            "the top level of a file, or give it to Training inside the experiment's function"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        """Accept a function, or the text of an import path with a dot."""
        return core_schema.no_info_plain_validator_function(cls._validate)

    @classmethod
    def _validate(cls, value: Any) -> "Function":
        if isinstance(value, Function):
            return value
        if callable(value):
            return cls.of(value)
        if isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value):
            return cls(value)
        raise PydanticCustomError("import_path", "a function or its import path, such as torch.optim.SGD")


if TYPE_CHECKING:
    AnyFunction = Callable[..., Any]  # In Python code, any function may be given.
else:
    AnyFunction = Function


def list_settings(function: Callable[..., Any]) -> dict[str, Setting]:
    """Return a mapping from the names of a recipe's settings to the settings, in the order of the signature.

    A setting is named `parameter.field` only if another setting has the name of the field.

    Raises:
        InputError: A parameter cannot be passed as a keyword argument.
    """
    docs = _argument_docs(function)
    found: list[Setting] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InputError(f"{function.__name__} takes {parameter}: declare each setting as a named keyword argument")
        kind = _annotation(function, name)
        if isinstance(kind, type) and is_dataclass(kind):
            group: Any = kind() if parameter.default is REQUIRED else parameter.default
            hints, field_docs = get_type_hints(kind), _field_docs(kind)
            for field in fields(kind):
                value, doc = getattr(group, field.name), field_docs.get(field.name, "")
                found.append(Setting(field.name, name, field.name, hints[field.name], value, doc))
        else:
            found.append(Setting(name, name, None, kind, parameter.default, docs.get(name, "")))
    counts = Counter(setting.name for setting in found)
    return {
        setting.name: setting
        for setting in (
            replace(each, name=f"{each.parameter}.{each.field}") if each.field and counts[each.name] > 1 else each
            for each in found
        )
    }


def flatten(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each setting group in `given` by its fields. A separately given field has priority over the group."""
    fields_of_groups = [setting for setting in list_settings(function).values() if setting.field]
    whole = {each.parameter for each in fields_of_groups if is_dataclass(given.get(each.parameter))}
    flat = {
        each.name: getattr(given[each.parameter], each.field or "")
        for each in fields_of_groups
        if each.parameter in whole
    }
    return flat | {name: value for name, value in given.items() if name not in whole}


def keyword_arguments(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Build the keyword arguments of a recipe from a mapping that contains the value of every setting."""
    arguments, groups = dict[str, Any](), dict[str, dict[str, Any]]()
    for name, setting in list_settings(function).items():
        if setting.field is None:
            arguments[setting.parameter] = settings[name]
        else:
            groups.setdefault(setting.parameter, {})[setting.field] = settings[name]
    return arguments | {parameter: _annotation(function, parameter)(**values) for parameter, values in groups.items()}


def _annotation(function: Callable[..., Any], name: str) -> Any:
    """Return the annotation of a parameter, or the type of its default if the annotation is missing."""
    default = inspect.signature(function).parameters[name].default
    return get_type_hints(function).get(name, Any if default in (REQUIRED, None) else type(default))


@cache
def _field_docs(group: type) -> dict[str, str]:
    """Return the docstring of each documented dataclass field without line ends."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    assert isinstance(node, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return docs


def _argument_docs(function: Callable[..., Any]) -> dict[str, str]:
    """Return the explanation of each parameter in the `Args:` section of a docstring, without line ends."""
    _, _, arguments = (inspect.getdoc(function) or "").partition("Args:\n")
    section = re.split(r"^\S", arguments, maxsplit=1, flags=re.MULTILINE)[0]
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}
