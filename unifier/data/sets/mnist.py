"""MNIST: handwritten digits."""

from functools import cached_property
from pathlib import Path
from typing import final

from unifier.data.examples import Examples
from unifier.data.reading.download import Remote, obtain
from unifier.data.reading.files import hash_files
from unifier.data.reading.idx import official_split
from unifier.data.source import UNKNOWN, SplitName, scale_of_accuracy

HOME = "https://storage.googleapis.com/cvdf-datasets/mnist/"
"""Where the files are kept since the page of their authors no longer serves them."""
FILES = {
    "t10k-images-idx3-ubyte.gz": Remote(1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte.gz": Remote(4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    "train-images-idx3-ubyte.gz": Remote(9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte.gz": Remote(28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
}


@final
class MNIST:
    """About 55,000 pictures to train, 5,000 to validate, the official 10,000 to test.

    The input is (28, 28) uint8, 0 the paper; the target is the digit, "0" to "9". The validation pictures are a
    twelfth of every digit of the official training set, always the same.

    Source: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition", Proceedings
    of the IEEE 86, 1998.
    """

    name = "mnist"
    labels = tuple("0123456789")
    scale = scale_of_accuracy(labels, None, UNKNOWN)

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[int]:
        """The pictures of one split, in the order of the file."""
        return official_split(self.name, self._folder, self.labels, name)

    @cached_property
    def sha256(self) -> str:
        """The hash of the four files."""
        return hash_files({file: self._folder / file for file in FILES})

    @cached_property
    def _folder(self) -> Path:
        return obtain(self.name, HOME, FILES, self._data)
