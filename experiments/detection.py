"""Detection: the objects of a picture, each with a box and a class."""

from typing import Literal

import unifier as uf
from unifier.augmentation import FlipWithBoxes
from unifier.datasets import create_box_dataset
from unifier.options import ImageFrontend, TrunkConfig

FRONTEND = ImageFrontend(patch=16, stem="strided")
TRUNK = TrunkConfig(dim=128, depth=4, heads=4, ffn_dim=512, dropout=0.1, positions="rotary")
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, precision="bf16", batch_tokens=2400)
QUERIES, DECODER_DEPTH = 50, 2


def detection(
    *,
    data: str = "bccd",
    head: Literal["tokens", "queries"] = "tokens",
    queries: int = QUERIES,
    decoder_depth: int = DECODER_DEPTH,
    flip: bool = True,
    frontend: ImageFrontend = FRONTEND,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Find the objects of a picture, with a box and a class for each.

    Args:
        data: bccd in the data folder, scattered_clothes, or a table (.csv) with the boxes of your own pictures.
        head: One box per token (tokens), or learned queries that are matched to the objects (queries, DETR).
        queries: Number of queries, and the largest number of objects in a picture, for head=queries.
        decoder_depth: Number of layers in which the queries read the picture, for head=queries.
        flip: Mirror and turn pictures and boxes at random in training.
    """
    uf.check_choice("head", head, ("tokens", "queries"))
    if head == "tokens" and (queries, decoder_depth) != (QUERIES, DECODER_DEPTH):
        raise uf.InputError("queries and decoder_depth belong to head=queries: leave them out")
    if frontend.size != FRONTEND.size:
        raise uf.InputError(f"size={frontend.size}: boxes are in pixels, so pictures keep their size; leave size out")
    source = create_box_dataset(data)
    tokenizer = frontend.build(source, trunk, "mean", training.bad_examples)
    if head == "tokens":
        finder = uf.TokenDetectionHead(source.labels, trunk.dim, patch=tokenizer.patch)
    else:
        finder = uf.QueryDetectionHead(
            source.labels, trunk.dim, patch=tokenizer.patch, queries=queries, depth=decoder_depth, heads=trunk.heads
        )
    augmentation = FlipWithBoxes(tokenizer) if flip else None
    task = uf.Task(source, tokenizer, finder, augmentation=augmentation)
    training = training.sized_for(source, source.name)
    return uf.Experiment(trunk.build(), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
