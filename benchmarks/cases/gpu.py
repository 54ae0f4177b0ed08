"""Cases for an accelerator: ViT-S/16 and the base transformer.

Every variant computes in bfloat16. Compiled variants use torch's default settings. No variant uses CUDA graphs, because
the memory of a CUDA graph cannot be released while other variants run.
"""

from functools import partial

from benchmarks.cases import vit
from benchmarks.cases.classification import classifier_variant
from benchmarks.cases.translation import MARIAN, TORCH, Plan, build_our_translator, translator_variants
from benchmarks.models import encoders
from benchmarks.models.encoders import Shape
from benchmarks.models.sequences import Size
from benchmarks.runner.case import Case, our_variants
from benchmarks.runner.peak import peak_variants
from benchmarks.runner.tolerance import number_mismatch

VIT_S16 = Shape(
    height=224,
    width=224,
    patch=(16, 16),
    class_token=True,
    dim=384,
    depth=12,
    heads=6,
    ffn_dim=1536,
    classes=1000,
    batch=256,
    steps=8,
    channels=3,
    device="cuda",
)
"""The sizes of DeiT-S (Touvron et al. 2021, table 1)."""
BASE = Size(vocabulary=32_000, dim=512, depth=6, heads=8, ffn_dim=2048)
"""The sizes of the base model of Vaswani et al. 2017, table 3."""
NEWS = Plan(
    pairs=40_000,
    max_tokens=25_000,
    steps=8,
    peer_batch=256,
    mean_length=27,
    length_std=14,
    max_length=100,
    device="cuda",
)
"""Sentence lengths like in WMT news, and the batch size of Vaswani et al. 2017, section 5.1."""

X_TRANSFORMERS_FUSED = vit.X_TRANSFORMERS._replace(
    name=f"{vit.X_TRANSFORMERS.name}, fused attention", create=partial(encoders.create_x_transformers_vit, fused=True)
)


def vit_s16_case(shape: Shape = VIT_S16) -> Case:
    """Create the case that trains ViT-S/16."""
    create = partial(classifier_variant, shape=shape, create_batches=vit.normalized_pictures)
    return Case(
        "vit_s16",
        "train",
        "Training ViT-S/16 on 224 x 224 pictures",
        "pictures",
        (
            *our_variants(partial(vit.build_our_vit, shape), "bf16"),
            *our_variants(partial(vit.build_our_vit, shape, compiled=True), "bf16", compiled=True),
            *(create(peer, "default") for peer in (vit.TIMM, vit.TRANSFORMERS, vit.X_TRANSFORMERS, vit.TORCH)),
            create(X_TRANSFORMERS_FUSED, "tuned"),
            *(
                create(peer.with_compile("loss"), "compiled")
                for peer in (vit.TIMM, vit.TRANSFORMERS, X_TRANSFORMERS_FUSED, vit.TORCH)
            ),
            *peak_variants(shape.device, "bf16"),
        ),
        number_mismatch,
        shape.device,
    )


def translation_base_case(size: Size = BASE, plan: Plan = NEWS) -> Case:
    """Create the case that trains the base transformer of Vaswani et al. 2017."""
    create = partial(translator_variants, size=size, plan=plan)
    tuned = [peer.with_our_batches() for peer in (MARIAN, TORCH)]
    return Case(
        "translation_base",
        "train",
        "Training the base transformer as a translator",
        "tokens",
        (
            *our_variants(partial(build_our_translator, size, plan), "bf16"),
            *our_variants(partial(build_our_translator, size, plan, compiled=True), "bf16", compiled=True),
            *create("default", [MARIAN, TORCH]),
            *create("tuned", tuned),
            *create("compiled", [peer.with_compile("loss") for peer in tuned]),
            *peak_variants(plan.device, "bf16"),
        ),
        number_mismatch,
        plan.device,
    )
