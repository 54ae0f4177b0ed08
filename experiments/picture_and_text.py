"""Translation of names with their picture, without a picture, and with the picture of another name."""

import unifier as uf
from captions import DECODER, IMAGE, TRAINING, TRUNK, write_names
from unifier.datasets import EmojiNames, PictureKind
from unifier.options import DecoderConfig, ImageFrontend, TrunkConfig


def emoji_translation(
    *,
    source: str = "en",
    target: str = "de",
    picture: PictureKind = "own",
    vocabulary: int = 2000,
    crop: int | None = 0,
    randaugment: int = 0,
    image: ImageFrontend = IMAGE,
    trunk: TrunkConfig = TRUNK,
    decoder: DecoderConfig = DECODER,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Translate the names of emoji. The name and the picture are in one sequence.

    Args:
        source: Language of the names in the input: en, de or fr.
        target: Language of the names that are written.
        picture: Picture in the input: its own picture, the picture of another emoji, or none.
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        crop: Largest random shift of a training picture, in pixels; None means an eighth of its side.
        randaugment: Magnitude of RandAugment, from 1 to 9; 0 turns RandAugment off.
    """
    if picture == "none" and (crop != 0 or randaugment):
        raise uf.InputError(f"crop={crop}, randaugment={randaugment}: with picture=none, there is no picture to change")
    return write_names(
        EmojiNames((target,), source=source, picture=picture, size=image.size),
        EmojiNames((target,), source=source, picture="none"),
        attention="transformer",
        vocabulary=vocabulary,
        crop=crop,
        randaugment=randaugment,
        image=None if picture == "none" else image,
        trunk=trunk,
        decoder=decoder,
        training=training,
    )


def picture_and_text(*, target: str = "de", seeds: tuple[int, ...] = (0, 1, 2), steps: int = 3000) -> uf.Comparison:
    """Compare translation with the own picture, without a picture, and with another picture, at equal optimizer steps.

    A batch contains more names without pictures, because its number of tokens is limited. Therefore, runs without
    pictures read each name more often.

    Args:
        target: Language of the names that are written.
        seeds: Random seeds; each condition is trained once per seed.
        steps: Budget of each run in optimizer steps.
    """
    return uf.Comparison(
        "picture_and_text",
        [emoji_translation],
        settings={"target": target},
        seeds=seeds,
        grid={"picture": ("own", "none", "other")},
        budget_unit="steps",
        budget=steps,
        question="Does the picture help to translate a name?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
