"""Training a small encoder-decoder on pairs of captions."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contests.peers import training
from benchmarks.models import sequence_weights, sequences
from benchmarks.models.copying import State, fill, read
from benchmarks.models.sequences import LABEL_SMOOTHING, SIZE, Size
from benchmarks.racing.agreement import far_apart
from benchmarks.racing.contest import SEED, Contest, Contestant, Role, Workload, ours, with_memory_kept
from benchmarks.racing.peak import PEAKS
from unifier.data.keeping.encoding import Encoded
from unifier.data.loading import Batch, TrainingBatches, collate
from unifier.heads.head import IGNORED
from unifier.study.experiment import Precision
from unifier_tokenizers import Units, Vocabulary
from unifier_tokenizers.parts.vocabulary import END, SPECIALS

CHECKED = 8
"""Pairs whose logits are compared."""


@final
class Captions(NamedTuple):
    """How many pairs there are, and how they are batched."""

    pairs: int = 8000
    tokens: int = 2048
    """The most columns, or target tokens, in one of our batches."""
    steps: int = 8
    """Our batches in a round: about 1,000 pairs."""
    peers: int = 128
    """Pairs in a batch of a peer's own."""


CAPTIONS = Captions()

Batching = Callable[[Encoded, Captions], list[Batch]]


def captions(count: int, size: Size) -> Encoded:
    """Pairs of random ids, as long as captions are in subwords, each with its end mark."""
    rng = Random(SEED)

    def text(length: float) -> Tensor:
        length = min(max(round(length), 4), 40)
        return torch.tensor([*(rng.randrange(len(SPECIALS), size.vocabulary) for _ in range(length)), END])

    sources = [text(rng.gauss(14, 4.5)) for _ in range(count)]
    targets = [text((len(source) - 1) * rng.gauss(1.05, 0.15)) for source in sources]
    units = [Units(ids, torch.arange(len(ids))[None]) for ids in sources]
    return Encoded(units, targets, range(count))


def our_batches(split: Encoded, plan: Captions) -> list[Batch]:
    """The first `plan.steps` batches of one of our training runs."""
    batches = TrainingBatches({"arm": split}, columns=plan.tokens, seed=SEED, budget={"steps": plan.steps})
    return [batch for _, batch in batches]


def their_batches(split: Encoded, plan: Captions) -> list[Batch]:
    """The same pairs in random order, `plan.peers` at a time."""
    rows = torch.cat([batch.places for batch in our_batches(split, plan)]).tolist()
    Random(SEED).shuffle(rows)
    return [collate(split, rows[i : i + plan.peers]) for i in range(0, len(rows), plan.peers)]


def real_tokens(batches: Sequence[Batch]) -> int:
    """Source and target tokens, padding not counted."""
    return sum(int(batch.mask.sum() + (batch.target != IGNORED).sum()) for batch in batches)


def unifier(size: Size, plan: Captions, precision: Precision, weights: Path) -> Workload:
    """Through our tokenizer, trunk, head and batches."""
    from benchmarks.contests import ours as own

    torch.manual_seed(SEED)
    bare = Vocabulary.fit(["a"], size=260)
    model = sequences.ours(sequences.padded(bare, size.vocabulary), size)
    own.stir(model)
    own.save(model, weights)
    split = captions(plan.pairs, size)
    checked, batches = collate(split, range(CHECKED)), our_batches(split, plan)
    outputs = own.translation_logits(model, checked)[checked.target != IGNORED]
    return own.training(model, split, batches, precision, units=real_tokens(batches), outputs=outputs)


class Peer(NamedTuple):
    """A library's model."""

    name: str
    library: str
    build: Callable[[Size], nn.Module]
    logits: Callable[[nn.Module, Batch], Tensor]
    weights: Callable[[State], State]


MARIAN = Peer(
    "transformers' Marian",
    "transformers.models.marian.modeling_marian",
    sequences.marian,
    sequences.marian_logits,
    sequence_weights.for_marian,
)
PLAIN = MARIAN._replace(name=f"{MARIAN.name}, plain attention", build=partial(sequences.marian, plain=True))
TORCH = Peer("torch.nn", "torch", sequences.TorchTranslator, sequences.torch_logits, sequence_weights.for_torch)


def peer(
    kind: Peer,
    size: Size,
    plan: Captions,
    batching: Batching,
    precision: Precision,
    compiled: bool,
    weights: Path,
) -> Workload:
    """One peer in one precision and batching, with a copy of our weights."""
    model = kind.build(size)
    fill(model, kind.weights(read(weights)))
    split = captions(plan.pairs, size)
    checked, batches = collate(split, range(CHECKED)), batching(split, plan)
    with torch.no_grad():
        outputs = kind.logits(model.eval(), checked)[checked.target != IGNORED]

    def loss(run: nn.Module, batch: Batch) -> Tensor:
        logits = kind.logits(run, batch).flatten(0, 1).float()
        return functional.cross_entropy(logits, batch.target.flatten(), label_smoothing=LABEL_SMOOTHING)

    return training(model, loss, batches, precision, compiled=compiled, units=real_tokens(batches), outputs=outputs)


def contest(size: Size = SIZE, plan: Captions = CAPTIONS) -> Contest:
    entries: tuple[tuple[Peer, str, Role, Precision, Batching, bool], ...] = (
        (MARIAN, "", "as it comes", "bf16", their_batches, False),
        (TORCH, "", "as it comes", "bf16", their_batches, False),
        (MARIAN, ", our batches", "best", "bf16", our_batches, False),
        (PLAIN, ", our batches", "best", "bf16", our_batches, False),
        (PLAIN, ", our batches, compiled", "best", "bf16", our_batches, True),
        (TORCH, ", our batches", "best", "bf16", our_batches, False),
        (TORCH, ", our batches, compiled", "best", "bf16", our_batches, True),
        (MARIAN, "", "float32", "float32", their_batches, False),
        (TORCH, "", "float32", "float32", their_batches, False),
    )
    peers = tuple(
        Contestant(
            kind.name + how,
            role,
            precision,
            kind.library,
            partial(peer, kind, size, plan, batching, precision, compiled),
            compiled,
        )
        for kind, how, role, precision, batching, compiled in entries
    )
    return Contest(
        "translation",
        "train",
        "Training a translator of 2.6 million parameters",
        "tokens",
        (
            *ours(partial(unifier, size, plan), "bf16", "float32"),
            *with_memory_kept(peers, f"{PLAIN.name}, our batches"),
            *PEAKS,
        ),
        far_apart,
    )
