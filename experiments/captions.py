"""Names of pictures in several languages, written by decoders with soft or hard attention, and their comparison."""

from typing import Any, Literal

import unifier as uf
from unifier.augmentation import AugmentMember, augment_images
from unifier.datasets import EmojiNames, PicturesOf
from unifier.options import DecoderConfig, ImageFrontend, TrunkConfig, learn_vocabulary

Attention = Literal["transformer", "soft", "hard"]
"""The decoder: the transformer's decoder, Bahdanau's recurrent decoder, or a recurrent decoder with hard attention."""

DECODERS: tuple[Attention, ...] = ("soft", "hard", "transformer")
IMAGE = ImageFrontend(size=32, patch=4, stem=None)
TRUNK = TrunkConfig(depth=4, heads=4, ffn_dim=256, dropout=0.2)
DECODER = DecoderConfig(decoder_depth=2)
TRAINING = uf.Training(optimizer="muon", learning_rate=4e-3, batch_tokens=4096, precision="bf16")
EPOCHS = 6.0


def captions(
    *,
    languages: tuple[str, ...] = ("en", "de", "fr"),
    attention: Attention = "transformer",
    vocabulary: int = 2000,
    crop: int | None = 0,
    randaugment: int = 0,
    image: ImageFrontend = IMAGE,
    trunk: TrunkConfig = TRUNK,
    decoder: DecoderConfig = DECODER,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Write the names of emoji. The code of the language comes before the picture.

    Args:
        languages: Languages of the names: en, de and fr.
        attention: Decoder: transformer, soft (recurrent, additive attention), or hard (recurrent, one token per step).
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        crop: Largest random shift of a training picture, in pixels; None means an eighth of its side.
        randaugment: Magnitude of RandAugment, from 1 to 9; 0 turns RandAugment off.
    """
    source = EmojiNames(languages, size=image.size)
    texts = EmojiNames(languages, picture="none")
    return write_names(
        source,
        texts,
        attention=attention,
        vocabulary=vocabulary,
        crop=crop,
        randaugment=randaugment,
        image=image,
        trunk=trunk,
        decoder=decoder,
        training=training,
    )


def write_names(
    source: EmojiNames,
    texts: EmojiNames,
    *,
    attention: Attention,
    vocabulary: int,
    crop: int | None,
    randaugment: int,
    image: ImageFrontend | None,
    trunk: TrunkConfig,
    decoder: DecoderConfig,
    training: uf.Training,
) -> uf.Experiment:
    """Create an experiment that writes names.

    Args:
        source: The inputs and the names.
        texts: The same texts and names without pictures, from which the vocabulary is learned.
        attention: The kind of decoder.
        vocabulary: The number of subwords.
        crop: The largest random shift of a training picture, in pixels; None means an eighth of its side.
        randaugment: The magnitude of RandAugment, from 1 to 9, or 0.
        image: The settings of the tokenizer for pictures, or None if the inputs have no pictures.
        trunk: The settings of the trunk.
        decoder: The settings of the decoder.
        training: The settings of the training.
    """
    uf.check_choice("attention", attention, DECODERS)
    subwords = learn_vocabulary(source.name, texts, vocabulary, training, targets=True, extra=source.codes)
    words = uf.SubwordTokenizer(
        subwords, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout, codes=source.codes
    )
    members: dict[str, uf.Tokenizer] = {"text": words}
    changes = None
    if image is not None:
        pictures = image.build(PicturesOf(source), trunk, "mean", training.bad_examples)
        members["picture"] = pictures
        changes = augment_images(pictures, 0, crop=crop, randaugment=randaugment)
    if attention == "transformer":
        head = decoder.build(subwords, trunk, words.embedding, scores="names")
    else:
        recurrent = uf.AdditiveHead if attention == "soft" else uf.HardAttentionHead
        options: dict[str, Any] = {**decoder.options(words.embedding), "dropout": trunk.dropout, "scores": "names"}
        head = recurrent(subwords, trunk.dim, depth=decoder.decoder_depth, **options)
    mixture = uf.Mixture(members)
    augmentation = None if changes is None else AugmentMember(mixture, "picture", changes)
    task = uf.Task(source, mixture, head, augmentation=augmentation)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


def soft_and_hard(
    *, decoders: tuple[Attention, ...] = DECODERS, seeds: tuple[int, ...] = (0, 1, 2), epochs: float = EPOCHS
) -> uf.Comparison:
    """Compare soft attention with hard attention and with a transformer's decoder, at equal epochs.

    All settings of `captions` except epochs can be set. A run takes about 8 minutes on one core.

    Args:
        decoders: The decoders to compare; differences are taken from the first one.
        seeds: Random seeds; each decoder is trained once per seed.
        epochs: Budget of each run in passes over the training examples.
    """
    return uf.Comparison(
        "soft_and_hard",
        [captions],
        seeds=seeds,
        grid={"attention": decoders},
        budget_unit="epochs",
        budget=epochs,
        question="Does hard attention write better names than soft attention?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
