"""The transformer in plain torch: equal to torch's own layer if complete, and without exactly one part otherwise."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unifier.config import build_described, check_settings, list_experiments
from unifier.experiment import Experiment
from unifier_tokenizers import InputError, PositionalEncoding, Tokens

FILE = Path(__file__).parents[2] / "experiments" / "parts.py"
list_experiments(FILE)  # which puts the file's folder on the path
parts = importlib.import_module("parts")


def build(variant: str, depth: int = 2) -> Any:
    torch.manual_seed(0)
    return parts.build_plain(variant, parts.TrunkConfig(dim=16, depth=depth, ffn_dim=24, heads=8, dropout=0.0))


def random_input() -> Tokens:
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    return Tokens(torch.randn(2, 16, 5), mask, torch.arange(5).expand(2, 1, 5))


def test_complete_layer_equals_torchs_layer() -> None:
    ours, tokens = build("complete", 1), random_input()
    theirs = nn.TransformerEncoderLayer(16, 8, 24, 0.0, "gelu", batch_first=True, norm_first=True)
    layer = ours.layers[0]
    copies = {"self_attn.in_proj_": layer.attention.qkv, "self_attn.out_proj.": layer.attention.out}
    copies |= {"linear1.": layer.feed_forward[0], "linear2.": layer.feed_forward[2]}
    copies |= {"norm1.": layer.norms[0], "norm2.": layer.norms[1]}
    theirs.load_state_dict(
        {f"{name}{kind}": getattr(part, kind) for name, part in copies.items() for kind in ("weight", "bias")}
    )
    expected = ours.norm(theirs(tokens.matrix.mT, src_key_padding_mask=~tokens.mask)).mT
    torch.testing.assert_close(
        (ours(tokens).matrix * tokens.mask[:, None]), expected * tokens.mask[:, None], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("variant", parts.VARIANTS)
def test_each_variant_lacks_its_part_alone(variant: str) -> None:
    complete, ours, tokens = build("complete"), build(variant), random_input()
    names, own = ({name for name, _ in model.named_parameters()} for model in (complete, ours))
    lost = {"no_norm": "norm", "no_feed_forward": "feed_forward"}.get(variant)
    assert names - own == {name for name in names if lost and lost in name}
    assert not own - names
    heads = int(variant[6:]) if variant.startswith("heads") else 8
    assert {layer.attention.heads for layer in ours.layers} == {heads}
    output = ours(tokens).matrix
    assert output.isfinite().all()
    # The part "positions" is in the tokenizer, and equal weights of the other variants give other outputs.
    assert torch.equal(output, complete(tokens).matrix) == (variant in ("complete", "no_positions"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grammar", "digits"])
def test_positions_are_removed_from_the_tokenizer(name: str) -> None:
    recipe = list_experiments(FILE)[name]
    kinds: list[str] = []
    for variant in ("complete", "no_positions"):
        experiment = build_described(recipe, check_settings(recipe, {"variant": variant, "dim": 16}), Experiment)
        ((_, task),) = experiment.tasks.items()
        encoding = task.tokenizer.encoding
        assert isinstance(encoding, PositionalEncoding)
        kinds.append(encoding.kind)
        assert type(experiment.trunk).__name__ == "PlainTransformer"
    assert kinds[0] in ("sinusoid", "learned")
    assert kinds[1] == "none"


def test_heads_that_do_not_divide_dim_are_refused() -> None:
    with pytest.raises(InputError, match="dim=12"):
        parts.build_plain("complete", parts.TrunkConfig(dim=12, heads=8))
