"""The contract of a tokenizer: raw data in, a D x N matrix out, one column per token."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokens import Units


class Tokenizer(nn.Module, ABC):
    """Converter of one modality's raw data into tokens, in two steps that run in two places.

    `encode` runs once per example, in a data worker. It is pure and deterministic, and reads no parameter and no
    buffer. `embed` runs in every step, on the device, and holds all learned weights. A new modality is a subclass with
    these two methods. `check_tokenizer` checks the contract.
    """

    dim: int
    """D, the width of every token."""

    unit = "columns"
    """The unit of `position_values`, for people: pixels, seconds, words."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise InputError(f"dim={dim}: columns of at least 1 row are needed")
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

        No token may depend on padding, which has value 0 and position `NO_POSITION`.
        """

    def encoding_key(self) -> Mapping[str, Any] | None:
        """Return the JSON-serializable settings that determine the output of `encode` and `fit`.

        They are part of the cache key, beside the hash of the file that defines this class. Include settings, library
        versions and a hash of other files' code. None, the default, disables caching.
        """
        return None

    def position_values(self, units: Units) -> Tensor:
        """Return each token's position in `unit`: (A, N) float, with only the axes measured in that unit.

        The values of a token at `NO_POSITION` are never read.
        """
        return units.positions.float()

    @final
    def forward(self, raw: Any) -> Tensor:
        """Return the D x N matrix of one raw example."""
        values, positions = self.encode(raw)
        device = next((parameter.device for parameter in self.parameters()), None)
        return self.embed(values[None].to(device), positions[None].to(device))[0]
