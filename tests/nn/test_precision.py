"""What is computed in bfloat16, and where."""

from pathlib import Path

import pytest
import torch

from unifier import Experiment, run
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.nn.precision import default_device, has_fast_bfloat16
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer


@pytest.mark.parametrize("device", ["cuda", "mps", None])
def test_what_is_there_is_computed_on(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = torch.device(device) if device else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *, check_available: found)
    assert default_device() == (device or "cpu")
    if device == "mps":
        assert not has_fast_bfloat16(default_device())


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what a processor can do")
@pytest.mark.parametrize(("can", "fast"), [({"avx512_bf16": True}, True), ({"avx512_bw": True}, False)])
def test_products_are_in_bfloat16_where_the_processor_can_and_weights_in_float32(
    can: dict[str, bool], fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[torch.dtype]()

    def watched() -> Experiment:
        source, trunk = Digits(val=20, test=20), Transformer(8, 1, 2, 8)
        trunk.register_forward_hook(lambda *call: seen.add(call[2].matrix.dtype))
        task = Task(source, PatchTokenizer(8, channels=1), ClassificationHead(source.labels, 8))
        return Experiment(
            trunk, {"digits": task}, Training(steps=2, precision="bf16", num_validations=1), name="watched"
        )

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    monkeypatch.setattr("unifier.training.fit.peak_flops", lambda device, dtype: 1e9)  # emulated, it takes 10 s to find
    (result,) = run(watched, out=tmp_path, track="off")
    assert (torch.bfloat16 in seen) == fast
    last = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert {part.dtype for part in last.values()} == {torch.float32}
