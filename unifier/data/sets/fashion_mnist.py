"""Fashion-MNIST: grey pictures of ten kinds of clothing."""

from functools import cached_property
from pathlib import Path
from typing import final

from unifier.data.examples import Examples
from unifier.data.reading.download import Remote, obtain
from unifier.data.reading.files import hash_files
from unifier.data.reading.idx import official_split
from unifier.data.source import SplitName, scale_of_accuracy

HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = {
    "t10k-images-idx3-ubyte.gz": Remote(4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    "t10k-labels-idx1-ubyte.gz": Remote(5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    "train-images-idx3-ubyte.gz": Remote(26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    "train-labels-idx1-ubyte.gz": Remote(29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
}


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
        return official_split(self.name, self._folder, self.labels, name)

    @cached_property
    def sha256(self) -> str:
        """The hash of the four files."""
        return hash_files({file: self._folder / file for file in FILES})

    @cached_property
    def _folder(self) -> Path:
        return obtain(self.name, HOME, FILES, self._data)
