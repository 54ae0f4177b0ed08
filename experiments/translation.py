"""Translation: subwords of one language in, a text of another out."""

from typing import Any, Literal, get_args

from unifier.augmentation.text import BpeDropout
from unifier.data.source import BadExamples, Source, readable_examples
from unifier.data.text_files import Duplicates
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.multi30k import Multi30k
from unifier.datasets.parallel_text import ParallelText, Texts, WithExtraPairs
from unifier.experiment import (
    CompileMode,
    Experiment,
    OptimizerName,
    Precision,
    Schedule,
    Task,
    Training,
    fitted,
    sufficient_epochs,
)
from unifier.heads.transformer_decoder import TranslationHead
from unifier.trunks.factory import Positions, create_trunk, input_positions
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary
from unifier_tokenizers.errors import check_choice

Tied = Literal["all", "source", "target", "none"]
LEARNED_FROM = 1_000_000
"""The most pairs that a vocabulary is learned from, evenly spaced: more take time and teach it hardly anything."""
PLAIN: dict[str, Any] = {
    "dropout": 0.1,
    "qk_norm": False,
    "scaled_residual_init": False,
    "r_drop": 0.0,
    "beam_width": 1,
}
"""The settings of `translation` without its recipe: blocks as those of other modalities, batches read and texts written
once."""


def translation(
    *,
    data: str = "embedded",
    extra: str | None = None,
    val: str | None = None,
    test: str | None = None,
    source: str = "en",
    target: str = "fr",
    vocabulary: int = 9500,
    trunk: str = "transformer",
    positions: Positions = "sinusoid",
    dim: int = 128,
    depth: int = 4,
    decoder_depth: int = 4,
    heads: int = 4,
    ffn_dim: int = 256,
    dropout: float = 0.1,
    qk_norm: bool = True,
    scaled_residual_init: bool = True,
    tied: Tied = "all",
    label_smoothing: float = 0.1,
    r_drop: float = 5.0,
    bpe_dropout: float = 0.0,
    beam_width: int = 5,
    length_penalty: float = 1.2,
    epochs: float | None = None,
    tokens: int | None = None,
    batch_tokens: int = 2048,
    grad_accumulation: int = 1,
    optimizer: OptimizerName = "muon",
    learning_rate: float = 8e-3,
    schedule: Schedule = "cosine",
    warmup_ratio: float = 0.1,
    ema_decay: float = 0.0,
    average_last: int = 1,
    num_validations: int = 8,
    precision: Precision = "bf16",
    compile: CompileMode | None = None,
    bad_examples: BadExamples = "stop",
    length_ratio: float | None = None,
    duplicates: Duplicates = "keep",
) -> Experiment:
    """Translate `data`: "embedded" (a small grammar of en and fr), "multi30k" (en, de, fr, cs), or files of your own.

    Of your own: a file with a sentence, a tab and its translation on each line, two files with a comma between whose
    lines correspond, or a translation memory (.tmx). `source` and `target` name the task and the memory's languages;
    scores go by the rules of `target`. `val` and `test` name such files too, and are held out of `data` where they are
    not given; of multi30k, `test` is a year, 2016 or 2017. `extra` names some with further pairs to train on: what runs
    have translated, say. `length_ratio` and `duplicates` clean what is trained on, of files of your own.
    Both languages share one vocabulary; one table of it is shared by encoder, decoder and output projection
    (tied="all"), by the first two ("source") or the last two ("target"), or each has its own ("none"). `tokens`, where
    given, ends training in place of `epochs`, of which None is 40, or as many as `enough_epochs` says. `trunk` is a
    name that `make_trunk` knows, and takes of the settings those that it has; `qk_norm` and `scaled_residual_init` are of the decoder,
    and of a trunk that is a transformer.
    """
    check_choice("tied", tied, get_args(Tied))
    if r_drop and not dropout:
        raise InputError(f"r_drop={r_drop} compares two readings that dropout=0 makes the same: give r_drop=0 too")
    if data in ("embedded", "multi30k") and not extra and (length_ratio is not None or duplicates == "drop"):
        raise InputError(f"length_ratio and duplicates clean files of your own: leave them out with data={data}")
    if (test is not None and data == "embedded") or (val is not None and data in ("embedded", "multi30k")):
        raise InputError(
            f"data={data} has its own val and test: give them with files of your own, or test=2017 with multi30k"
        )

    def own(train: str, val: str | None = None, test: str | None = None) -> ParallelText:
        return ParallelText(
            sides(train),
            val and sides(val),
            test and sides(test),
            languages=(source, target),
            length_ratio=length_ratio,
            duplicates=duplicates,
        )

    pairs: Source
    if data == "embedded":
        pairs = GrammarPairs(source=source, target=target)
    elif data == "multi30k":
        pairs = Multi30k(source, target, test=test or "2016")
    else:
        pairs = own(data, val, test)
    if extra:
        pairs = WithExtraPairs(pairs, own(extra))

    def learn() -> Vocabulary:
        train = readable_examples(pairs.split("train"), bad_examples=bad_examples, max_examples=LEARNED_FROM)
        return Vocabulary.fit((text for pair in train for text in (pair.input, pair.target)), size=vocabulary)

    if epochs is None and tokens is None:
        epochs = fitted(f"{source}-{target}-epochs", lambda: sufficient_epochs(pairs, least=40))
    subwords = fitted(f"{source}-{target}", learn)
    tokenizer = SubwordTokenizer(subwords, dim, positions=input_positions(positions), dropout=dropout)
    head = TranslationHead(
        subwords,
        dim,
        depth=decoder_depth,
        heads=heads,
        ffn_dim=ffn_dim,
        dropout=dropout,
        qk_norm=qk_norm,
        scaled_residual_init=scaled_residual_init,
        label_smoothing=label_smoothing,
        r_drop=r_drop,
        beam_width=beam_width,
        length_penalty=length_penalty,
        embedding=tokenizer.embedding if tied in ("all", "source") else None,
        tied=tied in ("all", "target"),
        language=target,
    )
    if bpe_dropout and positions == "learned":
        raise InputError("bpe_dropout makes texts longer than positions=learned may reach: take other positions")
    cut = BpeDropout(subwords, bpe_dropout) if bpe_dropout else None
    blocks = {"qk_norm": qk_norm, "scaled_residual_init": scaled_residual_init} if trunk == "transformer" else {}
    return Experiment(
        create_trunk(trunk, dim, depth, heads, ffn_dim, dropout, positions=positions, **blocks),
        {f"{source}-{target}": Task(pairs, tokenizer, head, augmentation=cut)},
        Training(
            epochs=epochs if tokens is None else None,
            tokens=tokens,
            batch_tokens=batch_tokens,
            grad_accumulation=grad_accumulation,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_ratio=warmup_ratio,
            ema_decay=ema_decay,
            average_last=average_last,
            num_validations=num_validations,
            precision=precision,
            compile=compile,
            bad_examples=bad_examples,
        ),
        name="translation",
    )


def sides(files: str) -> Texts:
    """One file, or two with a comma between."""
    source, comma, target = files.partition(",")
    return (source, target) if comma else files


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
