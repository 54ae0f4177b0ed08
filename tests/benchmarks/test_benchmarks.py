"""The benchmarks: ratios are what they are called, equal models are equal, and the page shows what was measured."""

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import attention, products
from benchmarks.contests import accelerated, decoding, grammar, spectrogram, translation, vit
from benchmarks.contests.by_name import CONTESTS
from benchmarks.contests.grammar import GrammarSize
from benchmarks.models.copying import State, fill, read
from benchmarks.models.encoder_weights import for_torch
from benchmarks.models.encoders import Shape, TorchClassifier
from benchmarks.models.sequences import Size
from benchmarks.racing import race, tables, worker
from benchmarks.racing.agreement import far_apart, texts_differ
from benchmarks.racing.contest import OURS, Contest, Role
from benchmarks.racing.figure import draw
from benchmarks.racing.report import FILES, results
from benchmarks.racing.timing import Timing, ratios
from unifier.experiment import Precision
from unifier.training.result import processor, source_commit

FOLDER = Path(attention.__file__).parent
PICTURES = Shape(8, 8, (4, 4), True, dim=16, depth=2, heads=2, hidden=32, classes=3, batch=2, steps=2)
CLIPS = replace(PICTURES, width=12, patch=(8, 1), class_token=False)
SIZE = Size(vocabulary=300, dim=16, depth=2, heads=2, hidden=32)
PAIRS = translation.Plan(pairs=40, tokens=64, steps=2, peers=4)


def timing(
    name: str, role: Role, precision: Precision, *seconds: float, memory: int = 100, units: float = 10
) -> Timing:
    return Timing(
        name=name,
        role=role,
        precision=precision,
        seconds=seconds,
        units=units,
        memory_bytes=memory,
        imported_bytes=50,
        start_seconds=0,
        flops=600 if role in OURS else None,
        compared=True,
    )


RACED = [
    timing("unifier", "ours", "bf16", 9, 2, 1, memory=60),
    timing("unifier", "ours", "float32", 4, 4, 4, memory=90),
    timing("a", "as it comes", "bf16", 6, 6, 6),
    timing("b", "as it comes", "bf16", 5, 5, 5, memory=80),
    timing("a, tuned", "best", "bf16", 3, 3, 3, memory=120),
    timing("a, tuned, memory kept", "memory kept", "bf16", 4, 4, 4, memory=130),
    timing("a", "float32", "float32", 8, 1, 8, units=20),
    timing("product", "peak", "bf16", 2, 2, 2, units=1000),
    timing("product", "peak", "float32", 4, 4, 4, units=800),
]


def test_ratios_are_of_medians_against_the_fastest_in_the_same_precision() -> None:
    assert ratios("vit", "train", RACED) == pytest.approx(
        {
            "vit/train/vs_as_it_comes": 5 / 2,
            "vit/train/vs_best": 3 / 2,
            "vit/train/vs_memory_kept": 4 / 2,
            "vit/train/vs_float32": (8 / 20) / (2 / 10),
            "vit/memory": 60 / 80,
            "vit/memory_float32": 90 / 100,
            "vit/work_memory": 10 / 30,
            "vit/work_memory_float32": 40 / 50,
            "vit/mfu": (600 / 2) / (1000 / 2),
            "vit/mfu_float32": (600 / 4) / (800 / 4),
        }
    )


def test_ours_compiled_races_with_all_but_peers_as_they_come() -> None:
    found = ratios("vit", "train", [timing("unifier, compiled", "ours compiled", "bf16", 1, memory=70), *RACED])
    assert found["vit/train/vs_as_it_comes"] == pytest.approx(5 / 2)
    assert found["vit/train/vs_best"] == pytest.approx(3 / 1)
    assert found["vit/train/vs_float32"] == pytest.approx((8 / 20) / (1 / 10))
    assert found["vit/memory"] == pytest.approx(70 / 80)


def test_what_a_peer_comes_with_may_be_its_best() -> None:
    slow = timing("a, tuned", "best", "bf16", 30, 30, 30)
    found = ratios("vit", "train", [*RACED[:4], slow])
    assert found["vit/train/vs_best"] == found["vit/train/vs_as_it_comes"]
    assert not any("mfu" in key or "vs_float32" in key for key in found)  # nothing to measure them against


