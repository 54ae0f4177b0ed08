"""The page: whole, small, legible without a network, on a phone and in the dark."""

import csv
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.text import Annotation

from unifier.console import print_comparison
from unifier.report.conditions import group_conditions
from unifier.report.estimates import format_number
from unifier.report.page import report_on
from unifier.report.plot_style import LineEnd, label_ends, panel
from unifier.report.read_results import read_results
from unifier.report.summary import summarize
from unifier.report.tables import matching_sentence

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def page(full: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a comparison of every kind."""
    runs = tmp_path_factory.mktemp("page") / "runs"
    shutil.copytree(full.parents[1], runs)
    path, _ = report_on(runs / "study" / full.name)
    return path


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text()


def test_it_opens_with_the_question_and_the_answer(page: Path, text: str) -> None:
    said = summarize(group_conditions(read_results(page.parent).rows))
    body = html.unescape(text)
    question = body.index("What happens when text, pictures and sound share a trunk?")
    assert question < body.index(said[0]) < body.index(said[1]) < body.index("Scores on the test split")


def test_it_asks_nothing_of_a_network_and_is_small(text: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert "url(" not in text
    assert len(text) < 5_000_000


def test_every_part_is_there(text: str) -> None:
    for said in (
        "Equal within 2 %: tokens, steps and parameters; different: FLOPs 1.0–1.3 T, seconds 10–31; "
        "the pretraining of transferred trunks is not counted.",
        "diverged: train/music/loss is nan by step 30",
        "Transfer of trained trunks",
        "Do the tasks' gradients agree?",
        "Similarity of the trunks' representations",
        "<caption>linear CKA by layer, calibrated, digits</caption>",
        "<h2>Attention</h2>",
        "the small dog sleeps &lt;here&gt; &amp; now",
        "<audio controls",
        'src="data:image/png;base64,',
        "sha256 abababababababab",
        "commit",
        "0123456789" * 4,
        "chance 10, reference 98 (a support vector machine)",
        "unifier run experiments/study.py dim=128",
    ):
        assert said in text, said


def test_a_score_stands_beside_its_normalized_one(page: Path, text: str) -> None:
    for one in group_conditions(read_results(page.parent).rows):
        assert one.normalized_score is not None
        assert f'<td class="n">{format_number(one.score.mean)} ± ' in text
        assert f'<td class="n">{format_number(one.normalized_score.mean)} ± ' in text


def test_what_a_set_lost_stands_beside_its_size(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    alone, whole = row("digits"), row("music")
    alone["result"]["data"]["digits"] |= {"skipped": {"train": 3, "val": 0, "test": 1}, "dropped": {"duplicates": 1500}}
    whole["result"]["data"]["music"] |= {"skipped": {"train": 0, "val": 0, "test": 0}}
    page = report_on(comparison(tmp_path, [alone, whole]))[0].read_text()
    assert "digits: 4,000 train, 200 val, 300 test; left out: 4 (unreadable), 1,500 (duplicates) <" in page
    assert "music: 4,000 train, 200 val, 300 test <" in page


def drawn(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Each figure's numbers; every one of them has both files."""
    tables: dict[str, list[dict[str, str]]] = {}
    for path in sorted((folder / "figures").glob("*.svg")):
        ElementTree.parse(path)
        with path.with_suffix(".csv").open(newline="") as file:
            tables[path.stem] = list(csv.DictReader(file))
        assert tables[path.stem], path
    assert len(tables) == len(list((folder / "figures").glob("*.csv")))
    return tables


def test_the_table_s_legend_tells_what_it_has(text: str, tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    assert "Normalized: 0 is chance" in text
    assert "± is half the width of a 95 % confidence interval" in text
    alone = row("digits", 90.0)
    alone["result"]["data"]["digits"]["score_range"]["reference"] = None
    page = report_on(comparison(tmp_path, [alone]))[0].read_text()
    assert "Normalized: 0" not in page
    assert "± is half" not in page


def test_figures_lie_beside_their_numbers_and_those_of_scores_say_what_is_not_matched(page: Path) -> None:
    tables = drawn(page.parent)
    for name in tables:
        letters = "".join(ElementTree.parse(page.parent / "figures" / f"{name}.svg").getroot().itertext())
        assert ("different:" in " ".join(letters.split())) == (name in ("scores", "joint-minus-solo")), name
    scores = {(line["task"], line["condition"]): line for line in tables["scores"]}
    found = group_conditions(read_results(page.parent).rows)
    for one in found:
        assert float(scores[one.task, one.label]["raw"]) == pytest.approx(one.score.mean)
    for name in ("curves-digits-tokens", "curves-music-seconds", "joint-minus-solo", "gradients-blocks.0"):
        assert name in tables
    assert {"raw", "chance", "calibrated"} <= set(tables["representation-digits-cka"][0])
    trunks = {one for line in tables["representation-digits-cka"] for one in line["trunks"].split(" and ")}
    assert trunks == {"solo", "joint", "translation, all trained", "random, frozen"}
    assert trunks <= {one.label for one in found if one.task == "digits"}
    last = [line for line in tables["curves-digits-tokens"] if line["condition"] == "solo"][-1]
    assert float(last["least"]) <= float(last["mean"]) <= float(last["most"])


def test_a_joint_run_s_curve_stands_over_its_task_s_own_tokens(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    rows = [row("digits", 90.0), row("digits", 91.0, mode="joint", experiment="joint")]
    whole = rows[1]["result"]["budget"]
    rows[1]["result"]["budget"] = {**whole, "tokens": 3 * whole["tokens"]}
    folder = comparison(tmp_path, rows)
    report_on(folder)
    ends = {line["condition"]: float(line["tokens"]) for line in drawn(folder)["curves-digits-tokens"]}
    assert ends == {"solo": 64_000, "joint": pytest.approx(64_000)}


def test_it_says_what_repeats_it_as_seen_from_here(
    tmp_path: Path, row: Rows, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for k, (reference, said) in enumerate(
        [
            (f"{tmp_path}/own/study.py:study", "unifier run own/study.py dim=128"),
            (f"{tmp_path}/own/study.py:other", "unifier run own/study.py:other dim=128"),
            ("/home/somebody/study.py:study", "unifier run study.py dim=128"),
            ("", None),
        ]
    ):
        text = report_on(comparison(tmp_path / f"runs{k}", [row()], study=reference))[0].read_text()
        assert re.findall(r"<pre><code>(.*)\n</code>", text) == ([said] if said else [])


def test_runs_started_one_by_one_are_repeated_one_by_one(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    folder = comparison(tmp_path, [row(seed=seed) for seed in range(3)])
    shutil.rmtree(folder.parent)
    for k, path in enumerate(sorted(tmp_path.rglob("settings.json"))):
        own = {"study": "/x/own.py:own", "comparison": "study" if k == 1 else None, "settings": {"dim": 8}}
        path.write_text(json.dumps(json.loads(path.read_text()) | own))
    text = report_on(tmp_path)[0].read_text()
    assert re.findall("unifier run.*", text) == [f"unifier run own.py dim=8 seed={seed}" for seed in (0, 2)]


def test_shares_sweeps_and_grids_are_drawn(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    shares = [row("digits", 98 - 3 * n**-0.5, varied={"share": n}) for n in (0.01, 0.1, 0.3, 1.0)]
    patches = [
        row(task, 80.0 + patch, seed, varied={"patch": patch}, budget={"tokens": 64_000 // patch})
        for task in ("digits", "music")
        for seed in (0, 1)
        for patch in (2, 4)
    ]
    efficiency = comparison(tmp_path / "shares", shares)
    sweep = comparison(tmp_path / "patches", patches)
    report_on(efficiency)
    report_on(sweep)
    (line, *_) = drawn(efficiency)["efficiency-digits"]
    assert float(line["b"]) == pytest.approx(0.5, rel=1e-2)
    tables = drawn(sweep)
    assert [line["setting"] for line in tables["sweep-digits-columns"]] == ["patch=4", "patch=2"]
    assert [line[""] for line in tables["settings-by-task"]] == ["patch=2", "patch=4"]


@pytest.mark.parametrize("refused", [1, 2])
def test_a_page_leaves_out_what_would_make_it_large(
    tmp_path: Path, row: Rows, comparison: Comparison, refused: int
) -> None:
    folder = comparison(tmp_path, [row("digits", 90.0)])
    (samples,) = tmp_path.rglob("samples.json")
    sample = {"input": "a", "target": "b", "prediction": "c", "audio": "data:audio/wav;base64," + "A" * 3_000_000}
    samples.write_text(json.dumps({"digits": [sample] * (1 + refused)}))
    path, _ = report_on(folder)
    assert path.stat().st_size < 5_000_000
    assert f">{refused} of the pictures and sounds left out" in path.read_text()


def test_a_part_whose_figures_are_left_out_has_no_heading(
    tmp_path: Path, row: Rows, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = comparison(tmp_path, [row("digits", 90.0)])
    text = report_on(folder)[0].read_text()
    assert "<h2>Learning curves</h2>" in text
    monkeypatch.setattr("unifier.report.page.LARGEST", 100)
    smaller = report_on(folder)[0].read_text()
    assert "<h2>Learning curves</h2>" not in smaller
    assert "<h2>Scores on the test split</h2>" in smaller, "which has a table"


PROBE = """<script>
addEventListener("load", async () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  const sounds = [...document.querySelectorAll("audio")];
  for (const one of sounds)
    if (!one.readyState && !one.error) await new Promise(go => one.onloadedmetadata = one.onerror = go);
  parent.postMessage({
    images: [...document.images].map(one => one.naturalWidth),
    sounds: sounds.map(one => one.duration),
    cut: [...document.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth).length,
    wide: document.documentElement.scrollWidth - innerWidth,
    dark: getComputedStyle(document.body).backgroundColor,
  }, "*");
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page is not looked at in a browser")
@pytest.mark.parametrize(
    ("width", "shown"), [(360, "light"), (1200, "light"), (360, "dark"), (1200, "dark"), (718, "print")]
)
def test_a_browser_finds_nothing_missing(page: Path, tmp_path: Path, width: int, shown: str) -> None:
    assert CHROMIUM
    dark = shown == "dark"
    text = page.read_text().replace("</body>", PROBE + "</body>")
    (tmp_path / "page.html").write_text(text.replace("@media print", "@media all") if shown == "print" else text)
    # In a frame, since no window is as narrow as a phone.
    (tmp_path / "frame.html").write_text(
        f'<iframe src="page.html" style="width: {width}px; height: 700px; border: 0"></iframe><pre></pre>'
        '<script>onmessage = said => document.querySelector("pre").textContent = JSON.stringify(said.data)</script>'
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    command += ["--force-dark-mode"] if dark else []
    address = (tmp_path / "frame.html").as_uri()
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=100, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    said = re.search(r"<pre>(.+)</pre>", done.stdout)
    assert said, done.stdout[-500:]
    found = json.loads(html.unescape(said[1]))
    assert len(found["images"]) > 20
    assert min(found["images"]) > 0
    assert found["sounds"] == pytest.approx([0.2] * 4, abs=0.01)
    assert found["wide"] <= 0
    assert shown != "print" or found["cut"] == 0, "paper does not scroll"
    assert (found["dark"] == "rgb(255, 255, 255)") != dark


def test_the_printed_tables_say_what_is_matched_too(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(page.parent)
    said = matching_sentence(row for row in read_results(page.parent).rows if row["task"] == "digits")
    assert "different:" in said
    assert " ".join(capsys.readouterr().out.split()).count(f"E{said[1:]}.") == 3, "once an task, whose rows are alike"


def test_the_printed_tables_read_no_markup_in_names(
    comparison: Callable[..., Path],
    row: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    names = ("photos[old]", "x[/y]", "a:cat:")
    print_comparison(comparison(tmp_path, [row(varied={"data": name}) for name in names]))
    said = capsys.readouterr().out
    assert [name for name in names if name not in said] == []


def test_long_names_stand_below_one_another_beside_their_lines() -> None:
    _, axes = panel()
    axes.set_ylim(0, 1)
    label_ends(
        axes, [LineEnd(0.5, "data=/a/very/long/place/of/sounds, tokens=450000", "red"), LineEnd(0.5, "solo", "blue")]
    )
    long, short = sorted(
        (text for text in axes.texts if isinstance(text, Annotation)), key=lambda one: len(one.get_text())
    )[::-1]
    assert short.get_text() == "solo"
    assert "".join(long.get_text().split()) == "data=/a/very/long/place/of/sounds,tokens=450000"
    assert max(map(len, long.get_text().splitlines())) <= 22
    assert abs(long.xyann[1] - short.xyann[1]) > 0.2 / 2.3, "further apart than two names of a line each"
