"""Language models, which predict the next character or subword of a text."""

from typing import Literal

import unifier as uf
from unifier.augmentation import RandomWindow
from unifier.datasets import TextPieces, create_long_text
from unifier.options import TrunkConfig

TRUNK = TrunkConfig(depth=4, dim=128, dropout=0.0, positions="rotary", qk_norm=True, scaled_residual_init=True)
TRAINING = uf.Training(optimizer="muon", learning_rate=6e-3, batch_tokens=4096, precision="bf16")
MIN_EPOCHS = 10


def language_model(
    *,
    data: str = "tinyshakespeare",
    level: Literal["character", "bpe", "byte"] = "character",
    vocabulary: int = 8000,
    length: int = 256,
    tied: bool = False,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Predict the next token of a long text.

    Args:
        data: tinyshakespeare or wiki_articles in the data folder, or a UTF-8 text file.
        level: Kind of token: character, bpe or byte.
        vocabulary: Largest number of entries of the vocabulary.
        length: Number of tokens of a piece of text, which is the largest context of a prediction.
        tied: Use the transposed embedding as the output projection.
    """
    source = create_long_text(data)
    texts = (example.input for example in source.split("train"))
    entries = uf.fitted(source.name, lambda: uf.Vocabulary.fit(texts, size=vocabulary, level=level))
    tokenizer = uf.SubwordTokenizer(
        entries,
        trunk.dim,
        positions=trunk.input_positions,
        length=2 * length + 1,  # A piece of train is longer than the windows that training reads.
        dropout=trunk.dropout,
        begin=True,
        end=False,
    )
    head = uf.LanguageModelingHead(
        len(entries),
        trunk.dim,
        vocabulary=entries,
        embedding=tokenizer.embedding if tied else None,
        unit="character" if level == "character" else "token",
        context=length,
    )
    pieces = TextPieces(source, entries, length)
    task = uf.Task(pieces, tokenizer, head, augmentation=RandomWindow(length + 1), objective=uf.NextToken())
    training = training.sized_for(pieces, source.name, minimum=MIN_EPOCHS)
    return uf.Experiment(trunk.build(), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