def test_a_contest_without_bf16_is_of_float32() -> None:
    found = ratios("greedy", "decode", [RACED[1], replace(RACED[6], role="as it comes")])
    assert found["greedy/decode/vs_as_it_comes"] == pytest.approx(1)
    assert found["greedy/memory"] == pytest.approx(90 / 100)


@pytest.mark.filterwarnings("ignore")  # a peer's own
@pytest.mark.parametrize(
    ("needed", "contest"),
    [
        (("transformers", "x_transformers"), vit.contest(PICTURES)),
        (("transformers", "x_transformers"), spectrogram.contest(CLIPS)),
        (("transformers",), translation.contest(SIZE, PAIRS)),
        (("transformers", "x_transformers"), accelerated.vit_s16(replace(PICTURES, channels=3))),
        (("transformers",), accelerated.translation_base(SIZE, PAIRS)),
    ],
    ids=["vit", "spectrogram", "translation", "vit_s16", "translation_base"],
)
def test_every_peer_agrees_with_ours_and_does_a_round(
    needed: tuple[str, ...], contest: Contest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in needed:
        pytest.importorskip(name)
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda what: compiled.append(what) or what)  # which takes a minute each
    check(contest, tmp_path)
    assert len(compiled) == sum(contestant.compiled for contestant in contest.contestants)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("width", "sentences"), [(1, 6), (3, 1)])  # a beam at its limit, each batch has its own
