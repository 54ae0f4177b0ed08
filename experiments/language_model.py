"""Language models, which predict the next token of a text, pixel of a picture, or sample of a sound."""

from inspect import signature
from typing import Literal

import unifier as uf
from unifier.augmentation import RandomWindow
from unifier.datasets import (
    SoundPieces,
    TextPieces,
    create_image_dataset,
    create_long_text,
    independent_pixel_nats,
    modality_of,
    unigram_nats,
)
from unifier.options import TrunkConfig

TRUNK = TrunkConfig(depth=4, dim=128, dropout=0.0, positions="rotary", qk_norm=True, scaled_residual_init=True)
TRAINING = uf.Training(optimizer="muon", learning_rate=6e-3, batch_tokens=4096, precision="bf16")
MIN_TEXT_EPOCHS, MIN_PICTURE_EPOCHS, MIN_SOUND_EPOCHS = 10, 3, 3


def language_model(
    *,
    data: str = "tinyshakespeare",
    level: Literal["character", "bpe", "byte"] = "character",
    vocabulary: int = 8000,
    length: int = 256,
    memory: int = 0,
    tied: bool = False,
    side: int = 14,
    grays: int = 16,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Predict the next token of a text, the next pixel of a picture, or the next sample of a sound.

    Args:
        data: tinyshakespeare, wiki_articles or a UTF-8 text file; with control codes: nottingham_abc (tunes), sst2,
            trec or a table with the columns text and label; mnist, fashion_mnist or class folders of pictures;
            fsdd_samples (spoken digits); protein_ss (residues).
        level: Kind of token of a text: character, bpe or byte.
        vocabulary: Largest number of entries of the vocabulary of a text.
        length: Number of tokens of a piece of a long text or a sound, the largest context without a memory.
        memory: Number of tokens before a piece of a long text that the trunk also reads, as in Transformer-XL.
        tied: Use the transposed embedding of a text as the output projection.
        side: Height and width to which pictures are reduced, in pixels.
        grays: Number of grays to which pixels are rounded.
    """
    if data == "fsdd_samples":
        _refuse("sounds", level=level, vocabulary=vocabulary, memory=memory, tied=tied, side=side, grays=grays)
        task = _next_sample(uf.datasets.FSDD(), length, trunk)
        training = training.sized_for(task.source, data, minimum=MIN_SOUND_EPOCHS)
        return uf.Experiment(trunk.build(causal=True), {data: task}, training)
    if modality_of(data) == "image":
        _refuse("pictures", level=level, vocabulary=vocabulary, length=length, memory=memory, tied=tied)
        source = create_image_dataset(data)
        task = _next_pixel(source, side, grays, trunk)
        training = training.sized_for(source, source.name, minimum=MIN_PICTURE_EPOCHS)
        return uf.Experiment(trunk.build(causal=True), {source.name: task}, training)
    _refuse("texts", side=side, grays=grays)
    if memory and trunk.positions == "learned":
        raise uf.InputError(f"memory={memory}: learned positions end; use positions=rotary or positions=sinusoid")
    source = create_long_text(data)
    residues = isinstance(source, uf.datasets.ProteinSS)
    if residues:
        _refuse("proteins", level=level, vocabulary=vocabulary, memory=memory)
    # The score range of proteins is that of their labels.
    score_range = None if residues else getattr(source, "score_range", None)
    texts, codes = (example.input for example in source.split("train")), getattr(source, "codes", ())
    entries = uf.fitted(source.name, lambda: uf.Vocabulary.fit(texts, size=vocabulary, level=level, extra=codes))
    windows = None
    if codes:
        _refuse("short texts", length=length, memory=memory)
    else:
        source = TextPieces(source, entries, length, stream=memory > 0)
        windows = None if memory else RandomWindow(length + 1)
    tokenizer = uf.SubwordTokenizer(
        entries,
        trunk.dim,
        positions=trunk.input_positions,
        length=2 * length + 1,  # A piece of train is longer than the windows that training reads.
        dropout=trunk.dropout,
        begin=True,
        end=bool(codes),
    )
    head = uf.LanguageModelingHead(
        len(entries),
        trunk.dim,
        vocabulary=entries,
        embedding=tokenizer.embedding if tied else None,
        unit="residue" if residues else "character" if level == "character" else "token",
        context=None if codes else length,
        memory=memory,
    )
    task = uf.Task(source, tokenizer, head, augmentation=windows, objective=uf.NextToken(), score_range=score_range)
    training = training.sized_for(source, source.name, minimum=MIN_TEXT_EPOCHS)
    return uf.Experiment(trunk.build(causal=True), {source.name: task}, training)


def _refuse(kind: str, **given: object) -> None:
    """Raise InputError if a setting that has no effect on this kind of data differs from its default."""
    for name, value in given.items():
        if value != signature(language_model).parameters[name].default:
            raise uf.InputError(f"{name}={value}: this setting has no effect on {kind}; leave it out")


def _next_pixel(pictures: uf.Source, side: int, grays: int, trunk: TrunkConfig) -> uf.Task:
    """Return the task of predicting each pixel of a picture from the pixels above it and to its left."""
    # Rotary positions are relative, but a pixel's gray depends on its place in the picture.
    positions = "learned" if trunk.positions == "rotary" else trunk.input_positions
    tokenizer = uf.PixelTokenizer(trunk.dim, side=side, grays=grays, positions=positions, dropout=trunk.dropout)
    nats = uf.fitted("independent-pixels", lambda: independent_pixel_nats(pictures, tokenizer))
    head = uf.LanguageModelingHead(grays, trunk.dim, unit="pixel", context=side**2)
    chance = uf.ScoreRange(
        "nats_per_pixel", nats, None, "chance: each pixel by the frequencies of its own grays in train"
    )
    return uf.Task(pictures, tokenizer, head, objective=uf.NextToken(), score_range=chance)


def _next_sample(sounds: uf.Source, length: int, trunk: TrunkConfig) -> uf.Task:
    """Return the task of predicting the 8-bit code of each sample of a sound from the samples before it."""
    tokenizer = uf.SampleTokenizer(trunk.dim, positions=trunk.input_positions, length=length + 1, dropout=trunk.dropout)
    nats = uf.fitted("independent-samples", lambda: unigram_nats(sounds, tokenizer, tokenizer.num_codes))
    chance = uf.ScoreRange(
        "nats_per_sample", nats, None, "chance: each sample by the frequencies of the codes in train"
    )
    pieces = SoundPieces(sounds, tokenizer.sample_rate, length)
    head = uf.LanguageModelingHead(tokenizer.num_codes, trunk.dim, unit="sample", context=length)
    return uf.Task(pieces, tokenizer, head, objective=uf.NextToken(), score_range=chance)


if __name__ == "__main__":
    uf.run_this_file(__file__)
