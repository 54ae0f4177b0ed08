"""Fashion-MNIST: grey pictures of ten kinds of clothing."""

from functools import cached_property
from pathlib import Path
from typing import final

from unifier.data.download import Remote, obtain
from unifier.data.examples import Examples
from unifier.data.files import hash_files
from unifier.data.idx import idx_examples, read_pair
from unifier.data.source import SplitName, scale_of_accuracy
from unifier.data.splitting import SPLITS, hold_out
from unifier_tokenizers.choice import choose

HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = {
    "t10k-images-idx3-ubyte.gz": Remote(4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    "t10k-labels-idx1-ubyte.gz": Remote(5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    "train-images-idx3-ubyte.gz": Remote(26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    "train-labels-idx1-ubyte.gz": Remote(29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
}
PER_VALIDATION = 12
"""One training picture in so many validates: 5,000 of 60,000."""


@final
class FashionMNIST:
    """55,000 pictures to train, 5,000 to validate, the official 10,000 to test.

    The input is (28, 28) uint8, 0 the background; the target is the name of its class. The validation pictures are
    500 of every class of the official training set, always the same.

    Source: Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
    Algorithms", 2017; licence MIT.
    """

    name = "fashion_mnist"
    labels = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    scale = scale_of_accuracy(
        labels, 92.5, "two convolutions of fewer than 100,000 parameters, among the benchmarks that come with the set"
    )

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[int]:
        """The pictures of one split, in the order of the file."""
        choose("split", name, SPLITS)
        stem = "t10k" if name == "test" else "train"
        pictures = self._folder / f"{stem}-images-idx3-ubyte.gz"
        pixels, labels = read_pair(pictures, self._folder / f"{stem}-labels-idx1-ubyte.gz", self.labels)
        kept: list[int] = list(range(len(labels)))
        if name != "test":
            splits = hold_out(self.name, labels, ("val",), one_in=PER_VALIDATION)
            kept = [index for index in kept if splits[index] == name]
        return idx_examples(pictures, pixels, labels, kept)

    @cached_property
    def sha256(self) -> str:
        """The hash of the four files."""
        return hash_files({file: self._folder / file for file in FILES})

    @cached_property
    def _folder(self) -> Path:
        return obtain(self.name, HOME, FILES, self._data)
