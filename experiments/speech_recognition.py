"""Recognition of spoken digits without their times, by connectionist temporal classification or a decoder of text."""

from typing import Literal

import unifier as uf
from unifier.datasets import FSDDStrings
from unifier.options import AudioAugmentationConfig, AudioFrontend, ClipStatistics, TrunkConfig

FRONTEND = AudioFrontend(sample_rate=8000, stack=4, normalize="example")
TRUNK = TrunkConfig(dim=128, depth=3, heads=4, ffn_dim=256, dropout=0.2)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=2048, precision="bf16")
AUGMENTATION = AudioAugmentationConfig(crop=0, speed_perturb=0.15, freq_shift=0.15, time_masks=2, band_masks=1)
DECODER_DEPTH = 2


def speech_recognition(
    *,
    fold: int = 0,
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
    """Read strings of spoken digits.

    Args:
        fold: The speaker that is tested, from 0 to 5; this speaker and the speaker of val are not in training.
        train: Number of strings that are composed for training.
        lengths: Smallest and largest number of digits in a string.
        longer: Smallest and largest number of digits in more strings of val and test; none turns these strings off.
        head: Read digits from the frames by ctc, or write digits with a transformer decoder or an lstm with attention.
        beam_width: Width of the beam search; 1 means the most probable symbol of each token.
    """
    speaker = FSDDStrings.speakers[uf.check_choice("fold", fold, FSDDStrings.folds)]
    source = FSDDStrings(speaker, train=train, lengths=lengths, longer=longer)
    clips = ClipStatistics(source, "digits")
    tokenizer = frontend.build(source, trunk, clips, training.bad_examples)
    augmentation = augmentation.resolve(frontend, clips, "tags")
    longest = None if longer is None else lengths[1]
    vocabulary = uf.Vocabulary.fit(source.labels, size=300, level="character")
    match uf.check_choice("head", head, ("ctc", "transformer", "lstm")):
        case "ctc":
            reader = uf.CTCHead(source.labels, trunk.dim, beam_width=beam_width, dropout=trunk.dropout, longest=longest)
        case "transformer":
            reader = uf.TranslationHead(
                vocabulary,
                trunk.dim,
                depth=DECODER_DEPTH,
                heads=trunk.heads,
                ffn_dim=trunk.ffn_dim,
                dropout=trunk.dropout,
                beam_width=beam_width,
                scores="error_rate",
                longest=longest,
            )
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