def test_peers_write_our_texts(width: int, sentences: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    task = GrammarSize(sentences=sentences, batch=2, pairs=60, steps=2, tokens=200, cache=tmp_path / "cache")
    task.cache.mkdir()
    size = replace(SIZE, vocabulary=400)
    words = grammar.vocabulary(size, task)
    assert len(words) == 400
    grammar.learn(size, task, words, grammar.kept(size, task, words))
    check(decoding.contest("decoding", "", width, size, task), tmp_path)


def check(contest: Contest, folder: Path) -> None:
    """Build every contestant in turn, hold it against ours, and have it do a round."""
    done: set[float] = set()
    for contestant in contest.contestants:
        if contestant.role == "peak":
            continue
        workload = contestant.build(contestant.precision, folder / "weights.pt")
        done.add(workload.units)
        if workload.outputs is not None:
            torch.save(workload.outputs, worker.outputs_file(folder, contestant))
        race.compared(contest, contestant, folder)
        workload.round()
        assert (workload.flops is not None) == (contestant.role in OURS and contest.kind == "train")
    assert len(done) == 1, "all do as much"


def test_a_changed_weight_is_found(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    ours = vit.unifier(PICTURES, "float32", weights).outputs
    assert ours is not None
    state = read(weights)
    pictures = vit.batches(PICTURES)[0].pictures
    theirs = TorchClassifier(PICTURES).eval()

    def outputs(changed: State) -> torch.Tensor:
        fill(theirs, for_torch(state | changed, PICTURES))
        return theirs(pictures).detach()

    assert far_apart(ours, outputs({})) is None
    for name in ("tokenizers.kind.class_token", "trunk.blocks.0.feed_forward_norm.bias", "trunk.norm.weight"):
        wrong = far_apart(ours, outputs({name: state[name].roll(1)}))
        assert wrong is not None
        assert wrong.startswith("outputs differ from ours by")
    assert far_apart(ours, ours * torch.nan)
    assert far_apart(ours, ours[:1])


def test_no_weight_is_left_out() -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(AssertionError, match="bias"):
        fill(model, {"weight": torch.ones(1, 2)})
    with pytest.raises(AssertionError, match="gain"):
        fill(model, {"weight": torch.ones(1, 2), "bias": torch.ones(1), "gain": torch.ones(1)})


def test_one_text_in_a_hundred_may_differ() -> None:
    ours = torch.arange(600).view(200, 3)
    assert texts_differ(ours, torch.cat([ours[:2] + 1, ours[2:]])) is None
    wrong = texts_differ(ours, torch.cat([ours[:3] + 1, ours[3:]]))
    assert wrong == "only 98.5% of its texts are ours, and 99% are needed"


def test_every_contestant_can_be_told_apart_and_ours_is_the_first() -> None:
    for name, contest in CONTESTS.items():
        labels = [contestant.label for contestant in contest.contestants]
        assert len(set(labels)) == len(labels)
        assert contest.contestants[0].role == "ours", name


MADE_UP = Contest("made up", "train", "Making up", "things", (), far_apart)


def test_what_is_not_run_again_is_kept_if_the_machine_is_the_same() -> None:
    before = results([(replace(MADE_UP, name="before"), RACED)])
    both = results([(MADE_UP, RACED)], before)
    assert list(both["contests"]) == ["before", "made up"]
    assert both["ratios"].items() > before["ratios"].items()
    assert both["ratios"]["made up/mfu"] == 0.6
    assert both["contests"]["made up"]["commit"] == source_commit()
    elsewhere = results([(MADE_UP, RACED)], {**before, "machine": {}})
    assert list(elsewhere["contests"]) == ["made up"]
    assert not any(key.startswith("before") for key in elsewhere["ratios"])


def test_processors_that_are_called_alike_are_told_apart(tmp_path: Path) -> None:
    core = "processor\t: {}\ncpu family\t: {}\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\n"
    names = []
    for family in (25, 26):
        file = tmp_path / str(family)
        file.write_text(core.format(0, family) + core.format(1, family))
        names.append(processor(file))
    assert names == ["AMD EPYC (family 25, model 17)", "AMD EPYC (family 26, model 17)"]
    (tmp_path / "bare").write_text("processor\t: 0\nFeatures\t: fp asimd\n\n")
    assert processor(tmp_path / "bare") == platform.machine()
    assert processor(tmp_path / "absent") == (platform.processor() or platform.machine())


def test_the_page_is_written_between_its_marks(tmp_path: Path) -> None:
    found = results([(MADE_UP, RACED)])
    begin, end = "<!-- results -->", "<!-- end of results -->"
    page = tables.insert(f"above\n{begin}\nold\n{end}\nbelow\n", "results", tables.write(found))
    assert page.startswith(f"above\n{begin}\n\nOn {found['machine']['processor']}, {found['machine']['cores']} cores; ")
    assert f"torch {torch.__version__}" in page
    assert "\n\n| ours against |" in page
    assert page.endswith(f"\n\n{end}\nbelow\n")
    assert "| made up | 2.50 x | 1.50 x | 2.00 x | 2.00 x | 0.75 x | 0.33 x | 60% |" in page
    assert "| **unifier** | bf16 | 5 | 1 | 10 |" in page
    assert tables.insert(page, "results", tables.write(found)) == page
    draw(found, tmp_path / "results.svg")
    drawn = (tmp_path / "results.svg").read_text()
    assert "Making up: things a second" in drawn
    assert "product" not in drawn


def test_the_page_shows_what_was_measured() -> None:
    page = (FOLDER / "README.md").read_text()
    for where, mark in tables.MARKS.items():
        file, text = FOLDER / FILES[where], "Nobody has raced these contests yet."
        assert file.exists() or where != "cpu"
        if file.exists():
            found = json.loads(file.read_text())
            text = tables.write(found)
            assert set(found["contests"]) == {name for name, one in CONTESTS.items() if one.device == where}
        assert tables.insert(page, mark, text) == page
    assert (FOLDER / "results.svg").stat().st_size < 200_000


def test_what_is_measured_alone_is_on_the_page() -> None:
    page = (FOLDER / "README.md").read_text()
    for name in ("products", "attention", "softmax", "scaling", "alone"):
        part = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        assert "| ---" in part, f"{name} was not measured"


def test_the_kernels_that_are_timed_are_alike() -> None:
    query, key, value = torch.randn(3, 2, 4, 7, 8)
    mask = (torch.arange(7) < torch.tensor([[7], [3]]))[:, None, None]
    torch.testing.assert_close(attention.plain(query, key, value, mask), attention.fused(query, key, value, mask))
    assert all(took > 0 for took in attention.seconds([attention.plain, attention.fused], 8, torch.bfloat16, True))
    assert all(took > 0 for ways in attention.softmax_seconds(15, torch.bfloat16) for took in ways)
    assert all(took > 0 for learning in (False, True) for took in products.seconds(8, 4, 6, torch.float32, learning))
