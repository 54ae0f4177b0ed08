"""Translation: subwords of one language in, a text of another out."""

from unifier.data.cleaning import Duplicates
from unifier.data.embedded import GrammarPairs
from unifier.data.sets.multi30k import Multi30k
from unifier.data.sets.parallel_text import ParallelText
from unifier.data.source import BadExamples, Source, readable
from unifier.heads.translation import TranslationHead
from unifier.study.experiment import Arm, Experiment, Precision, Training
from unifier.study.fitted import fitted
from unifier.trunks.named import Positions, added, make_trunk
from unifier_tokenizers import SubwordTokenizer, Vocabulary


def translation(
    *,
    data: str = "embedded",
    source: str = "en",
    target: str = "fr",
    vocabulary: int = 8000,
    trunk: str = "transformer",
    positions: Positions = "sinusoid",
    dim: int = 128,
    depth: int = 3,
    decoder_depth: int = 2,
    heads: int = 4,
    hidden: int = 256,
    dropout: float = 0.1,
    beam_width: int = 1,
    tokens: int = 600_000,
    batch_tokens: int = 2048,
    learning_rate: float = 2e-3,
    validations: int = 8,
    precision: Precision = "float32",
    bad_examples: BadExamples = "stop",
    length_ratio: float | None = None,
    duplicates: Duplicates = "keep",
) -> Experiment:
    """Translate `data`: "embedded" (a small grammar of en and fr), "multi30k" (en, de, fr, cs), or files of your own.

    Of your own: a file with a sentence, a tab and its translation on each line, two files with a comma between whose
    lines correspond, or a translation memory (.tmx). `source` and `target` name the arm and the memory's languages;
    scores go by the rules of `target`. `length_ratio` and `duplicates` clean what is trained on. Both languages share
    one vocabulary; encoder, decoder and output projection share one table of it. `trunk` is a name that `make_trunk`
    knows.
    """
    pairs: Source
    if data == "embedded":
        pairs = GrammarPairs(source=source, target=target)
    elif data == "multi30k":
        pairs = Multi30k(source, target)
    else:
        first, comma, second = data.partition(",")
        pairs = ParallelText(
            (first, second) if comma else data,
            languages=(source, target),
            length_ratio=length_ratio,
            duplicates=duplicates,
        )

    def learn() -> Vocabulary:
        train = readable(pairs.split("train"), bad_examples=bad_examples)
        return Vocabulary.fit((text for pair in train for text in (pair.input, pair.target)), size=vocabulary)

    subwords = fitted(f"{source}-{target}", learn)
    tokenizer = SubwordTokenizer(subwords, dim, positions=added(positions), dropout=dropout)
    head = TranslationHead(
        subwords,
        dim,
        depth=decoder_depth,
        heads=heads,
        hidden=hidden,
        dropout=dropout,
        beam_width=beam_width,
        embedding=tokenizer.embedding,
        language=target,
    )
    return Experiment(
        "translation",
        make_trunk(trunk, dim, depth, heads, hidden, dropout, positions=positions),
        {f"{source}-{target}": Arm(pairs, tokenizer, head)},
        Training(
            tokens=tokens,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            validations=validations,
            precision=precision,
            bad_examples=bad_examples,
        ),
        tags=("text", "translation"),
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
