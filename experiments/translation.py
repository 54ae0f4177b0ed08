"""Translation: subwords of one language in, a text of the other out."""

from typing import Literal

from unifier.data.embedded import GrammarPairs
from unifier.data.sets.multi30k import Multi30k
from unifier.data.source import Source
from unifier.heads.translation import TranslationHead
from unifier.study.experiment import Arm, Experiment, Precision, Training
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import SubwordTokenizer, Vocabulary


def translation(
    *,
    data: Literal["embedded", "multi30k"] = "embedded",
    source: str = "en",
    target: str = "fr",
    vocabulary: int = 8000,
    dim: int = 128,
    depth: int = 3,
    decoder_depth: int = 2,
    heads: int = 4,
    hidden: int = 256,
    dropout: float = 0.1,
    tokens: int = 600_000,
    batch_tokens: int = 2048,
    learning_rate: float = 2e-3,
    precision: Precision = "float32",
) -> Experiment:
    """`data` "embedded" is a small English-French grammar, "multi30k" image captions in en, de, fr and cs.

    Both languages share one vocabulary, and encoder, decoder and output projection one table of it.
    """
    pairs: Source = Multi30k(source, target) if data == "multi30k" else GrammarPairs(source=source, target=target)
    texts = [text for pair in pairs.split("train") for text in (pair.input, pair.target)]
    subwords = Vocabulary.fit(texts, size=vocabulary)
    tokenizer = SubwordTokenizer(subwords, dim, dropout=dropout)
    head = TranslationHead(
        subwords, dim, depth=decoder_depth, heads=heads, hidden=hidden, dropout=dropout, embedding=tokenizer.embedding
    )
    return Experiment(
        "translation",
        Transformer(dim, depth, heads, hidden, dropout=dropout),
        {f"{source}-{target}": Arm(pairs, tokenizer, head)},
        Training(tokens=tokens, batch_tokens=batch_tokens, learning_rate=learning_rate, precision=precision),
        tags=("text", "translation"),
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
