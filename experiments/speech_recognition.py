"""Recognition of spoken digits without their times, by connectionist temporal classification."""

import unifier as uf
from unifier.datasets import FSDDStrings
from unifier.options import AudioAugmentationConfig, AudioFrontend, ClipStatistics, TrunkConfig

FRONTEND = AudioFrontend(sample_rate=8000, stack=4, normalize="example")
TRUNK = TrunkConfig(dim=128, depth=3, heads=4, ffn_dim=256, dropout=0.2)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=2048, precision="bf16")
AUGMENTATION = AudioAugmentationConfig(crop=0, speed_perturb=0.15, freq_shift=0.15, time_masks=2, band_masks=1)


def speech_recognition(
    *,
    fold: int = 0,
    train: int = 4000,
    lengths: tuple[int, int] = (3, 7),
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
        beam_width: Width of the beam search; 1 means the most probable symbol of each token.
    """
    speaker = FSDDStrings.speakers[uf.check_choice("fold", fold, FSDDStrings.folds)]
    source = FSDDStrings(speaker, train=train, lengths=lengths)
    clips = ClipStatistics(source, "digits")
    tokenizer = frontend.build(source, trunk, clips, training.bad_examples)
    augmentation = augmentation.resolve(frontend, clips, "tags")
    head = uf.CTCHead(source.labels, trunk.dim, beam_width=beam_width, dropout=trunk.dropout)
    task = uf.Task(source, tokenizer, head, augmentation=augmentation.build(tokenizer, len(source.labels)))
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
