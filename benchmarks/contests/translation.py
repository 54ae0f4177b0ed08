"""Training an encoder-decoder on pairs of texts: a small one on captions, and any other."""

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
from benchmarks.racing.contest import SEED, Compiled, Contest, Contestant, Role, Workload, ours, with_memory_kept
from benchmarks.racing.device import Device
from benchmarks.racing.peak import peaks
from unifier.data.dataloader import Batch, TrainDataLoader, collate
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Precision
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import Units, Vocabulary
from unifier_tokenizers.text import EOS, SPECIALS

CHECKED = 8
"""Pairs whose logits are compared."""


@final
class Plan(NamedTuple):
    """How many pairs there are, how they are batched, and where they are trained on; captions on the processor."""

    pairs: int = 8000
    tokens: int = 2048
    """The most columns, or target tokens, in one of our batches."""
    steps: int = 8
    """Our batches in a round: about 1,000 pairs."""
    peers: int = 128
    """Pairs in a batch of a peer's own."""
    length: float = 14
    """The mean of a source's tokens, its end mark not counted."""
    spread: float = 4.5
    """Their standard deviation."""
    longest: int = 40
    """The most that a source or a target has."""
    device: Device = "cpu"


CAPTIONS = Plan()


def pairs(size: Size, plan: Plan) -> EncodedSplit:
    """Pairs of random ids, as long as the plan says, each with its end mark."""
    rng = Random(SEED)

    def text(length: float) -> Tensor:
        length = min(max(round(length), 4), plan.longest)
        return torch.tensor([*(rng.randrange(len(SPECIALS), size.vocabulary) for _ in range(length)), EOS])

    sources = [text(rng.gauss(plan.length, plan.spread)) for _ in range(plan.pairs)]
    targets = [text((len(source) - 1) * rng.gauss(1.05, 0.15)) for source in sources]
    units = [Units(ids, torch.arange(len(ids))[None]) for ids in sources]
    return EncodedSplit(units, targets, range(plan.pairs))


def our_batches(split: EncodedSplit, plan: Plan) -> list[Batch]:
    """The first `plan.steps` batches of one of our training runs."""
    batches = TrainDataLoader({"task": split}, max_tokens=plan.tokens, seed=SEED, budget={"steps": plan.steps})
    return [batch for _, batch in batches]


def their_batches(split: EncodedSplit, plan: Plan) -> list[Batch]:
    """The same pairs in random order, `plan.peers` at a time."""
    rows = torch.cat([batch.example_indices for batch in our_batches(split, plan)]).tolist()
    Random(SEED).shuffle(rows)
    return [collate(split, rows[i : i + plan.peers]) for i in range(0, len(rows), plan.peers)]


def real_tokens(batches: Sequence[Batch]) -> int:
    """Source and target tokens, padding not counted."""
    return sum(int(batch.mask.sum() + (batch.target != IGNORE_INDEX).sum()) for batch in batches)


def unifier(size: Size, plan: Plan, precision: Precision, weights: Path, *, compiled: bool = False) -> Workload:
    """Through our tokenizer, trunk, head and batches."""
    from benchmarks.contests import ours as own

    torch.manual_seed(SEED)
    bare = Vocabulary.fit(["a"], size=260)
    model = sequences.ours(sequences.padded(bare, size.vocabulary), size)
    own.stir(model)
    own.save(model, weights)
    split = pairs(size, plan)
    checked, batches = collate(split, range(CHECKED)), our_batches(split, plan)
    outputs = own.translation_logits(model, checked)[checked.target != IGNORE_INDEX]
    units = real_tokens(batches)
    return own.training(model, split, batches, plan.device, precision, compiled=compiled, units=units, outputs=outputs)


class Peer(NamedTuple):
    """A library's model, and how it is raced."""

    name: str
    library: str
    build: Callable[[Size], nn.Module]
    logits: Callable[[nn.Module, Batch], Tensor]
    weights: Callable[[State], State]
    batches: Callable[[EncodedSplit, Plan], list[Batch]] = their_batches
    compiled: Compiled | None = None


def on_our_batches(peer: Peer) -> Peer:
    """The same on batches of like length."""
    return peer._replace(name=f"{peer.name}, our batches", batches=our_batches)


def compiled(peer: Peer, what: Compiled = "model") -> Peer:
    """The same, compiled."""
    return peer._replace(name=f"{peer.name}, compiled", compiled=what)


MARIAN = Peer(
    "transformers' Marian",
    "transformers.models.marian.modeling_marian",
    sequences.marian,
    sequences.marian_logits,
    sequence_weights.for_marian,
)
PLAIN = MARIAN._replace(name=f"{MARIAN.name}, plain attention", build=partial(sequences.marian, plain=True))
TORCH = Peer("torch.nn", "torch", sequences.TorchTranslator, sequences.torch_logits, sequence_weights.for_torch)


def build(peer: Peer, size: Size, plan: Plan, precision: Precision, weights: Path) -> Workload:
    """One peer in one precision, with a copy of our weights."""
    model = peer.build(size)
    fill(model, peer.weights(read(weights)))
    split = pairs(size, plan)
    checked, batches = collate(split, range(CHECKED)), peer.batches(split, plan)
    with torch.no_grad():
        outputs = peer.logits(model.eval(), checked)[checked.target != IGNORE_INDEX]

    def loss(run: nn.Module, batch: Batch) -> Tensor:
        logits = peer.logits(run, batch).flatten(0, 1).float()
        return functional.cross_entropy(logits, batch.target.flatten(), label_smoothing=LABEL_SMOOTHING)

    units = real_tokens(batches)
    return training(model, loss, batches, plan.device, precision, compiled=peer.compiled, units=units, outputs=outputs)


def contestants(
    role: Role, peers: Sequence[Peer], precision: Precision = "bf16", *, size: Size, plan: Plan
) -> tuple[Contestant, ...]:
    """Peers in one role."""
    return tuple(
        Contestant(
            peer.name, role, precision, peer.library, partial(build, peer, size, plan), peer.compiled is not None
        )
        for peer in peers
    )


def contest(size: Size = SIZE, plan: Plan = CAPTIONS) -> Contest:
    enter = partial(contestants, size=size, plan=plan)
    plain, torchs = on_our_batches(PLAIN), on_our_batches(TORCH)
    peers = (
        *enter("as it comes", [MARIAN, TORCH]),
        *enter("best", [on_our_batches(MARIAN), plain, compiled(plain), torchs, compiled(torchs)]),
        *enter("float32", [MARIAN, TORCH], "float32"),
    )
    return Contest(
        "translation",
        "train",
        "Training a translator of 2.6 million parameters",
        "tokens",
        (
            *ours(partial(unifier, size, plan), "bf16", "float32"),
            *with_memory_kept(peers, plain.name),
            *peaks("cpu", "bf16", "float32"),
        ),
        far_apart,
    )
