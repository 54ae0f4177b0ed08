"""Image classifiers of other libraries, which apply a transformer to patches.

The argument `plain` selects eager attention. The argument `fused` selects a fused attention kernel.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.runner.device import Device


@final
@dataclass(frozen=True)
class Shape:
    """The sizes of pictures, model and batches, and the device."""

    height: int
    width: int
    patch: tuple[int, int]
    """Height and width of a patch. Patches do not overlap."""
    class_token: bool
    """If True, the head reads the class token. If False, the head reads the mean of all tokens."""
    dim: int
    depth: int
    heads: int
    ffn_dim: int
    classes: int
    batch: int
    steps: int
    """The number of batches per round."""
    channels: int = 1
    device: Device = "cpu"

    @property
    def patches(self) -> int:
        """The number of patches in a picture."""
        return self.height // self.patch[0] * (self.width // self.patch[1])


@final
class TorchClassifier(nn.Module):
    """A vision transformer that uses `torch.nn.TransformerEncoder`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim = shape.dim
        self.project = nn.Conv2d(shape.channels, dim, shape.patch, shape.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim)) if shape.class_token else None
        self.positions = nn.Parameter(torch.zeros(1, shape.patches + shape.class_token, dim))
        layer = nn.TransformerEncoderLayer(
            dim, shape.heads, shape.ffn_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, shape.classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Compute the logits (B, classes) of pictures (B, channels, height, width)."""
        x = self.project(pictures).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        x = self.encoder(x + self.positions)
        return self.head(x[:, 0] if self.class_token is not None else x.mean(1))


def create_timm_vit(shape: Shape, plain: bool = False) -> nn.Module:
    """Create timm's VisionTransformer."""
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
        fc_norm=False,  # The last norm precedes the pooling, as in our model.
        embed_dim=shape.dim,
        depth=shape.depth,
        num_heads=shape.heads,
        mlp_ratio=shape.ffn_dim / shape.dim,
        norm_layer=partial(LayerNorm, eps=1e-5),
    )
    for module in model.modules():
        if isinstance(module, Attention):
            # timm.layers.set_fused_attn would change all models in this process.
            module.fused_attn = not plain  # pyright: ignore[reportAttributeAccessIssue]
    return model


def create_transformers_vit(shape: Shape, plain: bool = False) -> nn.Module:
    """Create the ViT of transformers, which always classifies the class token."""
    from transformers.models.vit.configuration_vit import ViTConfig
    from transformers.models.vit.modeling_vit import ViTForImageClassification

    settings: dict[str, Any] = {
        "image_size": (shape.height, shape.width),
        "patch_size": shape.patch,
        "num_channels": shape.channels,
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn_dim,
        "layer_norm_eps": 1e-5,
        "num_labels": shape.classes,
        "attn_implementation": "eager" if plain else "sdpa",
    }
    return ViTForImageClassification(ViTConfig(**settings))


def create_x_transformers_vit(shape: Shape, fused: bool = False) -> nn.Module:
    """Create the ViT of x-transformers for square pictures.

    The head reads the mean of all tokens. A register token replaces the class token, so all models process equally many
    tokens.
    """
    from x_transformers import ViTransformerWrapper

    return ViTransformerWrapper(
        image_size=shape.height,
        patch_size=shape.patch[0],
        channels=shape.channels,
        num_classes=shape.classes,
        num_register_tokens=int(shape.class_token),
        attn_layers=_x_transformers_layers(shape, fused),
    )


@final
class XTransformersFrames(nn.Module):
    """The x-transformers model for sequences of vectors. Each column of a picture is one vector."""

    def __init__(self, shape: Shape) -> None:
        from x_transformers import ContinuousTransformerWrapper

        super().__init__()
        self.inner = ContinuousTransformerWrapper(
            max_seq_len=shape.width,
            project_in=nn.Linear(shape.height, shape.dim),
            project_out=nn.Linear(shape.dim, shape.classes),
            average_pool_embed=True,
            attn_layers=_x_transformers_layers(shape),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Compute the logits (B, classes) of pictures (B, 1, height, width)."""
        return self.inner(pictures[:, 0].transpose(1, 2))


def _x_transformers_layers(shape: Shape, fused: bool = False) -> Any:
    from x_transformers import Encoder

    return Encoder(
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        attn_dim_head=shape.dim // shape.heads,
        ff_mult=shape.ffn_dim / shape.dim,
        attn_flash=fused,
    )
