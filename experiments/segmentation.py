"""Segmentation of pictures: a class for every pixel."""

from dataclasses import replace

import unifier as uf
from unifier.augmentation import FlipWithMask
from unifier.datasets import create_mask_dataset
from unifier.options import ImageFrontend, TrunkConfig

FRONTEND = ImageFrontend(patch=4, stem=None)
TRUNK = TrunkConfig(dim=128, depth=4, heads=4, ffn_dim=512, dropout=0.0, positions="rotary")
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, precision="bf16", batch_tokens=4096)
EPOCHS = 40.0


def segmentation(
    *,
    data: str = "nuclei",
    labels: tuple[str, ...] = ("background", "object"),
    flip: bool = True,
    frontend: ImageFrontend = FRONTEND,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Give a class to every pixel of a picture.

    Args:
        data: nuclei in the data folder, or a folder with your own pictures in images and their masks in masks.
        labels: Names of the classes of your own masks; the first class is the background.
        flip: Mirror and turn pictures and masks at random in training.
    """
    if frontend.size != FRONTEND.size:
        raise uf.InputError(f"size={frontend.size}: masks are in pixels, so pictures keep their size; leave size out")
    source = create_mask_dataset(data, labels=labels)
    tokenizer = frontend.build(source, trunk, "mean", training.bad_examples)
    head = uf.SegmentationHead(source.labels, trunk.dim, patch=tokenizer.patch)
    augmentation = FlipWithMask(tokenizer) if flip else None
    task = uf.Task(source, tokenizer, head, augmentation=augmentation)
    if not training.budget and training.seconds is None:
        training = replace(training, epochs=EPOCHS)
    return uf.Experiment(trunk.build(), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
