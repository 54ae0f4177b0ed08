"""The contract of a tokenizer: raw data in, a D x N matrix out, one column a token."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokens import Units


class Tokenizer(nn.Module, ABC):
    """Turns one modality's raw data into columns, in two steps that run in two places.

    `encode` runs once for an example, in a data worker: it is pure, deterministic, and reads neither a parameter nor a
    buffer. `embed` runs in every step, on the device: it holds all that is learned. A new modality is a subclass with
    these two methods; `check_tokenizer` says whether it keeps the contract.
    """

    dim: int
    """D, the rows of every column."""

    unit = "columns"
    """What `coordinates` counts in, as a person would say it: pixels, seconds, words."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise InputError(f"dim={dim}: columns of at least 1 row are needed")
        self.dim = dim

    @abstractmethod
    def encode(self, raw: Any) -> Units:
        """Cut one raw example into units: values (..., N) and positions (A, N).

        Raises InputError where the example cannot be read as this modality.
        """

    @abstractmethod
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn values (B, ..., N) at positions (B, A, N) into columns (B, D, N).

        A column may not depend on padding, which holds value 0 at position `NOWHERE`.
        """

    def encoding_key(self) -> Mapping[str, Any] | None:
        """What `encode`, and `fit` where there is one, go by beside the raw data, in what JSON can hold.

        Units are kept on disk for later runs under it, beside the hash of the file that defines this class: settings
        belong in it, versions of libraries, and code of other files. None, the default, keeps nothing.
        """
        return None

    def position_values(self, units: Units) -> Tensor:
        """Where each column of an example stands, in `unit`: (A, N) float, with as many axes as have that unit.

        What a column at `NOWHERE` has here is read by nobody.
        """
        return units.positions.float()

    @final
    def forward(self, raw: Any) -> Tensor:
        """One raw example as its D x N matrix."""
        values, positions = self.encode(raw)
        device = next((parameter.device for parameter in self.parameters()), None)
        return self.embed(values[None].to(device), positions[None].to(device))[0]
