"""Classes of pictures: patches in, a label out."""

from typing import Literal

from unifier.data.embedded import Digits
from unifier.data.sets.fashion_mnist import FashionMNIST
from unifier.heads.classification import ClassificationHead
from unifier.study.experiment import Arm, Experiment, Precision, Training
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer


def pictures(
    *,
    data: Literal["embedded", "fashion_mnist"] = "embedded",
    patch: int | None = None,
    stem: bool = False,
    dim: int = 128,
    depth: int = 3,
    heads: int = 4,
    hidden: int = 256,
    dropout: float = 0.1,
    tokens: int = 600_000,
    batch_tokens: int = 2048,
    learning_rate: float = 2e-3,
    precision: Precision = "float32",
) -> Experiment:
    """`data` "embedded" is scikit-learn's 8 x 8 handwritten digits, "fashion_mnist" 28 x 28 clothes.

    `patch` is in pixels; None takes patches that make 16 columns of a digit, and 49 of a piece of clothing.
    """
    source = FashionMNIST() if data == "fashion_mnist" else Digits()
    tokenizer = PatchTokenizer(
        dim, patch=patch or (4 if data == "fashion_mnist" else 2), channels=1, stem=stem, dropout=dropout
    )
    tokenizer.fit([example.input for example in source.split("train")])
    return Experiment(
        "pictures",
        Transformer(dim, depth, heads, hidden, dropout=dropout),
        {data if data != "embedded" else "digits": Arm(source, tokenizer, ClassificationHead(source.labels, dim))},
        Training(tokens=tokens, batch_tokens=batch_tokens, learning_rate=learning_rate, precision=precision),
        tags=("pictures", "classification"),
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
