"""Checkpoint files that are missing, broken or incomplete are named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unifier.training.checkpoint import load_resume_checkpoint, load_weights, read_checkpoint, write_checkpoint
from unifier_tokenizers import InputError


def save(path: Path, **content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {}, "global_step": 3, "callbacks": {}, **content}, path)
    return path


def test_checkpoint_is_read_or_named(tmp_path: Path) -> None:
    path = save(tmp_path / "last.ckpt")
    assert read_checkpoint(path)["global_step"] == 3
    content = path.read_bytes()
    for kept in (0, 0.3, 0.9):
        path.write_bytes(content[: int(kept * len(content))])
        with pytest.raises(InputError, match=r"last\.ckpt"):
            read_checkpoint(path)
    with pytest.raises(InputError, match=r"none\.ckpt"):
        read_checkpoint(tmp_path / "none.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "best.ckpt")
    with pytest.raises(InputError, match=r"best\.ckpt.*global_step, callbacks"):
        read_checkpoint(tmp_path / "best.ckpt")


@pytest.mark.slow
def test_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    write_checkpoint(path, {"state_dict": {"a": torch.ones(9)}, "global_step": 3, "callbacks": {}})
    assert read_checkpoint(path)["state_dict"]["a"].sum() == 9
    content = path.read_bytes()
    for place in range(0, len(content), 17):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(InputError, match=r"last\.ckpt"):
            read_checkpoint(path)


def test_failed_write_releases_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[memoryview] = []

    def fail(_: Path, content: memoryview) -> None:
        views.append(content)
        raise OSError("full")

    monkeypatch.setattr("unifier.training.checkpoint.write_bytes", fail)
    with pytest.raises(OSError, match="full"):
        write_checkpoint(tmp_path / "last.ckpt", {})
    with pytest.raises(ValueError, match="released"):  # else Python 3.12 crashes later
        views[0].tobytes()


def test_file_of_torch_is_checked_too(tmp_path: Path) -> None:
    path = save(tmp_path / "last.ckpt", state_dict={"a": torch.full((9,), 3.25)})
    content, number = path.read_bytes(), torch.tensor(3.25).numpy().tobytes()
    path.write_bytes(content.replace(number, number[::-1], 1))
    with pytest.raises(InputError, match=r"last\.ckpt"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "part",
    [
        *({"state_dict": part} for part in (5, [1], {1: torch.ones(1)}, None)),
        *({"global_step": step} for step in (-1, "3", 1.5, True, None)),
        *({"callbacks": part} for part in (5, [], {"best": 3}, {"best": [1]})),
        *({"optimizer_states": part} for part in (5, {}, [1])),
        *({"loops": 5}, {"lr_schedulers": [3]}, {"losses": {"a": [0.5]}}, {"random_states": [1]}, {"costs": []}),
    ],
    ids=str,
)
def test_part_of_another_type_is_named(part: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"last\.ckpt.*{next(iter(part))}"):
        read_checkpoint(save(tmp_path / "last.ckpt", **part))


@pytest.mark.parametrize("content", [5, [1, 2], "text", torch.ones(3), None], ids=str)
def test_checkpoint_that_is_no_mapping_is_named(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(InputError, match=r"last\.ckpt"):
        read_checkpoint(tmp_path / "last.ckpt")


def test_folder_in_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_checkpoint(tmp_path)


def test_resume_needs_the_best_weights_if_any(tmp_path: Path) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"
    save(last)
    assert load_resume_checkpoint(tmp_path)["global_step"] == 3
    save(last, callbacks={"best": {"best_model_path": "/elsewhere/best.ckpt"}})
    with pytest.raises(InputError, match=r"best\.ckpt"):
        load_resume_checkpoint(tmp_path)
    save(tmp_path / "checkpoints" / "best.ckpt")
    assert load_resume_checkpoint(tmp_path)["global_step"] == 3


@pytest.mark.parametrize(
    "weight",
    [
        *(torch.tensor([[1, torch.nan]] * 3), torch.full((3, 2), torch.inf), torch.ones(3, 2).to_sparse(), 5, [1]),
        *(torch.ones(3, 2, dtype=torch.int8), torch.ones(3, 2, dtype=torch.complex64), torch.ones(3, 2, device="meta")),
    ],
    ids=str,
)
def test_weights_that_are_no_finite_numbers_are_named(weight: Any) -> None:
    network = nn.Linear(2, 3)
    with pytest.raises(InputError, match=r"best\.ckpt.*weight"):
        load_weights(network, {**network.state_dict(), "weight": weight}, Path("best.ckpt"), "digits")
    assert network.weight.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_weights_of_another_precision_are_loaded(dtype: torch.dtype) -> None:
    network = nn.Linear(2, 3)
    load_weights(network, nn.Linear(2, 3).to(dtype).state_dict(), Path("best.ckpt"), "digits")
    assert network.weight.dtype == torch.float32


def test_weights_of_another_network_are_refused() -> None:
    network, other = nn.Linear(2, 3), nn.Linear(2, 3)
    load_weights(network, other.state_dict(), Path("best.ckpt"), "digits")
    assert torch.equal(network.weight, other.weight)
    with pytest.raises(InputError, match=r"best\.ckpt.*digits"):
        load_weights(network, nn.Linear(2, 4).state_dict(), Path("best.ckpt"), "digits")
