"""Torch's private names: the library calls them only through `find_private_op`, and computes the same without them."""

import ast
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unifier
import unifier.nn
import unifier_tokenizers

Numbers = dict[str, Any]

MODULES = ("precision", "linear", "attention")
OPS = {
    "precision": ("_softmax_backward_out",),
    "linear": ("_linear_pointwise", "_reorder_weight", "_is_bf16_supported"),
}


def load(monkeypatch: pytest.MonkeyPatch, ops: Any) -> dict[str, Any]:
    """Import fresh copies of the modules under other `torch.ops`; monkeypatch restores the originals."""
    monkeypatch.setattr(torch, "ops", ops)
    for name in MODULES:
        importlib.import_module(f"unifier.nn.{name}")
        monkeypatch.setattr(unifier.nn, name, getattr(unifier.nn, name))
        monkeypatch.delitem(sys.modules, f"unifier.nn.{name}")
    return {name: importlib.import_module(f"unifier.nn.{name}") for name in MODULES}


def compute(modules: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> Numbers:
    """Return the outputs and gradients of the linear layer, softmax and attention, all on their private paths."""
    linear, precision, attention = modules["linear"], modules["precision"], modules["attention"]
    monkeypatch.setattr(linear, "mkl_skips_avx512", lambda: True)
    monkeypatch.setattr(linear, "MIN_PRODUCT", dict.fromkeys(linear.MIN_PRODUCT, 1))
    monkeypatch.setattr(attention, "FUSED_MIN_KEYS", {dtype: 1000})
    torch.manual_seed(0)
    x, memory = torch.randn(3, 40, 8).to(dtype).requires_grad_(), torch.randn(3, 40, 8).to(dtype).requires_grad_()
    layer = attention.Attention(8, 2).to(dtype)
    attended = layer(x, memory, mask=torch.rand(3, 1, 40, 40) > 0.3)
    single = linear.Linear(8, 24).to(dtype)
    mapped = single(attended)
    mapped.square().sum().backward()
    results = {"attention": attended, "linear": mapped, "x": x.grad, "memory": memory.grad}
    results |= {name: parameter.grad for name, parameter in layer.named_parameters()}
    results |= {"weight": single.weight.grad, "matmul": linear.matmul(x[0], memory[0].T.contiguous())}
    with torch.no_grad():
        results["prepacked"] = linear.prepacked_linear(single.weight)(x[0])
    weights = precision.softmax_(torch.randn(6, 40).to(dtype))
    gradient = precision.softmax_backward_(torch.randn(6, 40).to(dtype), weights)
    return results | {"softmax": weights, "softmax gradient": gradient}


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_missing_private_ops_change_no_number(dtype: torch.dtype, near: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        modules = load(patch, torch.ops)
        available = {"precision": True, "linear": torch.backends.mkldnn.is_available()}
        for name, ops in OPS.items():
            assert {getattr(modules[name], op) is not None for op in ops} == {available[name]}
        expected = compute(modules, dtype, patch)
    with monkeypatch.context() as patch:
        modules = load(patch, SimpleNamespace())
        assert all(getattr(modules[name], op) is None for name, ops in OPS.items() for op in ops)
        assert not modules["linear"].has_onednn(dtype)
        results = compute(modules, dtype, patch)
    assert results.keys() == expected.keys()
    for name, result in results.items():
        assert (result - expected[name]).norm() <= near * expected[name].norm(), name


def private_names(path: Path) -> list[str]:
    """Return the attributes and imports of torch with a leading underscore, and all direct uses of `torch.ops`."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            name = ".".join([node.module or "", *(alias.name for alias in node.names)])
        else:
            continue
        private = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
        if re.fullmatch(r"torch\.[\w.]+", name) and (private or name.startswith("torch.ops.")):
            names.append(f"{path.name}: {name}")
    return names


@pytest.mark.slow
def test_library_uses_no_unchecked_private_name() -> None:
    roots = [Path(package.__file__ or "").parent for package in (unifier, unifier_tokenizers)]
    names = [name for root in roots for path in sorted(root.rglob("*.py")) for name in private_names(path)]
    # A missing class fails at import, so its use is no risk in the middle of a run. `torch._check` is documented.
    # Only the export of a graph uses `scan`: it reports a missing operator, and compares the graph with the model.
    norm = "torch.nn.modules.batchnorm._BatchNorm"
    allowed = {f"batch_norm.py: {norm}", f"experiment.py: {norm}", "patches.py: torch._check"}
    assert set(names) <= allowed | {"recurrence.py: torch._higher_order_ops.scan.scan"}, (
        "call torch's private operators through find_private_op, which checks them at import"
    )
