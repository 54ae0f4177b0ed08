"""The case that trains an encoder-decoder on pairs of texts."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases.peers import peer_training
from benchmarks.models import sequence_weights, sequences
from benchmarks.models.sequences import LABEL_SMOOTHING, SIZE, Size
from benchmarks.models.weights import State, copy_weights, load_state
from benchmarks.runner.case import SEED, Case, Compiled, Role, Variant, Workload, our_variants, with_our_allocator
from benchmarks.runner.device import Device
from benchmarks.runner.peak import peak_variants
from benchmarks.runner.tolerance import number_mismatch
from unifier.data.dataloader import Batch, TrainDataLoader, collate
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Precision
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import Units, Vocabulary
from unifier_tokenizers.subwords import EOS, SPECIALS

COMPARED_PAIRS = 8
"""The number of pairs whose logits are compared between our model and a peer."""


@final
class Plan(NamedTuple):
    """The number, lengths and batch sizes of the text pairs. The default lengths are typical for captions."""

    pairs: int = 8000
    max_tokens: int = 2048
    """The maximum number of source tokens, and of target tokens, in one of our batches."""
    steps: int = 8
    """The number of our batches per round. With the default settings, a round contains about 1,000 pairs."""
    peer_batch: int = 128
    """The number of pairs per batch for a peer with default settings."""
    mean_length: float = 14
    """The mean source length in tokens, without the end token."""
    length_std: float = 4.5
    """The standard deviation of the source length, in tokens."""
    max_length: int = 40
    """The maximum length of a source or a target in tokens, without the end token."""
    device: Device = "cpu"


CAPTIONS = Plan()


@final
class TranslatorPeer(NamedTuple):
    """The translator of another library, with its settings."""

    name: str
    library: str
    create: Callable[[Size], nn.Module]
    logits: Callable[[nn.Module, Batch], Tensor]
    convert: Callable[[State], State]
    """Function that converts our weights to the peer's names."""
    our_batches: bool = False
    """If True, use our length-bucketed batches. If False, use random batches of `Plan.peer_batch` pairs."""
    compiled: Compiled | None = None

    def with_our_batches(self) -> "TranslatorPeer":
        """Return a copy of the peer with our length-bucketed batches."""
        return self._replace(name=f"{self.name}, our batches", our_batches=True)

    def with_compile(self, part: Compiled = "model") -> "TranslatorPeer":
        """Return a copy of the peer with compilation."""
        return self._replace(name=f"{self.name}, compiled", compiled=part)


MARIAN = TranslatorPeer(
    "transformers' Marian",
    "transformers.models.marian.modeling_marian",
    sequences.create_marian,
    sequences.marian_logits,
    sequence_weights.convert_for_marian,
)
MARIAN_PLAIN = MARIAN._replace(
    name=f"{MARIAN.name}, plain attention", create=partial(sequences.create_marian, plain=True)
)
TORCH = TranslatorPeer(
    "torch.nn",
    "torch",
    sequences.TorchTranslator,
    sequences.torch_logits,
    sequence_weights.convert_for_torch_translator,
)


def translation_case(size: Size = SIZE, plan: Plan = CAPTIONS) -> Case:
    """Create the case that trains a small translator."""
    create = partial(translator_variants, size=size, plan=plan)
    marian_plain, torch_bucketed = MARIAN_PLAIN.with_our_batches(), TORCH.with_our_batches()
    tuned = [
        MARIAN.with_our_batches(),
        marian_plain,
        marian_plain.with_compile(),
        torch_bucketed,
        torch_bucketed.with_compile(),
    ]
    peers = (
        *create("default", [MARIAN, TORCH]),
        *create("tuned", tuned),
        *create("float32", [MARIAN, TORCH], "float32"),
    )
    return Case(
        "translation",
        "train",
        "Training a translator of 2.6 million parameters",
        "tokens",
        (
            *our_variants(partial(build_our_translator, size, plan), "bf16", "float32"),
            *with_our_allocator(peers, marian_plain.name),
            *peak_variants("cpu", "bf16", "float32"),
        ),
        number_mismatch,
    )


