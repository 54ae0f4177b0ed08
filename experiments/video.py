"""Classification of video clips: the direction or the kind of a moving piece of clothing."""

from typing import Literal

import unifier as uf
from unifier.datasets import MovingClothes
from unifier.options import ClassifierConfig, TrunkConfig

TRUNK = TrunkConfig(dim=96, depth=3, heads=4, ffn_dim=192, dropout=0.0, positions="learned")
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, precision="bf16")


def video(
    *,
    label: Literal["direction", "kind"] = "direction",
    patch: int = 7,
    frames: int = 2,
    head: ClassifierConfig = ClassifierConfig(),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Classify generated clips in which a piece of clothing of Fashion-MNIST moves.

    Args:
        label: direction (8 directions) or kind (10 kinds of clothing).
        patch: Height and width of a token's block, in pixels.
        frames: Length of a token's block, in frames.
    """
    source = MovingClothes(label)
    tokenizer = uf.VideoTokenizer(
        trunk.dim,
        patch=patch,
        frames=frames,
        channels=1,
        positions=trunk.input_positions,
        dropout=trunk.dropout,
    )
    task = uf.Task(source, tokenizer, head.build(source, trunk.dim, class_token=False))
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
