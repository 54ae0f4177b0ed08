"""The content of config.json: the class and the constructor arguments of each part of a model."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, final, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor, nn

from unifier.plugins import plugin_package, plugins_of
from unifier_tokenizers import InputError
from unifier_tokenizers.configurable import Configurable, StoredFile
from unifier_tokenizers.errors import one_line

OWN_PACKAGES = ("unifier", "unifier_tokenizers")
"""The packages whose classes a config.json may name without a plug-in."""


@final
class ConfigWriter:
    """Conversion of objects to JSON. Every object has a path, such as tasks.digits.tokenizer.

    A second use of an object becomes a reference to the path of its first use. A tied embedding therefore stays tied.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """Tensors among the arguments, keyed by their paths."""
        self.files: dict[str, StoredFile] = {}
        """Objects that are stored in files, keyed by file name."""
        self._paths: dict[int, Any] = {}
        """JSON of the references to known objects, keyed by the id of the object."""

    def encode(self, value: Any, path: str) -> Any:
        """Return an argument as JSON. Tensors and files are added to `tensors` and `files`."""
        if isinstance(value, Configurable | nn.Embedding | StoredFile) and id(value) in self._paths:
            return self._paths[id(value)]
        if isinstance(value, Configurable):
            content = self._encode_part(value, path)
            self._add_reference(value, path)
            return content
        if isinstance(value, nn.Embedding):
            self._add_reference(value, path)
            return {"embedding": list(value.weight.shape)}
        if isinstance(value, StoredFile):
            name = f"{type(value).__name__.lower()}-{len(self.files)}.json"
            self.files[name] = value
            self._paths[id(value)] = content = {"file": name, "class": class_path(type(value))}
            return content
        if isinstance(value, Tensor):
            self.tensors[path] = value
            return {"tensor": path}
        if isinstance(value, Mapping):
            return {"mapping": {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}}
        if isinstance(value, list | tuple):
            return [self.encode(item, f"{path}.{index}") for index, item in enumerate(value)]
        return value.item() if isinstance(value, np.generic) else value

    def _encode_part(self, part: Configurable, path: str) -> dict[str, Any]:
        content: dict[str, Any] = {"class": class_path(type(part))}
        if not is_own(content["class"]):
            content["package"] = plugin_package(type(part))
        arguments = part.constructor_arguments()
        content["arguments"] = {name: self.encode(value, f"{path}.{name}") for name, value in arguments.items()}
        return content

    def _add_reference(self, value: object, path: str) -> None:
        self._paths[id(value)] = {"part": path}
        if isinstance(value, nn.Module):
            for name, module in value.named_modules():
                if isinstance(module, nn.Embedding):
                    self._paths.setdefault(id(module), {"part": path, "module": name})


@final
class ConfigReader:
    """Construction of objects from JSON. No class is imported from outside unifier and the installed plug-ins."""

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, Tensor],
        classes: Sequence[type],
    ) -> None:
        """Store the sources of the objects.

        Args:
            folder: The folder with the files of stored objects.
            tensors: The tensors among the arguments, keyed by their paths.
            classes: The caller's own classes, which are in no installed package.

        Raises:
            InputError: `classes` is not a list of classes.
        """
        if isinstance(classes, type) or not all(isinstance(cls, type) for cls in classes):
            raise InputError(f"classes={classes!r}: a list of classes is expected, such as classes=[MyTokenizer]")
        self._folder, self._tensors = folder, tensors
        self._classes = {cls.__name__: cls for cls in classes}
        self._parts: dict[str, Any] = {}
        self._files: dict[str, StoredFile] = {}

    def decode(self, content: Any, path: str) -> Any:
        """Return the object that `ConfigWriter.encode` converted to `content`, or raise InputError."""
        if isinstance(content, list):
            return tuple(self.decode(item, f"{path}.{index}") for index, item in enumerate(content))
        if not isinstance(content, dict):
            return content
        try:
            value = self._decode_object(content, path)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: broken ({one_line(error)})") from error
        if "class" in content or "embedding" in content:
            self._parts[path] = value
        return value

    def _decode_object(self, content: dict[str, Any], path: str) -> Any:
        if "part" in content:
            part = self._parts[content["part"]]
            return part.get_submodule(content["module"]) if "module" in content else part
        if "embedding" in content:
            return nn.Embedding(*content["embedding"])
        if "file" in content:
            return self._decode_file(content["file"], content["class"])
        if "tensor" in content:
            return self._tensors[content["tensor"]]
        if "mapping" in content:
            return {key: self.decode(item, f"{path}.{key}") for key, item in content["mapping"].items()}
        cls = find_class(content["class"], content.get("package"), self._classes)
        arguments = {name: self.decode(item, f"{path}.{name}") for name, item in content["arguments"].items()}
        return construct(cls, arguments, path)

    def _decode_file(self, name: str, path: str) -> StoredFile:
        if name not in self._files:
            cls = find_class(path, None, self._classes, StoredFile)
            self._files[name] = cls.load(file_name(self._folder, name))
        return self._files[name]


