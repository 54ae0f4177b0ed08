"""The base class of tokenizers, which turn raw data into a D x N matrix with one column per token."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor, nn

from unifier_tokenizers.configurable import Configurable
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokens import Units


class Tokenizer(Configurable, nn.Module, ABC):
    """Module that turns raw data of one modality into tokens. Subclasses implement `encode` and `embed`.

    `encode` runs once per example, in a data worker. `encode` must be deterministic, and must not read a parameter or a
    buffer. `embed` runs in every training step, on the device, and uses the learned weights. Test every subclass with
    `check_tokenizer`.
    """

    dim: int
    """D, the width of every token."""

    unit = "columns"
    """The name of the unit of `position_values` in reports, such as pixels, seconds or words."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise InputError(f"dim={dim}: dim must be at least 1")
        self.dim = dim

    @abstractmethod
    def encode(self, raw: Any) -> Units:
        """Cut one raw example into units: values (..., N) and positions (A, N).

        Raises:
            InputError: If the example is not valid data of this modality.
        """

    @abstractmethod
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn values (B, ..., N) at positions (B, A, N) into tokens (B, D, N).

        Real tokens must not depend on padding. Padding has value 0 and position `NO_POSITION`.
        """

    def encoding_key(self) -> Mapping[str, Any] | None:
        """Return the JSON-serializable settings that determine the output of `encode` and `fit`.

        The cache key consists of the settings and a hash of the class's file. Include all settings, the versions of
        libraries, and a hash of any code in other files. By default, return None, which disables caching.
        """
        return None

    def position_values(self, units: Units) -> Tensor:
        """Return the positions of the tokens (A, N) as floats, measured in `unit`.

        Leave out axes that are not measured in `unit`. The results for tokens at `NO_POSITION` are not used.
        """
        return units.positions.float()

    @final
    def forward(self, raw: Any) -> Tensor:
        """Return the D x N matrix of one raw example."""
        values, positions = self.encode(raw)
        device = next((parameter.device for parameter in self.parameters()), None)
        return self.embed(values[None].to(device), positions[None].to(device))[0]
