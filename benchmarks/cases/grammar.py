"""The data and the trained translator of the decoding cases."""

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
from unifier_tokenizers.subwords import EOS

if TYPE_CHECKING:
    from unifier.network import Network


@final
class GrammarPlan(NamedTuple):
    """The amount of data for training and for translation."""

    sentences: int = 256
    """The number of sentences to translate."""
    batch: int = 64
    pairs: int = 4000
    """The number of training pairs."""
    steps: int = 240
    max_tokens: int = 2048
    """The maximum number of source tokens, and of target tokens, in a training batch."""
    cache: Path = Path(__file__).parents[1] / ".cache"
    """The folder that stores the trained weights."""


GRAMMAR_PLAN = GrammarPlan()


def trained_translator(size: Size, plan: GrammarPlan) -> "tuple[Network, Vocabulary]":
    """Return our trained model and its vocabulary. The first call trains the model for about a minute."""
    vocabulary = fit_vocabulary(size, plan)
    path = weights_path(size, plan, vocabulary)
    if not path.exists():
        plan.cache.mkdir(exist_ok=True)
        # Training runs in a separate process, so that the measured memory excludes training.
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
    """Learn subwords from the training pairs and pad the vocabulary to `size.vocabulary` entries."""
    pairs = GrammarPairs(train=plan.pairs, val=1, test=plan.sentences).split("train")
    small = Vocabulary.fit((text for pair in pairs for text in pair), size=size.vocabulary)
    return sequences.pad_vocabulary(small, size.vocabulary)


def weights_path(size: Size, plan: GrammarPlan, vocabulary: Vocabulary) -> Path:
    """Return the path of the trained weights. The file name contains a hash of all settings of the training."""
    settings = repr((size, plan._replace(cache=Path()), vocabulary.codec.to_str()))
    return plan.cache / f"grammar-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.pt"


def sentences_to_translate(plan: GrammarPlan, vocabulary: Vocabulary) -> EncodedSplit:
    """Encode the sentences to translate, which are test sentences."""
    return _encode_pairs(plan, "test", vocabulary)


def _encode_pairs(plan: GrammarPlan, split: SplitName, vocabulary: Vocabulary) -> EncodedSplit:
    pairs = GrammarPairs(train=plan.pairs, val=1, test=plan.sentences).split(split)
    sources, targets = (
        [torch.tensor([*vocabulary.encode(text), EOS]) for text in texts] for texts in zip(*pairs, strict=True)
    )
    return EncodedSplit([Units(ids, torch.arange(len(ids))[None]) for ids in sources], targets, range(len(pairs)))
