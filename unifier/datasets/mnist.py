"""MNIST and Fashion-MNIST: gray images of handwritten digits, and gray images of clothes."""

from functools import cached_property
from pathlib import Path
from typing import Literal, final

from unifier.data.dataset import Examples, from_pixels
from unifier.data.download import RemoteFile, ensure_files, read_idx_pair
from unifier.data.inputs import ImageReader
from unifier.data.readers import hash_files
from unifier.data.source import NO_SCORE_RANGE, SPLITS, SplitName, accuracy_range
from unifier.data.splits import hold_out, select_part
from unifier_tokenizers.errors import check_choice

MNIST_HOMES = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/",  # The authors' page no longer has the files.
    "fashion_mnist": "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",  # The authors' host has no TLS.
}

MNIST_FILES = {
    "t10k-images-idx3-ubyte.gz": RemoteFile(
        1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": RemoteFile(4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    "train-images-idx3-ubyte.gz": RemoteFile(
        9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": RemoteFile(28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
}

FASHION_MNIST_FILES = {
    "t10k-images-idx3-ubyte.gz": RemoteFile(
        4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": RemoteFile(5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    "train-images-idx3-ubyte.gz": RemoteFile(
        26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": RemoteFile(29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
}

FASHION_MNIST_LABELS = (
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

FASHION_MNIST_REFERENCE = "two convolutions with fewer than 100,000 parameters, benchmarks published with the data set"

MNIST_VAL_ONE_IN = 12
"""Val contains 1 / `MNIST_VAL_ONE_IN` of the official training images: 5,000 of 60,000 images."""


@final
class MNIST:
    """MNIST ("mnist") or Fashion-MNIST ("fashion_mnist").

    Train has about 55,000 images, val has 5,000, and test has the official 10,000 test images. The input is an image
    (28, 28) uint8 with 0 for the background. The target is the digit, "0" to "9", or the name of the class. Val
    contains 1/12 of the official training images of each class, always the same images.

    Sources: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition", Proceedings
    of the IEEE 86, 1998; Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
    Learning Algorithms", 2017, license MIT.
    """

    def __init__(self, name: Literal["mnist", "fashion_mnist"] = "mnist", *, data: str | Path | None = None) -> None:
        self.name: str = check_choice("set", name, ("mnist", "fashion_mnist"))
        self.labels = tuple("0123456789") if name == "mnist" else FASHION_MNIST_LABELS
        self.score_range = accuracy_range(
            self.labels, *((None, NO_SCORE_RANGE) if name == "mnist" else (92.5, FASHION_MNIST_REFERENCE))
        )
        self.license = "MIT" if name == "fashion_mnist" else None
        self.reader = ImageReader(channels=1, size=28)
        self._files = MNIST_FILES if name == "mnist" else FASHION_MNIST_FILES
        self._data = data

    def split(self, name: SplitName) -> Examples[int]:
        """Return the images of one split, in the order of the official file."""
        stem = "t10k" if check_choice("split", name, SPLITS) == "test" else "train"
        images = self._folder / f"{stem}-images-idx3-ubyte.gz"
        pixels, targets = read_idx_pair(images, self._folder / f"{stem}-labels-idx1-ubyte.gz", self.labels)
        indices = range(len(targets))
        if name != "test":
            indices = select_part(indices, hold_out(self.name, targets, ("val",), one_in=MNIST_VAL_ONE_IN), name)
        return from_pixels(images, pixels, targets, indices)

    @cached_property
    def sha256(self) -> str:
        """The hash of the four files."""
        return hash_files({file: self._folder / file for file in self._files})

    @cached_property
    def _folder(self) -> Path:
        return ensure_files(self.name, MNIST_HOMES[self.name], self._files, self._data)
