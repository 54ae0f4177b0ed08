"""Amazon Beauty: the products that customers reviewed, in order of time."""

from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import hash_files, read_lines
from unifier.data.source import Example, ScoreRange, SplitName
from unifier_tokenizers import InputError

BEAUTY_HOME = "https://raw.githubusercontent.com/salesforce/ICLRec/2890e6c3ff6a22c6699fc19cb863b66786c1cde4/data/"
BEAUTY_FILES = {
    "Beauty.txt": RemoteFile(1_090_094, "226cce9c3105299ca0db9615d7d3fb32b3175e90da43100ae352599f0f0107b8"),
}

MIN_ITEMS = 5
"""Smallest number of products per customer in this data set."""


class Customer(NamedTuple):
    """The line of a customer in the file, and the numbers of the products."""

    line: int
    items: tuple[int, ...]


@final
class AmazonBeauty:
    """Sequences of products: 22,363 customers with at least 5 of 12,101 products.

    The input is a list of product numbers in order of time. A model predicts the last product from the earlier
    products. The last product of a customer belongs to test, and the last but one belongs to val (Kang and McAuley
    2018, section 4.1). A test sequence therefore contains the sequences of val and train.

    Source: reviews on Amazon (McAuley 2014), prepared by Zhou et al. 2020 (S3-Rec).
    """

    name = "amazon_beauty"
    score_range = ScoreRange(
        "hit_rate_10", 0.0115, 0.0605, "SASRec (Rajput et al. 2023, table 1); chance is the most popular products"
    )

    def __init__(self, *, data: str | Path | None = None) -> None:
        """Choose the folder with the files. None means the default folder; see `data_folder`."""
        self._data = data

    @property
    def num_items(self) -> int:
        """The number of products."""
        return max(item for customer in self._customers for item in customer.items)

    def split(self, name: SplitName) -> Examples[Customer]:
        """Return the sequences of one split, in the order of the file."""
        held_out = {"train": 2, "val": 1, "test": 0}[name]
        customers = [Customer(line, items[: len(items) - held_out]) for line, items in self._customers]
        return Examples(customers, _read, self._locate)

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hash_files({self._path.name: self._path})

    @cached_property
    def _path(self) -> Path:
        return ensure_files(self.name, BEAUTY_HOME, BEAUTY_FILES, self._data) / "Beauty.txt"

    @cached_property
    def _customers(self) -> list[Customer]:
        customers: list[Customer] = []
        for line, text in enumerate(read_lines(self._path), 1):
            numbers = text.split()[1:]
            if len(numbers) < MIN_ITEMS or not all(number.isdecimal() and int(number) > 0 for number in numbers):
                raise InputError(
                    f"{self._path}, line {line}: a customer and at least {MIN_ITEMS} product numbers are expected"
                )
            customers.append(Customer(line, tuple(map(int, numbers))))
        return customers

    def _locate(self, customer: Customer) -> str:
        return f"{self._path}, line {customer.line}"


def _read(customer: Customer) -> Example:
    return Example(list(customer.items), None)
