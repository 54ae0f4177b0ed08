"""A trunk is one word, in a call and in an experiment's settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from unifier import ConvolutionalTrunk, MeanAttentionTrunk, RecurrentTrunk, Transformer, Trunk
from unifier.config import check_settings, load_experiment
from unifier.trunks.factory import TRUNK_NAMES, create_trunk, load_timm_trunk
from unifier_tokenizers import InputError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize(
    ("name", "direct"),
    [
        ("transformer", lambda: Transformer(12, 2, 3, 20, dropout=0.5)),
        ("bag", lambda: MeanAttentionTrunk(12, 2, 20, dropout=0.5)),
        ("recurrent", lambda: RecurrentTrunk(12, 2, dropout=0.5)),
        ("convolutional", lambda: ConvolutionalTrunk(12, 2, dropout=0.5)),
    ],
)
def test_a_name_stands_for_the_class(name: str, direct: Callable[[], Trunk]) -> None:
    torch.manual_seed(0)
    made, wanted = create_trunk(name, 12, 2, 3, 20, 0.5), direct()
    assert str(made) == str(wanted)  # every part with its shape, and the dropout
    for one, other in zip(made.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one, other)


def test_another_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=f"no trunk 'lstm': choose one of {', '.join(TRUNK_NAMES)}"):
        create_trunk("lstm", 12, 2, 3, 20, 0.0)


def test_a_model_of_timm_s_says_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(name: str, *, pretrained: bool) -> Trunk:
        assert pretrained
        return load_timm_trunk(name, pretrained=False)

    monkeypatch.setattr("unifier.trunks.factory.load_timm_trunk", untrained)
    assert create_trunk("timm:test_vit", 64, 2, 3, 20, 0.0).dim == 64
    with pytest.raises(InputError, match="the trunk timm:test_vit reads D = 64, and dim=128: take dim=64"):
        create_trunk("timm:test_vit", 128, 2, 3, 20, 0.0)


def test_rotary_positions_are_the_transformer_s_alone() -> None:
    rotary = create_trunk("transformer", 12, 1, 3, 20, 0.0, positions="rotary")
    assert isinstance(rotary, Transformer)
    assert rotary.rotary
    for name in TRUNK_NAMES[1:]:
        with pytest.raises(InputError, match=f"positions=rotary is for trunk=transformer alone, and this is {name}"):
            create_trunk(name, 12, 1, 3, 20, 0.0, positions="rotary")


def test_stochastic_depth_is_the_transformer_s_alone() -> None:
    made = create_trunk("transformer", 12, 2, 3, 20, 0.0, drop_path=0.5)
    assert str(made) == str(Transformer(12, 2, 3, 20, drop_path=0.5)) != str(Transformer(12, 2, 3, 20))
    for name in TRUNK_NAMES[1:]:
        with pytest.raises(InputError, match=f"stochastic_depth is for trunk=transformer alone, and this is {name}"):
            create_trunk(name, 12, 1, 3, 20, 0.0, drop_path=0.5)


def texts(folder: Path) -> Path:
    table = folder / "texts.tsv"
    table.write_text("".join(f"word {number}\tmot {number}\n" for number in range(9)))
    return table


def sounds(folder: Path) -> Path:
    for number in range(9):
        soundfile.write(folder / f"{number}.wav", np.full(800, number / 10), 8000)
    table = folder / "sounds.csv"
    table.write_text("file,label\n" + "".join(f"{number}.wav,{'ab'[number % 2]}\n" for number in range(9)))
    return table


def drawings(folder: Path) -> Path:
    for number in range(9):
        path = folder / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    return folder / "pictures"


@pytest.mark.parametrize(("name", "data"), [("translation", texts), ("pictures", drawings), ("genres", sounds)])
def test_an_experiment_takes_trunk_and_positions_by_name(
    name: str, data: Callable[[Path], Path], tmp_path: Path
) -> None:
    describe: Any = load_experiment(str(EXPERIMENTS / f"{name}.py"))
    path = str(data(tmp_path))

    def described(**given: str) -> tuple[Any, str]:
        """The trunk, and what the tokenizer adds."""
        one = describe(**check_settings(describe, {"data": path, **given}))
        (task,) = one.tasks.values()
        return one.trunk, task.tokenizer.encoding.kind

    assert isinstance(described(trunk="bag")[0], MeanAttentionTrunk)
    for positions in ("none", "learned", "sinusoid"):
        trunk, kind = described(positions=positions)
        assert (trunk.rotary, kind) == (False, positions)
    trunk, kind = described(positions="rotary")
    assert (trunk.rotary, kind) == (True, "none")
    with pytest.raises(InputError, match="the setting positions='absolute' does not fit"):
        described(positions="absolute")
