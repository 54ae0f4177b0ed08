"""Classification of pictures."""

import unifier as uf
from unifier.datasets import create_image_dataset
from unifier.options import ClassifierConfig, ImageAugmentationConfig, ImageFrontend, TrunkConfig

TRUNK = TrunkConfig(depth=4, heads=4, ffn_dim=256, positions="learned")
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, precision="bf16")
PLAIN = ImageAugmentationConfig(crop=0)


def pictures(
    *,
    data: str = "embedded",
    fold: int | None = None,
    examples: int | None = None,
    allow_outside: bool = False,
    frontend: ImageFrontend = ImageFrontend(),
    trunk: TrunkConfig = TRUNK,
    head: ClassifierConfig = ClassifierConfig(),
    augmentation: ImageAugmentationConfig = ImageAugmentationConfig(),
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Classify pictures.

    Args:
        data: embedded (8 x 8 digits), mnist, fashion_mnist, cifar10, cifar10_jpg, a folder of class folders, or
            datasets:DIR, parquet:DIR or torchvision:CLASS.
        fold: The fold that is tested, if the folder contains a file folds.csv.
        examples: Number of training pictures, drawn at random; None means all.
        allow_outside: True if links in your own folder may lead outside. Give this only if you trust the folder.
    """
    source = create_image_dataset(data, fold=fold, size=frontend.size, examples=examples, allow_outside=allow_outside)
    tokenizer = frontend.build(source, trunk, head.pooling, training.bad_examples)
    task = uf.Task(
        source,
        tokenizer,
        head.build(source, trunk.dim),
        augmentation=augmentation.build(tokenizer, len(source.labels)),
        tta=augmentation.tta(tokenizer),
    )
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
