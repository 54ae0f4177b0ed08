"""Peers that classify a picture by a transformer over its patches.

Each takes a `Shape`, and where the peer leaves a choice, whether its attention is written out (`plain`) or `fused`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.racing.device import Device


@final
@dataclass(frozen=True)
class Shape:
    """Pictures cut into patches that do not overlap, the model that reads them, and where."""

    height: int
    width: int
    patch: tuple[int, int]
    class_token: bool
    """A column of its own is read by the head; otherwise the mean of all is."""
    dim: int
    depth: int
    heads: int
    hidden: int
    classes: int
    batch: int
    steps: int
    """Batches a round."""
    channels: int = 1
    device: Device = "cpu"

    @property
    def patches(self) -> int:
        return self.height // self.patch[0] * (self.width // self.patch[1])


@final
class TorchClassifier(nn.Module):
    """What one writes around `torch.nn.TransformerEncoder`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim = shape.dim
        self.project = nn.Conv2d(shape.channels, dim, shape.patch, shape.patch)
        self.first = nn.Parameter(torch.zeros(1, 1, dim)) if shape.class_token else None
        self.places = nn.Parameter(torch.zeros(1, shape.patches + shape.class_token, dim))
        layer = nn.TransformerEncoderLayer(
            dim, shape.heads, shape.hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, shape.classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, channels, height, width) -> (B, C)."""
        x = self.project(pictures).flatten(2).transpose(1, 2)
        if self.first is not None:
            x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1)
        x = self.encoder(x + self.places)
        return self.head(x[:, 0] if self.first is not None else x.mean(1))


def timm_vit(shape: Shape, plain: bool = False) -> nn.Module:
    from timm.layers.attention import Attention
    from timm.layers.norm import LayerNorm
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=(shape.height, shape.width),
        patch_size=shape.patch,
        in_chans=shape.channels,
        num_classes=shape.classes,
        global_pool="token" if shape.class_token else "avg",
        class_token=shape.class_token,
        fc_norm=False,  # the last norm before the pooling, as ours
        embed_dim=shape.dim,
        depth=shape.depth,
        num_heads=shape.heads,
        mlp_ratio=shape.hidden / shape.dim,
        norm_layer=partial(LayerNorm, eps=1e-5),
    )
    for part in model.modules():
        if isinstance(part, Attention):
            # What timm.layers.set_fused_attn does, but for this model alone.
            part.fused_attn = not plain  # pyright: ignore[reportAttributeAccessIssue]
    return model


def transformers_vit(shape: Shape, plain: bool = False) -> nn.Module:
    """Always with a class token, which the head reads."""
    from transformers.models.vit.configuration_vit import ViTConfig
    from transformers.models.vit.modeling_vit import ViTForImageClassification

    settings: dict[str, Any] = {
        "image_size": (shape.height, shape.width),
        "patch_size": shape.patch,
        "num_channels": shape.channels,
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "layer_norm_eps": 1e-5,
        "num_labels": shape.classes,
        "attn_implementation": "eager" if plain else "sdpa",
    }
    return ViTForImageClassification(ViTConfig(**settings))


def _x_layers(shape: Shape, fused: bool = False) -> Any:
    from x_transformers import Encoder

    return Encoder(
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        attn_dim_head=shape.dim // shape.heads,
        ff_mult=shape.hidden / shape.dim,
        attn_flash=fused,
    )


def x_pictures(shape: Shape, fused: bool = False) -> nn.Module:
    """Square pictures; the head reads the mean, and a register stands where the others have their class token."""
    from x_transformers import ViTransformerWrapper

    return ViTransformerWrapper(
        image_size=shape.height,
        patch_size=shape.patch[0],
        channels=shape.channels,
        num_classes=shape.classes,
        num_register_tokens=int(shape.class_token),
        attn_layers=_x_layers(shape, fused),
    )


@final
class XColumns(nn.Module):
    """x-transformers' reader of vectors, on pictures whose columns are the vectors."""

    def __init__(self, shape: Shape) -> None:
        from x_transformers import ContinuousTransformerWrapper

        super().__init__()
        self.inner = ContinuousTransformerWrapper(
            max_seq_len=shape.width,
            project_in=nn.Linear(shape.height, shape.dim),
            project_out=nn.Linear(shape.dim, shape.classes),
            average_pool_embed=True,
            attn_layers=_x_layers(shape),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, 1, height, width) -> (B, C)."""
        return self.inner(pictures[:, 0].transpose(1, 2))
