"""The ladder: every rung learns, aligns words if it has attention, and translates after a run."""

import importlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unifier.cli import main
from unifier.comparison import Comparison
from unifier.config import build_comparison, build_described, check_settings, list_experiments
from unifier.data.dataloader import TrainDataLoader, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.experiment import Experiment
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead
from unifier.inference.translate import DecodingOptions, translate
from unifier.inference.translator import Translator
from unifier.training.lightning_module import UnifierModule
from unifier.training.probe import probe
from unifier.trials.plan import plan_trials
from unifier_tokenizers import SubwordTokenizer

pytestmark = pytest.mark.usefixtures("undrawn", "few_examples")

FILE = Path(__file__).parents[2] / "experiments" / "ladder.py"
SMALL = {"dim": 32, "depth": 1, "decoder_depth": 1, "ffn_dim": 64, "vocabulary": 300}


def function(name: str) -> Callable[..., Experiment | Comparison]:
    return list_experiments(FILE)[name]


def one_rung(**settings: Any) -> Experiment:
    """Build the experiment of one rung from flat settings."""
    recipe = function("one_rung")
    return build_described(recipe, check_settings(recipe, {**SMALL, **settings}), Experiment)


def rungs() -> tuple[str, ...]:
    function("ladder")  # which puts the file's folder on the path
    return importlib.import_module("ladder").RUNGS


@pytest.mark.slow
@pytest.mark.parametrize("rung", rungs())
def test_every_rung_overfits_its_input(rung: str) -> None:
    """Overfit four sentences; with the inputs exchanged, the loss must rise."""
    torch.manual_seed(0)
    described = one_rung(rung=rung, dropout=0.0)
    ((name, task),) = described.tasks.items()
    split, _ = encode_split(open_split(task.source, "train")[:4], task.tokenizer, task.head)
    model = UnifierModule(described)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _, batch in TrainDataLoader({name: split}, max_tokens=256, seed=0, budget={"steps": 70}):
        loss = model.loss(name, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.65 * losses[0]
    model.eval()
    own = collate(split, range(len(split)))
    others = own._replace(**{part: getattr(own, part).roll(1, 0) for part in ("values", "positions", "mask")})
    with torch.no_grad():
        expected, strange = (model.loss(name, batch).item() for batch in (own, others))
    assert strange > 1.2 * expected


@pytest.mark.slow
@pytest.mark.parametrize("rung", rungs())
def test_attentive_rung_records_alignment_error(rung: str, tmp_path: Path) -> None:
    described = one_rung(rung=rung)
    ((name, task),) = described.tasks.items()
    split, _ = encode_split(open_split(task.source, "val")[:8], task.tokenizer, task.head)
    probe(UnifierModule(described), {name: split}, tmp_path)
    assert isinstance(task.head, AttentiveTextHead) == (rung not in ("gru", "lstm"))
    assert (tmp_path / "attention.json").exists() == isinstance(task.head, AttentiveTextHead)
    if isinstance(task.head, AttentiveTextHead):
        found = json.loads((tmp_path / "attention.json").read_text())[name]
        assert 0 <= found["alignment_error_rate"] <= 1
        assert 0 < found["alignment_error_rate_chance"] < 1
        assert (tmp_path / "figures" / f"attention-{name}-0.svg").exists()


@pytest.mark.slow
def test_rungs_differ_in_encoder_and_decoder_alone() -> None:
    shared: list[object] = []
    for rung in rungs():
        torch.manual_seed(0)
        described = one_rung(rung=rung, beam_width=3, label_smoothing=0.2, length_penalty=0.7, tied="source")
        ((name, task),) = described.tasks.items()
        assert isinstance(task.tokenizer, SubwordTokenizer)
        head = task.head
        assert isinstance(head, TextGenerationHead)
        assert head.embedding is task.tokenizer.embedding
        assert head.output is not head.embedding
        assert (head.label_smoothing, head.beam_width, head.length_penalty, head.language) == (0.2, 3, 0.7, "fr"), rung
        weights = task.tokenizer.embedding.weight.tolist()
        shared.append((name, getattr(task.source, "sha256", ""), described.training, weights))
    assert all(each == shared[0] for each in shared)


@pytest.mark.slow
def test_ladder_runs_and_each_run_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    settings += ["rungs=gru,single_head,prefix", "tokens=1000", "batch_tokens=512", "num_validations=1"]
    assert main(["run", str(FILE), *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    assert [row["varied"] for row in rows] == [{"rung": rung} for rung in ("gru", "single_head", "prefix")]
    assert (folder / "figures" / "lengths-en-fr.svg").exists()
    for row in rows:
        run, aligns = folder / row["folder"], row["varied"]["rung"] != "gru"
        assert sum(one["examples"] for one in json.loads((run / "lengths.json").read_text())["en-fr"]) == 30
        assert (run / "attention.json").exists() == aligns
        if aligns:
            assert "alignment_error_rate" in json.loads((run / "attention.json").read_text())["en-fr"]
        translator = Translator(run)
        assert isinstance(translator.head, AttentiveTextHead) == aligns
        text, out = io.BytesIO(b"The cat sleeps.\n\nThe girls see a dog.\n"), io.StringIO()
        translate(translator, text, "input", out, DecodingOptions(beam=2))
        assert out.getvalue().count("\n") == 3
        lines = tmp_path / "lines.txt"
        lines.write_text("The cat sleeps.\n")
        page = tmp_path / f"{row['varied']['rung']}.html"
        assert main(["translate", str(run), str(lines), "--attention", str(page)]) == (0 if aligns else 2)
        assert page.exists() == aligns
        assert ("its decoder has no attention that could be shown" in capsys.readouterr().err) == (not aligns)


def test_settings_of_a_rung_are_the_ladders() -> None:
    comparison, settings = build_comparison(function("ladder"), {"heads": "8", "rungs": "gru,prefix"})
    assert comparison.settings == {"heads": 8}
    assert settings == {"rungs": ("gru", "prefix"), "seeds": (0,), "heads": 8}
    assert [trial.varied for trial in plan_trials(comparison)] == [{"rung": "gru"}, {"rung": "prefix"}]
    assert str(FILE.parent) in sys.path
    described = function("ladder")()
    assert isinstance(described, Comparison)
    assert tuple(trial.varied["rung"] for trial in plan_trials(described)) == rungs(), "the ladder holds every rung"