def class_path(cls: type) -> str:
    """Return the import path of a class, such as unifier.trunks.transformer.Transformer."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_own(path: str) -> bool:
    """Return True if a class path is in one of unifier's own packages."""
    return path.split(".")[0] in OWN_PACKAGES


def find_class(path: str, package: str | None, classes: Mapping[str, type], base: type = Configurable) -> Any:
    """Return the class with an import path: one of the caller's classes, of unifier's own or of the installed plug-ins.

    Args:
        path: The import path.
        package: The distribution whose plug-in the class is, or None.
        classes: The caller's own classes, keyed by name.
        base: The required base class.

    Raises:
        InputError: The class is unknown. The message names the class, and the package of a missing plug-in.
    """
    module, _, name = path.rpartition(".")
    found: object = None
    if is_own(path):
        with suppress(ImportError):
            # Importing __main__ would run the command line.
            found = None if module.endswith("__main__") else getattr(import_module(module), name, None)
    elif package:
        plugins = {class_path(plugin): plugin for plugin in plugins_of(package)}
        if (found := classes.get(name) or plugins.get(path)) is None:
            raise InputError(f"the class {path} is a plug-in of the package {package}: install {package}")
    else:
        found = classes.get(name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(
            f"the class {path} is in no installed package: install its package, or load the model in Python with "
            f"uf.load(FOLDER, classes=[{name}])"
        )
    return found


def construct(cls: type, arguments: Mapping[str, Any], path: str) -> Any:
    """Call a class with stored arguments. Raises InputError if an argument has a wrong type or is refused."""
    _check_types(cls, arguments, path)
    positional: Iterable[Any] = ()
    named = dict(arguments)
    for name, parameter in signature(cls.__init__).parameters.items():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            positional = named.pop(name, ())
    try:
        return cls(*positional, **named)
    except (
        TypeError,
        ValueError,
        RuntimeError,
        AttributeError,
        MemoryError,
        OverflowError,
        ZeroDivisionError,
    ) as error:
        raise InputError(f"{path}: {cls.__name__} cannot be constructed ({one_line(error)})") from error


def _check_types(cls: type, arguments: Mapping[str, Any], path: str) -> None:
    """Raise InputError if a number, a text, None or a list does not have the annotated type of its argument."""
    try:
        kinds = get_type_hints(cls.__init__)
    except (NameError, TypeError):  # An annotation may use a type that is imported for type checkers only.
        return
    for name, value in arguments.items():
        is_list = isinstance(value, list | tuple)
        if name in kinds and (value is None or is_list or isinstance(value, str | float | int)):
            try:
                # In Python, a text is also a sequence of texts, such as the labels "01".
                kind = kinds[name] | str if isinstance(value, str) and _is_sequence(kinds[name]) else kinds[name]
                # JSON has no tuples, so a strict check would refuse a list for a tuple.
                TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(
                    value, strict=not is_list
                )
            except ValidationError as error:
                raise InputError(f"{path}.{name}: {value!r} does not fit ({error.errors()[0]['msg']})") from error
            except PydanticUserError:  # Some types, such as dataclasses, have a configuration of their own.
                continue


def _is_sequence(kind: Any) -> bool:
    return get_origin(kind) in (Sequence, Iterable)


def file_name(folder: Path, name: str) -> Path:
    """Return the path of a file in a model's folder. Raises InputError if the name leads out of the folder."""
    if not name or "/" in name or "\\" in name or name.startswith("."):
        raise InputError(f"{folder}: broken ({name!r} is not the name of a file)")
    return folder / name
