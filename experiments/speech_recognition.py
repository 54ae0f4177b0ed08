"""Recognition of spoken digits and sentences without their times, by CTC or by a decoder of text."""

from dataclasses import replace
from typing import Literal

import unifier as uf
from unifier.datasets import FSDDStrings, create_speech_dataset
from unifier.options import AudioAugmentationConfig, AudioFrontend, ClipStatistics, DecoderConfig, TrunkConfig

FRONTEND = AudioFrontend(sample_rate=8000, normalize="example")
TRUNK = TrunkConfig(dim=128, depth=3, heads=4, ffn_dim=256, dropout=0.2)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=2048, precision="bf16")
AUGMENTATION = AudioAugmentationConfig(crop=0, speed_perturb=0.15, freq_shift=0.15, time_masks=2, band_masks=1)
DECODER = DecoderConfig(decoder_depth=2, length_penalty=1.0)
DIGITS_STACK, SENTENCES_STACK = 4, 2
"""The number of 10 ms frames in a token. Sentences have up to 30 letters per second."""


def speech_recognition(
    *,
    data: str = "fsdd_strings",
    fold: int | None = 0,
    train: int = 4000,
    lengths: tuple[int, int] = (3, 7),
    longer: tuple[int, int] | None = (8, 10),
    head: Literal["ctc", "transformer", "lstm"] = "ctc",
    beam_width: int = 1,
    frontend: AudioFrontend = FRONTEND,
    augmentation: AudioAugmentationConfig = AUGMENTATION,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Read strings of spoken digits, or the characters of spoken sentences.

    Args:
        data: fsdd_strings (digits), voice_prompts or voice_prompts_fr (sentences) in the data folder, or datasets:DIR
            or parquet:DIR (sentences).
        fold: For digits, the tested speaker, from 0 to 5; this speaker and the speaker of val are not in training. none
            means that all speakers are in training, and that val and test have other recordings.
        train: For digits, the number of strings that are composed for training.
        lengths: For digits, the smallest and largest number of digits in a string.
        longer: For digits, the smallest and largest number of digits in more strings of val and test; none means no
            such strings.
        head: Read symbols from the frames by ctc, or write a text with a transformer decoder or an lstm with attention.
        beam_width: Width of the beam search; 1 means the most probable symbol of each token.
    """
    stack = DIGITS_STACK
    if data == "fsdd_strings":
        speaker = None if fold is None else FSDDStrings.speakers[uf.check_choice("fold", fold, FSDDStrings.folds)]
        source = FSDDStrings(speaker, train=train, lengths=lengths, longer=longer)
    else:
        for name, given, default in (
            ("fold", fold, 0),
            ("train", train, 4000),
            ("lengths", lengths, (3, 7)),
            ("longer", longer, (8, 10)),
        ):
            if given != default:
                raise uf.InputError(f"{name}={given}: this setting is for digits, and data={data} has sentences")
        source, longer, stack = create_speech_dataset(data), None, SENTENCES_STACK
    frontend = replace(frontend, stack=frontend.stack or stack)
    clips = ClipStatistics(source, "symbols")
    tokenizer = frontend.build(source, trunk, clips, training.bad_examples)
    augmentation = augmentation.resolve(frontend, clips, "tags")
    longest = None if longer is None else lengths[1]
    vocabulary = uf.Vocabulary.fit(source.labels, size=400, level="character")
    match uf.check_choice("head", head, ("ctc", "transformer", "lstm")):
        case "ctc":
            reader = uf.CTCHead(source.labels, trunk.dim, beam_width=beam_width, dropout=trunk.dropout, longest=longest)
        case "transformer":
            decoder = replace(DECODER, beam_width=beam_width)
            reader = decoder.build(vocabulary, trunk, None, scores="error_rate", longest=longest)
        case "lstm":
            reader = uf.LuongHead(
                vocabulary,
                trunk.dim,
                depth=1,
                dropout=trunk.dropout,
                beam_width=beam_width,
                scores="error_rate",
                longest=longest,
            )
    task = uf.Task(source, tokenizer, reader, augmentation=augmentation.build(tokenizer, len(source.labels)))
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
