"""The data and the model of the decoding cases: the embedded grammar, and a translator trained on it."""

import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from benchmarks.models import sequences
from benchmarks.models.sequences import Size
from benchmarks.runner.case import SEED
from unifier.data.dataloader import TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.source import SplitName
from unifier.datasets.grammar import GrammarPairs
from unifier.nn.precision import has_fast_bfloat16
from unifier_tokenizers import Units, Vocabulary
from unifier_tokenizers.text import EOS

if TYPE_CHECKING:
    from unifier.network import Network


@final
class GrammarPlan(NamedTuple):
    """The amount of training and of translation."""

    sentences: int = 256
    """Sentences to translate."""
    batch: int = 64
    pairs: int = 4000
    """Pairs to train on."""
    steps: int = 240
    max_tokens: int = 2048
    """The largest number of source tokens, or of target tokens, in a training batch."""
    cache: Path = Path(__file__).parents[1] / ".cache"
    """The folder of trained weights."""


GRAMMAR_PLAN = GrammarPlan()


def trained_translator(size: Size, plan: GrammarPlan) -> "tuple[Network, Vocabulary]":
    """Return our model and its vocabulary; the first call trains for about a minute."""
    vocabulary = fit_vocabulary(size, plan)
    path = weights_path(size, plan, vocabulary)
    if not path.exists():
        plan.cache.mkdir(exist_ok=True)
        # In its own process, so that the memory of training is not counted as memory of translation.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            process.submit(train_translator, size, plan, vocabulary, path).result()
    model = sequences.create_our_translator(vocabulary, size)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval(), vocabulary


def train_translator(size: Size, plan: GrammarPlan, vocabulary: Vocabulary, path: Path) -> None:
    """Train our model on the grammar and save its weights."""
    from benchmarks.cases.ours import TASK, create_step

    torch.manual_seed(SEED)
    model = sequences.create_our_translator(vocabulary, size)
    step = create_step(model, "cpu", "bf16" if has_fast_bfloat16("cpu") else "float32", steps=plan.steps)
    splits = {TASK: _encode_pairs(plan, "train", vocabulary)}
    for _, batch in TrainDataLoader(splits, max_tokens=plan.max_tokens, seed=SEED, budget={"steps": plan.steps}):
        step(batch)
    torch.save(model.state_dict(), path)


def fit_vocabulary(size: Size, plan: GrammarPlan) -> Vocabulary:
    """Learn subwords from the training pairs and pad the vocabulary to its size."""
    pairs = GrammarPairs(train=plan.pairs, val=1, test=plan.sentences).split("train")
    small = Vocabulary.fit((text for pair in pairs for text in pair), size=size.vocabulary)
    return sequences.pad_vocabulary(small, size.vocabulary)


def weights_path(size: Size, plan: GrammarPlan, vocabulary: Vocabulary) -> Path:
    """Return the file of the trained weights, whose name is a hash of everything that determines them."""
    settings = repr((size, plan._replace(cache=Path()), vocabulary.codec.to_str()))
    return plan.cache / f"grammar-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.pt"


def sentences_to_translate(plan: GrammarPlan, vocabulary: Vocabulary) -> EncodedSplit:
    """Return the encoded sentences to translate, which the model was not trained on."""
    return _encode_pairs(plan, "test", vocabulary)


def _encode_pairs(plan: GrammarPlan, split: SplitName, vocabulary: Vocabulary) -> EncodedSplit:
    pairs = GrammarPairs(train=plan.pairs, val=1, test=plan.sentences).split(split)
    sources, targets = (
        [torch.tensor([*vocabulary.encode(text), EOS]) for text in texts] for texts in zip(*pairs, strict=True)
    )
    return EncodedSplit([Units(ids, torch.arange(len(ids))[None]) for ids in sources], targets, range(len(pairs)))
