"""Pretraining without labels: parts of the inputs are hidden, and the model predicts the hidden parts."""

import unifier as uf
from unifier.datasets import create_plain_text_dataset
from unifier.options import MaskedTextConfig, TrunkConfig

TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
TRAINING = uf.Training(optimizer="muon", learning_rate=2e-3, precision="bf16", num_validations=4)


def pretrain(
    *,
    data: str = "movie_reviews",
    piece_words: int = 64,
    text: MaskedTextConfig = MaskedTextConfig(),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Hide words of texts, and predict the hidden words. A recipe with start=RUN then starts from the trained model.

    Args:
        data: movie_reviews or wiki_articles in the data folder, or your own text file in UTF-8.
        piece_words: Number of words of an example; texts are cut into pieces.
    """
    source = create_plain_text_dataset(data, words=piece_words)
    task = text.build(source, source.name, trunk, training)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
