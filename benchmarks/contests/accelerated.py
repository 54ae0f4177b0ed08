"""The contests for an accelerator: models as large as one is taken for.

Everyone computes in bfloat16, as they come and compiled by torch's defaults. No contestant replays CUDA graphs, whose
memory is nobody else's while the others have their turn.
"""

from functools import partial

from benchmarks.contests import classifying, translation, vit
from benchmarks.contests.classifying import Peer
from benchmarks.contests.translation import MARIAN, TORCH, Entry, Plan, our_batches, their_batches
from benchmarks.models import encoders
from benchmarks.models.encoders import Shape
from benchmarks.models.sequences import Size
from benchmarks.racing.agreement import far_apart
from benchmarks.racing.contest import Contest, ours
from benchmarks.racing.peak import peaks

VIT_S16 = Shape(
    height=224,
    width=224,
    patch=(16, 16),
    class_token=True,
    dim=384,
    depth=12,
    heads=6,
    hidden=1536,
    classes=1000,
    batch=256,
    steps=8,
    channels=3,
    device="cuda",
)
"""Touvron et al. 2021, table 1: DeiT-S."""
BASE = Size(vocabulary=32_000, dim=512, depth=6, heads=8, hidden=2048)
"""Vaswani et al. 2017, table 3."""
NEWS = Plan(pairs=40_000, tokens=25_000, steps=8, peers=256, length=27, spread=14, longest=100, device="cuda")
"""Sentences about as long as those of the news that translators are compared on; a batch is as large as in Vaswani et
al. 2017, section 5.1."""

TIMM, TRANSFORMERS, X, TORCH_NN = vit.PEERS
X_FUSED = X._replace(name=f"{X.name}, fused attention", build=partial(encoders.x_pictures, fused=True))


def vit_s16(shape: Shape = VIT_S16) -> Contest:
    """Training ViT-S/16."""
    enter = partial(classifying.contestant, shape=shape, batches=vit.batches)
    plain: list[Peer] = [TIMM, TRANSFORMERS, X, TORCH_NN]
    compiled: list[Peer] = [TIMM, TRANSFORMERS, X_FUSED, TORCH_NN]
    return Contest(
        "vit_s16",
        "train",
        "Training ViT-S/16 on 224 x 224 pictures",
        "pictures",
        (
            *ours(partial(vit.unifier, shape), "bf16"),
            *ours(partial(vit.unifier, shape, compiled=True), "bf16", compiled=True),
            *(enter(peer, "", role="as it comes") for peer in plain),
            enter(X_FUSED, "", role="best"),
            *(enter(peer, ", compiled", role="compiled", compiled="loss") for peer in compiled),
            *peaks(shape.device, "bf16"),
        ),
        far_apart,
        shape.device,
    )


def translation_base(size: Size = BASE, plan: Plan = NEWS) -> Contest:
    """Training the base transformer of Vaswani et al. 2017."""
    entries: list[Entry] = [
        (MARIAN, "", "as it comes", "bf16", their_batches, None),
        (TORCH, "", "as it comes", "bf16", their_batches, None),
        (MARIAN, ", our batches", "best", "bf16", our_batches, None),
        (TORCH, ", our batches", "best", "bf16", our_batches, None),
        (MARIAN, ", our batches, compiled", "compiled", "bf16", our_batches, "loss"),
        (TORCH, ", our batches, compiled", "compiled", "bf16", our_batches, "loss"),
    ]
    return Contest(
        "translation_base",
        "train",
        "Training the base transformer as a translator",
        "tokens",
        (
            *ours(partial(translation.unifier, size, plan), "bf16"),
            *ours(partial(translation.unifier, size, plan, compiled=True), "bf16", compiled=True),
            *translation.contestants(size, plan, entries),
            *peaks(plan.device, "bf16"),
        ),
        far_apart,
        plan.device,
    )
