"""The start and the end of a named digit in a string of spoken digits."""

import unifier as uf
from unifier.datasets import DigitSpans, FSDDStrings
from unifier.options import AudioFrontend, ClipStatistics, TrunkConfig

FRONTEND = AudioFrontend(sample_rate=8000, stack=4, normalize="example")
TRUNK = TrunkConfig(depth=3, heads=4, ffn_dim=256, dropout=0.2)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=2048, precision="bf16")


def spoken_digits(
    *,
    fold: int = 0,
    train: int = 4000,
    lengths: tuple[int, int] = (3, 7),
    max_seconds: float = 2.4,
    frontend: AudioFrontend = FRONTEND,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Find the start and the end of a named digit in a string of spoken digits of FSDD.

    Args:
        fold: The tested speaker, from 0 to 5; this speaker and the speaker of val are not in training.
        train: Number of strings that are composed for training.
        lengths: Smallest and largest number of digits in a string.
        max_seconds: Longest answer, in seconds.
    """
    speaker = FSDDStrings.speakers[uf.check_choice("fold", fold, FSDDStrings.folds)]
    strings = FSDDStrings(speaker, train=train, lengths=lengths)
    sounds = frontend.build(strings, trunk, ClipStatistics(strings, "spans"), training.bad_examples)
    digits = uf.Vocabulary.fit(strings.labels, size=400, level="character")
    names = uf.SubwordTokenizer(digits, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout)
    source = DigitSpans(strings, sounds.token_seconds)
    head = uf.QuestionAnsweringHead(
        trunk.dim, max_length=max(round(max_seconds / sounds.token_seconds), 1), dropout=trunk.dropout
    )
    task = uf.Task(source, uf.Mixture({"question": names, "context": sounds}), head)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
