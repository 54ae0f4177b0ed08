"""What is translated in the decoding contests: sentences of the embedded grammar, by a model that has learned them."""

import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from benchmarks.models import sequences
from benchmarks.models.sequences import Size
from benchmarks.racing.contest import SEED
from unifier.data.dataloader import TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.source import SplitName
from unifier.datasets.grammar import GrammarPairs
from unifier.nn.precision import has_fast_bfloat16
from unifier_tokenizers import Units, Vocabulary
from unifier_tokenizers.text import EOS

if TYPE_CHECKING:
    from unifier.network import Network


class GrammarSize(NamedTuple):
    """How much is learned, and how much written."""

    sentences: int = 256
    batch: int = 64
    pairs: int = 4000
    """To learn from."""
    steps: int = 240
    tokens: int = 2048
    """The most columns, or target tokens, in a batch that is learned from."""
    cache: Path = Path(__file__).parents[1] / ".cache"
    """Where what was learned is kept."""


GRAMMAR_SIZE = GrammarSize()


def encoded(corpus: GrammarSize, split: SplitName, vocabulary: Vocabulary) -> EncodedSplit:
    """A split as ids."""
    pairs = GrammarPairs(train=corpus.pairs, val=1, test=corpus.sentences).split(split)
    sources, targets = (
        [torch.tensor([*vocabulary.encode(text), EOS]) for text in texts] for texts in zip(*pairs, strict=True)
    )
    return EncodedSplit([Units(ids, torch.arange(len(ids))[None]) for ids in sources], targets, range(len(pairs)))


def sentences(corpus: GrammarSize, vocabulary: Vocabulary) -> EncodedSplit:
    """Those that are translated: none of them was learned from."""
    return encoded(corpus, "test", vocabulary)


def vocabulary(size: Size, corpus: GrammarSize) -> Vocabulary:
    """The subwords of the sentences learned from, and entries that no text reaches."""
    pairs = GrammarPairs(train=corpus.pairs, val=1, test=corpus.sentences).split("train")
    small = Vocabulary.fit((text for pair in pairs for text in pair), size=size.vocabulary)
    return sequences.padded(small, size.vocabulary)


def kept(size: Size, corpus: GrammarSize, words: Vocabulary) -> Path:
    """The file of the weights that all this leads to."""
    what = repr((size, corpus._replace(cache=Path()), words.codec.to_str()))
    return corpus.cache / f"grammar-{hashlib.sha256(what.encode()).hexdigest()[:12]}.pt"


def learn(size: Size, corpus: GrammarSize, words: Vocabulary, file: Path) -> None:
    """Train our model, and keep its weights."""
    from benchmarks.contests import ours as own

    torch.manual_seed(SEED)
    model = sequences.ours(words, size)
    step = own.stepper(model, "cpu", "bf16" if has_fast_bfloat16("cpu") else "float32", steps=corpus.steps)
    splits = {own.ARM: encoded(corpus, "train", words)}
    for _, batch in TrainDataLoader(splits, max_tokens=corpus.tokens, seed=SEED, budget={"steps": corpus.steps}):
        step(batch)
    torch.save(model.state_dict(), file)


def trained(size: Size, corpus: GrammarSize) -> "tuple[Network, Vocabulary]":
    """Our model and its vocabulary; where it has not been trained before, that takes a minute."""
    words = vocabulary(size, corpus)
    file = kept(size, corpus, words)
    if not file.exists():
        corpus.cache.mkdir(exist_ok=True)
        # In a process of its own, so that its memory is not held against the one that only writes.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            process.submit(learn, size, corpus, words, file).result()
    model = sequences.ours(words, size)
    model.load_state_dict(torch.load(file, weights_only=True))
    return model.eval(), words
