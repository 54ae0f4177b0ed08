"""RandAugment by timm, with random numbers from a generator."""

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data.auto_augment import rand_augment_transform

from unifier_tokenizers.parts.pixels import Pictures


@final
class RandAugment:
    """Two operations of fifteen on each picture, such as to turn or to brighten it (Cubuk et al. 2020, section 3).

    As in timm, each of the two is left out half of the time, and what comes in from outside of the picture is black.
    """

    def __init__(self, magnitude: int, channels: int) -> None:
        """`magnitude` runs from 1 to 9, around which each operation's own is drawn; at 10 a picture keeps no bits."""
        black = 0 if channels == 1 else (0,) * channels
        self.change = rand_augment_transform(f"rand-m{magnitude}-n2-mstd0.5-mmax9-inc1", {"img_mean": black})

    def __call__(self, pictures: Pictures, generator: torch.Generator) -> Pictures:
        arrays = np.array(pictures.pixels.permute(0, 2, 3, 1).numpy(), order="C")
        with _drawing_from(int(torch.randint(2**32, (), generator=generator))):
            for array, (height, width) in zip(arrays, pictures.sizes.tolist(), strict=True):
                own = array[:height, :width]
                own[:] = self._changed(own)
        return pictures._replace(pixels=torch.from_numpy(arrays).permute(0, 3, 1, 2))

    def _changed(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
        return np.asarray(self.change(image)).reshape(array.shape)


@contextmanager
def _drawing_from(seed: int) -> Generator[None]:
    """Within it, Python and NumPy draw as timm is to; torch, with which another thread may be training, as before."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
