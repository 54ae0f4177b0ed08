"""Amazon Beauty: the products that customers reviewed, in order of time."""

from pathlib import Path
from typing import final

from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import read_lines
from unifier.data.source import ScoreRange
from unifier.datasets.item_sequences import ItemSequence, ItemSequences
from unifier_tokenizers import InputError

BEAUTY_HOME = "https://raw.githubusercontent.com/salesforce/ICLRec/2890e6c3ff6a22c6699fc19cb863b66786c1cde4/data/"
BEAUTY_FILES = {
    "Beauty.txt": RemoteFile(1_090_094, "226cce9c3105299ca0db9615d7d3fb32b3175e90da43100ae352599f0f0107b8"),
}

MIN_ITEMS = 5
"""Smallest number of products per customer in this data set."""


@final
class AmazonBeauty(ItemSequences):
    """Sequences of products: 22,363 customers with at least 5 of 12,101 products.

    Source: reviews on Amazon (McAuley 2014), prepared by Zhou et al. 2020 (S3-Rec).
    """

    name = "amazon_beauty"
    score_range = ScoreRange(
        "hit_rate_10", 0.0115, 0.0605, "SASRec (Rajput et al. 2023, table 1); chance is the most popular products"
    )

    def _find_file(self) -> Path:
        return ensure_files(self.name, BEAUTY_HOME, BEAUTY_FILES, self._data) / "Beauty.txt"

    def _read_sequences(self, path: Path) -> list[ItemSequence]:
        customers: list[ItemSequence] = []
        for line, text in enumerate(read_lines(path), 1):
            numbers = text.split()[1:]
            if len(numbers) < MIN_ITEMS or not all(number.isdecimal() and int(number) > 0 for number in numbers):
                raise InputError(
                    f"{path}, line {line}: a customer and at least {MIN_ITEMS} product numbers are expected"
                )
            customers.append(ItemSequence(line, tuple(map(int, numbers))))
        return customers
