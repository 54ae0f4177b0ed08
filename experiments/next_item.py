"""Recommendation: the next item of each person's sequence."""

from typing import Literal

import unifier as uf
from unifier.datasets import create_item_dataset
from unifier.options import TrunkConfig

TRUNK = TrunkConfig(dim=64, depth=2, heads=2, ffn_dim=256, dropout=0.5)
TRAINING = uf.Training(learning_rate=1e-3, batch_tokens=4096, precision="bf16", num_validations=20)
HIDDEN_SHARE = 0.2


def next_item(
    *,
    data: str = "amazon_beauty",
    objective: Literal["next", "hidden"] = "next",
    hidden_share: float = HIDDEN_SHARE,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Predict the next item of each person, among all items that are not in the person's history.

    Args:
        data: amazon_beauty or movielens_small in the data folder.
        objective: Predict the next item from the earlier items (SASRec), or hidden items from all items (BERT4Rec).
        hidden_share: Share of the items that are hidden in training, for objective=hidden.
    """
    source = create_item_dataset(data)
    hides = uf.check_choice("objective", objective, ("next", "hidden")) == "hidden"
    if not hides and hidden_share != HIDDEN_SHARE:
        raise uf.InputError(f"hidden_share={hidden_share}: objective=next hides no items; leave this setting out")
    tokenizer = uf.ItemTokenizer(
        source.num_items,
        trunk.dim,
        positions=trunk.input_positions,
        length=source.longest,
        dropout=trunk.dropout,
        mask=hides,
    )
    head = uf.NextItemHead(tokenizer.embedding, dropout=trunk.dropout, hidden=hides)
    targets = uf.MaskedItems(source.num_items, hidden_share) if hides else uf.NextToken()
    task = uf.Task(source, tokenizer, head, objective=targets, score_range=source.score_range)
    training = training.sized_for(source, source.name)
    return uf.Experiment(trunk.build(causal=not hides), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
