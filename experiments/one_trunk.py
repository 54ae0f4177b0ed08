"""Joint training on text, pictures and sound with one trunk."""

from dataclasses import replace

import unifier as uf
from three_modalities import TRUNK, digits, grammar, music
from unifier.options import TrunkConfig

TRAINING = uf.Training(tokens=600_000, batch_tokens=2048, optimizer="muon", learning_rate=5e-3, precision="bf16")


def one_trunk(*, trunk: TrunkConfig = replace(TRUNK, depth=3), training: uf.Training = TRAINING) -> uf.Experiment:
    """Train three modalities jointly. `tokens` is the budget of each modality."""
    parts = [build(trunk=trunk, training=training) for build in (grammar, digits, music)]
    return replace(uf.merge_experiments(parts), name="one_trunk")


if __name__ == "__main__":
    uf.run_this_file(__file__)
