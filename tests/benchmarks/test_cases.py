"""Peers compute the same function as ours, each case has the variants that it needs, and devices fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import scaling
from benchmarks.cases import gpu, grammar, registry, translation
from benchmarks.cases.decoding import decoding_case
from benchmarks.cases.registry import CASES
from benchmarks.cases.spectrogram import spectrogram_case
from benchmarks.cases.translation import translation_case
from benchmarks.cases.vit import build_our_vit, normalized_pictures, vit_case
from benchmarks.models.encoder_weights import convert_for_torch
from benchmarks.models.encoders import Shape, TorchClassifier
from benchmarks.models.sequences import Size
from benchmarks.models.weights import State, copy_weights, load_state
from benchmarks.runner import worker
from benchmarks.runner.case import OURS, Case
from benchmarks.runner.processes import check_outputs
from benchmarks.runner.tolerance import number_mismatch, text_mismatch
from unifier.experiment import Precision

PICTURES = Shape(8, 8, (4, 4), True, dim=16, depth=2, heads=2, ffn_dim=32, classes=3, batch=2, steps=2)
CLIPS = replace(PICTURES, width=12, patch=(8, 1), class_token=False)
SIZE = Size(vocabulary=300, dim=16, depth=2, heads=2, ffn_dim=32)
PAIRS = translation.Plan(pairs=40, max_tokens=64, steps=2, peer_batch=4)
ON_CPU = [vit_case(PICTURES), spectrogram_case(CLIPS), translation_case(SIZE, PAIRS)]
ON_GPU = [gpu.vit_s16_case(replace(PICTURES, channels=3)), gpu.translation_base_case(SIZE, PAIRS)]


def check_variants(case: Case, folder: Path) -> None:
    """Build each variant, compare its outputs with ours and run a round."""
    units: set[float] = set()
    for variant in case.variants:
        if variant.role == "peak":
            continue
        workload = variant.build(variant.precision, folder / "weights.pt")
        units.add(workload.units)
        if workload.outputs is not None:
            torch.save(workload.outputs, worker.outputs_path(folder, variant))
        check_outputs(case, variant, folder)
        workload.round()
        assert (workload.flops is not None) == (variant.role in OURS and case.kind == "train")
    assert len(units) == 1, "all variants do the same amount of work"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Peers emit warnings of their own.
@pytest.mark.parametrize("case", ON_CPU + ON_GPU, ids=lambda case: case.name)
def test_training_peers_agree_with_ours(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    # Real compilation takes a minute for each variant.
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    check_variants(case, tmp_path)
    assert len(compiled) == sum(variant.compiled for variant in case.variants)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("beam_width", "sentences"), [(1, 6), (3, 1)])  # Beams at their limit depend on the batch.
def test_decoding_peers_agree_with_ours(beam_width: int, sentences: int, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    plan = grammar.GrammarPlan(sentences=sentences, batch=2, pairs=60, steps=2, max_tokens=200, cache=cache)
    size = replace(SIZE, vocabulary=400)
    vocabulary = grammar.fit_vocabulary(size, plan)
    assert len(vocabulary) == 400
    grammar.train_translator(size, plan, vocabulary, grammar.weights_path(size, plan, vocabulary))
    check_variants(decoding_case("decoding", "", beam_width, size, plan), tmp_path)


def test_mismatch_of_weights_and_names_is_found(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    ours = build_our_vit(PICTURES, "float32", weights).outputs
    assert ours is not None
    state = load_state(weights)
    pictures = normalized_pictures(PICTURES)[0].pictures
    peer = TorchClassifier(PICTURES).eval()

    def outputs(changed: State) -> torch.Tensor:
        copy_weights(peer, convert_for_torch(state | changed, PICTURES))
        return peer(pictures).detach()

    assert number_mismatch(ours, outputs({})) is None
    for name in ("tokenizers.task.class_token", "trunk.blocks.0.feed_forward_norm.bias", "trunk.norm.weight"):
        assert number_mismatch(ours, outputs({name: state[name].roll(1)})), name
    assert number_mismatch(ours, ours * torch.nan)
    assert number_mismatch(ours, ours[:1])
    model = torch.nn.Linear(2, 1)
    with pytest.raises(AssertionError, match="bias"):
        copy_weights(model, {"weight": torch.ones(1, 2)})
    with pytest.raises(AssertionError, match="gain"):
        copy_weights(model, {"weight": torch.ones(1, 2), "bias": torch.ones(1), "gain": torch.ones(1)})


def test_text_mismatch_allows_one_percent() -> None:
    ours = torch.arange(600).view(200, 3)
    assert text_mismatch(ours, torch.cat([ours[:2] + 1, ours[2:]])) is None
    mismatch = text_mismatch(ours, torch.cat([ours[:3] + 1, ours[3:]]))
    assert mismatch is not None
    assert "98.5%" in mismatch


def test_case_labels_are_unique_and_ours_is_first() -> None:
    for name, case in CASES.items():
        labels = [variant.label for variant in case.variants]
        assert len(set(labels)) == len(labels), name
        assert case.variants[0].role == "ours", name


def test_gpu_cases_compare_bf16_and_compiled() -> None:
    names = ["vit_s16", "translation_base"]
    assert [name for name, case in CASES.items() if case.device == "cuda"] == names
    for name in names:
        variants = CASES[name].variants
        assert {variant.precision for variant in variants} == {"bf16"}
        ours = [(variant.name, variant.compiled) for variant in variants if variant.role in OURS]
        assert ours == [("unifier", False), ("unifier, compiled", True)]
        peers = [variant for variant in variants if variant.role not in OURS]
        assert all(variant.compiled == (variant.role == "compiled") for variant in peers)
        assert [variant.name for variant in variants if variant.role == "peak"] == ["matrix product"]
    compiled = [variant.name for variant in CASES["vit_s16"].variants if variant.role == "compiled"]
    assert [name.partition(",")[0] for name in compiled] == ["timm", "transformers", "x-transformers", "torch.nn"]


def test_gpu_models_have_published_sizes_and_follow_the_device() -> None:
    shape, size = gpu.VIT_S16, gpu.BASE
    assert (shape.patches + shape.class_token, shape.channels, shape.dim // shape.heads) == (197, 3, 64)
    assert (size.vocabulary, size.dim, size.depth, size.heads, size.ffn_dim) == (32_000, 512, 6, 8, 2048)
    assert size.dropout == 0.1
    assert gpu.vit_s16_case(replace(gpu.VIT_S16, device="cpu")).device == "cpu"
    assert gpu.translation_base_case(plan=gpu.NEWS._replace(device="cpu")).device == "cpu"


@pytest.mark.parametrize(("fast", "precision"), [(True, "bf16"), (False, "float32")])
def test_scaling_case_has_one_precision(fast: bool, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_fast_bfloat16", lambda _: fast)
    case = scaling.scaling_case(128, 4)
    assert [variant.name for variant in case.variants] == list(scaling.VARIANTS)
    assert {variant.precision for variant in case.variants} == {precision}


@pytest.mark.parametrize(
    "case", [vit_case(), translation_case(), decoding_case("greedy", "", 1)], ids=lambda case: case.name
)
def test_case_without_bfloat16_runs_float32_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_fast_bfloat16", lambda _: True)
    assert registry.adapt_to_processor(case) is case
    monkeypatch.setattr(registry, "has_fast_bfloat16", lambda _: False)
    variants = registry.adapt_to_processor(case).variants
    assert {variant.precision for variant in variants} == {"float32"}
    names = [variant.name for variant in variants]
    assert len(set(names)) == len(names)
    assert set(names) == {variant.name for variant in case.variants}
    roles = [variant.role for variant in variants]
    assert roles.count("ours") == 1
    assert "float32" not in roles, "the default variant is in float32 already"
    assert registry.adapt_to_processor(CASES["vit_s16"]) is CASES["vit_s16"], "accelerators have bfloat16"
