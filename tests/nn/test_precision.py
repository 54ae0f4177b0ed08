"""Fast softmax near float64, private operators that are checked, and the device and type of a run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from unifier import Experiment, run
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.nn.precision import (
    SHORT_ROW,
    default_device,
    find_private_op,
    has_fast_bfloat16,
    softmax_,
    softmax_backward_,
    softmax_by_parts_,
)
from unifier.training import fit as fit_module
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

LENGTHS = [1, 7, 15, 16, 31, 32, 50]
"""Row lengths around the width of vector registers."""


@pytest.mark.parametrize("device", ["cuda", "mps", None])
def test_default_device_is_accelerator_or_cpu(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = torch.device(device) if device else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *, check_available: accelerator)
    assert default_device() == (device or "cpu")
    if device == "mps":
        assert not has_fast_bfloat16(default_device())


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "fast"), [("avx512_bf16", True), ("avx512_bw", False)])
def test_run_uses_bfloat16_only_where_fast(
    capability: str, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = set[torch.dtype]()

    def watched() -> Experiment:
        source, trunk = Digits(val=20, test=20), Transformer(8, 1, 2, 8)
        trunk.register_forward_hook(lambda *call: dtypes.add(call[2].matrix.dtype))
        task = Task(source, PatchTokenizer(8, channels=1), ClassificationHead(source.labels, 8))
        training = Training(steps=2, precision="bf16", num_validations=1)
        return Experiment(trunk, {"digits": task}, training, name="watched")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True})
    monkeypatch.setattr(fit_module, "peak_flops", lambda device, dtype: 1e9)  # Emulated bfloat16 takes 10 s to measure.
    (result,) = run(watched, out=tmp_path, track="off")
    assert (torch.bfloat16 in dtypes) == fast
    state = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert {part.dtype for part in state.values()} == {torch.float32}


def double(operator: Any) -> torch.Tensor:
    return operator(torch.ones(2), 2)


@pytest.mark.parametrize(
    ("path", "expected", "available"),
    [
        ("aten.mul", [2.0, 2.0], True),
        ("aten.mul", [3.0, 3.0], False),
        ("aten.relu", [2.0, 2.0], False),
        ("aten._missing", [2.0, 2.0], False),
        ("missing._missing.out", [2.0, 2.0], False),
    ],
)
def test_find_private_op_refuses_changed_ones(path: str, expected: list[float], available: bool) -> None:
    assert (find_private_op(path, double, torch.tensor(expected)) is not None) == available


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keys", LENGTHS)
def test_softmax_near_float64(keys: int, dtype: torch.dtype) -> None:
    scores = (5 * torch.randn(4, 3, 6, keys)).to(dtype)
    mask = torch.zeros(4, 1, 1, keys, dtype=dtype)
    mask[1, ..., 1:] = -torch.inf
    exact = (scores.double() + mask).softmax(-1)
    weights = softmax_(scores, mask)
    assert weights.data_ptr() == scores.data_ptr()
    torch.testing.assert_close(weights, exact.to(dtype))
    assert (weights[1, ..., 0] == 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keys", LENGTHS)
def test_softmax_backward_near_float64(keys: int, dtype: torch.dtype) -> None:
    weights, grad = torch.randn(4, 6, keys).softmax(-1).to(dtype), torch.randn(4, 6, keys).to(dtype)
    w, g = weights.double(), grad.double()
    exact = w * (g - (w * g).sum(-1, keepdim=True))
    result = softmax_backward_(grad, weights)
    assert result.data_ptr() == grad.data_ptr()
    # A small difference of large parts keeps only their absolute precision.
    torch.testing.assert_close(result, exact.to(dtype), rtol=0.016, atol=1e-3 if dtype == torch.bfloat16 else 1e-6)


def test_softmax_short_rows_avoid_torchs_kernel() -> None:
    for keys in (SHORT_ROW[torch.bfloat16] - 1, SHORT_ROW[torch.bfloat16]):
        weights = torch.randn(6, keys).bfloat16()
        with torch.profiler.profile(acc_events=True) as profile:
            softmax_backward_(torch.randn_like(weights), softmax_(weights))
        kernels = {event.name for event in profile.events() or [] if "_softmax" in event.name}
        assert bool(kernels) == (keys >= SHORT_ROW[torch.bfloat16])
    # Large scores do not overflow.
    scores = torch.tensor([[30000.0, 29000.0, -30000.0]]).bfloat16()
    assert softmax_by_parts_(scores).tolist() == [[1, 0, 0]]