def random_pairs(size: Size, plan: Plan) -> EncodedSplit:
    """Create pairs of random token ids with the length distribution of `plan`. Each text ends with the end token."""
    rng = Random(SEED)

    def text(length: float) -> Tensor:
        length = min(max(round(length), 4), plan.max_length)
        return torch.tensor([*(rng.randrange(len(SPECIALS), size.vocabulary) for _ in range(length)), EOS])

    sources = [text(rng.gauss(plan.mean_length, plan.length_std)) for _ in range(plan.pairs)]
    targets = [text((len(source) - 1) * rng.gauss(1.05, 0.15)) for source in sources]
    units = [Units(ids, torch.arange(len(ids))[None]) for ids in sources]
    return EncodedSplit(units, targets, range(plan.pairs))


def bucketed_batches(split: EncodedSplit, plan: Plan) -> list[Batch]:
    """Create the first `plan.steps` length-bucketed batches of our training."""
    batches = TrainDataLoader({"task": split}, max_tokens=plan.max_tokens, seed=SEED, budget={"steps": plan.steps})
    return [batch for _, batch in batches]


def random_batches(split: EncodedSplit, plan: Plan) -> list[Batch]:
    """Shuffle the pairs of `bucketed_batches` and divide them into batches of `plan.peer_batch` pairs."""
    indices = torch.cat([batch.example_indices for batch in bucketed_batches(split, plan)]).tolist()
    Random(SEED).shuffle(indices)
    return [collate(split, indices[i : i + plan.peer_batch]) for i in range(0, len(indices), plan.peer_batch)]


def count_tokens(batches: Sequence[Batch]) -> int:
    """Count the source and target tokens without padding."""
    return sum(int(batch.mask.sum() + (batch.target != IGNORE_INDEX).sum()) for batch in batches)


def build_our_translator(
    size: Size, plan: Plan, precision: Precision, weights: Path, *, compiled: bool = False
) -> Workload:
    """Build the training of our translator and save its initial weights."""
    from benchmarks.cases.ours import our_training, perturb_vectors, save_weights, target_logits

    torch.manual_seed(SEED)
    small = Vocabulary.fit(["a"], size=260)
    model = sequences.create_our_translator(sequences.pad_vocabulary(small, size.vocabulary), size)
    perturb_vectors(model)
    save_weights(model, weights)
    split = random_pairs(size, plan)
    compared, batches = collate(split, range(COMPARED_PAIRS)), bucketed_batches(split, plan)
    outputs = target_logits(model, compared)[compared.target != IGNORE_INDEX]
    units = count_tokens(batches)
    return our_training(model, split, batches, plan.device, precision, compiled=compiled, units=units, outputs=outputs)


def translator_variants(
    role: Role, peers: Sequence[TranslatorPeer], precision: Precision = "bf16", *, size: Size, plan: Plan
) -> tuple[Variant, ...]:
    """Create one variant per peer, with the role `role` and the precision `precision`."""
    return tuple(
        Variant(
            peer.name,
            role,
            precision,
            peer.library,
            partial(_build_translator, peer, size, plan),
            peer.compiled is not None,
        )
        for peer in peers
    )


def _build_translator(peer: TranslatorPeer, size: Size, plan: Plan, precision: Precision, weights: Path) -> Workload:
    """Build the training of a peer, with a copy of our weights."""
    model = peer.create(size)
    copy_weights(model, peer.convert(load_state(weights)))
    split = random_pairs(size, plan)
    create_batches = bucketed_batches if peer.our_batches else random_batches
    compared, batches = collate(split, range(COMPARED_PAIRS)), create_batches(split, plan)
    with torch.no_grad():
        outputs = peer.logits(model.eval(), compared)[compared.target != IGNORE_INDEX]

    def loss(forward: nn.Module, batch: Batch) -> Tensor:
        logits = peer.logits(forward, batch).flatten(0, 1).float()
        return functional.cross_entropy(logits, batch.target.flatten(), label_smoothing=LABEL_SMOOTHING)

    units = count_tokens(batches)
    return peer_training(
        model, loss, batches, plan.device, precision, compiled=peer.compiled, units=units, outputs=outputs
    )
