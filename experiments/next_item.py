"""Recommendation: the next item of each customer's sequence."""

import unifier as uf
from unifier.datasets import AmazonBeauty
from unifier.options import TrunkConfig

TRUNK = TrunkConfig(dim=64, depth=2, heads=2, ffn_dim=256, dropout=0.5)
TRAINING = uf.Training(learning_rate=1e-3, batch_tokens=4096, precision="bf16", num_validations=20)


def next_item(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict the next product of each customer of Amazon Beauty, among all products."""
    source = AmazonBeauty()
    tokenizer = uf.ItemTokenizer(source.num_items, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout)
    task = uf.Task(
        source, tokenizer, uf.NextItemHead(tokenizer.embedding, dropout=trunk.dropout), objective=uf.NextToken()
    )
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
