"""Checkpoint files that are missing, broken or incomplete are named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unifier.training.checkpoint import load_resume_checkpoint, load_weights, read_checkpoint
from unifier_tokenizers import InputError


def save(path: Path, **content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {}, "global_step": 3, "callbacks": {}, **content}, path)
    return path


def test_checkpoint_is_read(tmp_path: Path) -> None:
    assert read_checkpoint(save(tmp_path / "last.ckpt"))["global_step"] == 3


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.ckpt"):
        read_checkpoint(tmp_path / "none.ckpt")


@pytest.mark.parametrize("kept", [0, 0.3, 0.9])
def test_torn_checkpoint_is_named(kept: float, tmp_path: Path) -> None:
    path = save(tmp_path / "last.ckpt")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(InputError, match=r"last\.ckpt"):
        read_checkpoint(path)


def test_checkpoint_without_its_keys_is_named(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "best.ckpt")
    with pytest.raises(InputError, match=r"best\.ckpt.*global_step, callbacks"):
        read_checkpoint(tmp_path / "best.ckpt")


def test_resume_needs_the_best_weights_if_any(tmp_path: Path) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"
    save(last)
    assert load_resume_checkpoint(tmp_path)["global_step"] == 3
    save(last, callbacks={"best": {"best_model_path": "/elsewhere/best.ckpt"}})
    with pytest.raises(InputError, match=r"best\.ckpt"):
        load_resume_checkpoint(tmp_path)
    save(tmp_path / "checkpoints" / "best.ckpt")
    assert load_resume_checkpoint(tmp_path)["global_step"] == 3


def test_weights_of_another_network_are_refused() -> None:
    network, other = nn.Linear(2, 3), nn.Linear(2, 3)
    load_weights(network, other.state_dict(), Path("best.ckpt"), "digits")
    assert torch.equal(network.weight, other.weight)
    with pytest.raises(InputError, match=r"best\.ckpt.*digits"):
        load_weights(network, nn.Linear(2, 4).state_dict(), Path("best.ckpt"), "digits")
