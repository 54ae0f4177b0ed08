"""The feed-forward network of a transformer's layer."""

from typing import Literal, final, get_args

from torch import nn

from unifier.nn.linear import Linear
from unifier_tokenizers import Dropout, InputError
from unifier_tokenizers.errors import check_choice

Activation = Literal["gelu", "relu"]


@final
class FeedForward(nn.Sequential):
    """Two linear layers D -> ffn_dim -> D that map each token independently."""

    def __init__(self, dim: int, ffn_dim: int, activation: Activation, dropout: float) -> None:
        check_choice("activation", activation, get_args(Activation))
        if ffn_dim < 1:
            raise InputError(f"ffn_dim={ffn_dim}: at least 1 is needed")
        nonlinearity = nn.GELU() if activation == "gelu" else nn.ReLU()
        super().__init__(Linear(dim, ffn_dim), nonlinearity, Dropout(dropout), Linear(ffn_dim, dim))
