"""Base classes of the parts of a model, which record their constructor arguments, so that a folder can store them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError


class Configurable:
    """Base class that records the constructor arguments of an object.

    An argument may be None, a bool, a finite number or a text, or a list or a mapping of arguments. A tensor, an
    `nn.Embedding`, a `StoredFile` or another `Configurable` is an argument too. Any other argument is an `InputError`.
    """

    _arguments: Mapping[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        try:
            bound = signature(cls.__init__).bind(self, *args, **kwargs)
        except TypeError:  # A copy is made without arguments. For wrong arguments, the constructor raises the error.
            return self
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(name)
        for name, value in arguments.items():
            if (found := _unsupported(value)) is not None:
                raise InputError(
                    f"{cls.__name__}({name}=...): a model's folder cannot store a {type(found).__name__} "
                    f"({repr(found)[:80]}); give finite numbers, texts, lists, mappings, tensors or parts of a model"
                )
        self.__dict__["_arguments"] = arguments  # A frozen dataclass has no __setattr__, and a module is not ready.
        return self

    @final
    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments with which the object was constructed, including default values."""
        return dict(self._arguments)


class StoredFile(ABC):
    """Base class of objects that a model's folder stores in a file of their own, such as a vocabulary."""

    @classmethod
    @abstractmethod
    def load(cls, path: str | Path) -> Self:
        """Read the object from a file. Raises InputError if the file is broken."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the object to a file."""


def _unsupported(value: object) -> object | None:
    """Return the part of an argument that a model's folder cannot store, or None."""
    if isinstance(value, float | np.floating):
        return None if math.isfinite(value) else value
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := _unsupported(item)) is not None), None)
    if isinstance(value, Mapping) and not isinstance(value, nn.Module):
        if (key := next((key for key in value if not isinstance(key, str)), None)) is not None:
            return key
        return _unsupported(list(value.values()))
    stored = str | int | np.integer | np.bool_ | Tensor | nn.Embedding | StoredFile | Configurable
    return None if value is None or isinstance(value, stored) else value
