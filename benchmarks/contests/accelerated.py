"""The contests for an accelerator: models as large as one is taken for.

Everyone computes in bfloat16, as they come and compiled by torch's defaults. No contestant replays CUDA graphs, whose
memory is nobody else's while the others have their turn.
"""

from functools import partial

from benchmarks.contests import classifying, translation, vit
from benchmarks.contests.translation import MARIAN, TORCH, Plan
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

X_FUSED = vit.X._replace(name=f"{vit.X.name}, fused attention", build=partial(encoders.x_pictures, fused=True))


def vit_s16(shape: Shape = VIT_S16) -> Contest:
    """Training ViT-S/16."""
    enter = partial(classifying.contestant, shape=shape, batches=vit.batches)
    return Contest(
        "vit_s16",
        "train",
        "Training ViT-S/16 on 224 x 224 pictures",
        "pictures",
        (
            *ours(partial(vit.unifier, shape), "bf16"),
            *ours(partial(vit.unifier, shape, compiled=True), "bf16", compiled=True),
            *(enter(peer, "as it comes") for peer in (vit.TIMM, vit.TRANSFORMERS, vit.X, vit.TORCH)),
            enter(X_FUSED, "best"),
            *(
                enter(classifying.compiled(peer, "loss"), "compiled")
                for peer in (vit.TIMM, vit.TRANSFORMERS, X_FUSED, vit.TORCH)
            ),
            *peaks(shape.device, "bf16"),
        ),
        far_apart,
        shape.device,
    )


def translation_base(size: Size = BASE, plan: Plan = NEWS) -> Contest:
    """Training the base transformer of Vaswani et al. 2017."""
    enter = partial(translation.contestants, size=size, plan=plan)
    batched = [translation.on_our_batches(peer) for peer in (MARIAN, TORCH)]
    return Contest(
        "translation_base",
        "train",
        "Training the base transformer as a translator",
        "tokens",
        (
            *ours(partial(translation.unifier, size, plan), "bf16"),
            *ours(partial(translation.unifier, size, plan, compiled=True), "bf16", compiled=True),
            *enter("as it comes", [MARIAN, TORCH]),
            *enter("best", batched),
            *enter("compiled", [translation.compiled(peer, "loss") for peer in batched]),
            *peaks(plan.device, "bf16"),
        ),
        far_apart,
        plan.device,
    )
