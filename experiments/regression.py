"""Prediction of numbers from sounds, pictures or texts."""

import unifier as uf
from unifier.datasets import create_number_dataset
from unifier.options import (
    AudioAugmentationConfig,
    AudioFrontend,
    ClipStatistics,
    ImageFrontend,
    TrunkConfig,
    fitted_moments,
    learn_vocabulary,
)

TRUNK = TrunkConfig(depth=3, heads=4, ffn_dim=256)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=2048, precision="bf16")
AUGMENTATION = AudioAugmentationConfig(speed_perturb=0.1, time_masks=2)


def regression(
    *,
    data: str = "emotify",
    columns: tuple[str, ...] = (),
    text: str | None = None,
    fold: int | None = None,
    vocabulary: int = 4000,
    audio: AudioFrontend = AudioFrontend(),
    image: ImageFrontend = ImageFrontend(),
    augmentation: AudioAugmentationConfig = AUGMENTATION,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Predict one or several numbers.

    Args:
        data: emotify (the shares of listeners who felt nine emotions) in the data folder, a CSV or TSV table, or
            datasets:DIR or parquet:DIR.
        columns: Names of your table's columns with the numbers.
        text: Name of your table's column with the texts; None means pictures or sounds.
        fold: For emotify, the fold that is tested, from 0 to 4.
        vocabulary: Number of subwords in the vocabulary of texts.
    """
    source = create_number_dataset(data, columns, text=text, fold=fold)
    augment = tta = None
    if source.kind == "text":
        subwords = learn_vocabulary(source.name, source, vocabulary, training)
        tokenizer = uf.SubwordTokenizer(subwords, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout)
    elif source.kind == "image":
        tokenizer = image.build(source, trunk, "mean", training.bad_examples)
    else:
        clips = ClipStatistics(source, "numbers")
        tokenizer = audio.build(source, trunk, clips, training.bad_examples)
        resolved = augmentation.resolve(audio, clips, "tags")
        augment, tta = resolved.build(tokenizer, len(source.labels)), resolved.tta(tokenizer)
    mean, std = fitted_moments(source)
    head = uf.RegressionHead(source.labels, trunk.dim, mean=mean, std=std, dropout=trunk.dropout)
    task = uf.Task(source, tokenizer, head, augmentation=augment, tta=tta)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
