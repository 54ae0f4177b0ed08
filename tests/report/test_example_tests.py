"""Differences over test examples, beside independent references: McNemar's test, scipy and sacreBLEU."""

import csv
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from scipy import stats

from tests.report.conftest import FROZEN, JOINT, Row, make_row, with_metric
from unifier.heads.text_metrics import text_scores
from unifier.report.conditions import Contrast, contrasts, group_conditions
from unifier.report.estimates import format_bound, format_ends
from unifier.report.example_tests import (
    NUM_RESAMPLES,
    SEED,
    ExampleComparison,
    ExampleTest,
    compare_examples,
    paired_bootstrap,
    sign_flip_p_value,
)
from unifier.report.summary import summarize

WORDS = ["the", "a", "dog", "cat", "house", "tree", "runs", "sleeps", "eats", "red", "small", "big", "and", "under"]


def write_predictions(folder: Path, task: str, lines: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "predictions.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["task", "index", "target", "prediction", "score", "weight", "groups", "cluster"])
        writer.writeheader()
        writer.writerow({"task": "another", "index": 0, "target": "x", "prediction": "y", "score": 0.5})
        writer.writerows({"task": task, **line} for line in lines)


def scored_row(folder: Path, scores: np.ndarray, seed: int = 0, weights: np.ndarray | None = None, **facts: Any) -> Row:
    """Write predictions with these scores per example, and return the row of their run."""
    clusters = facts.pop("clusters", [""] * len(scores))
    lines = [
        {"index": k, "target": "cat", "prediction": "dog", "score": score, "cluster": cluster}
        for k, (score, cluster) in enumerate(zip(scores, clusters, strict=True))
    ]
    for line, weight in zip(lines, () if weights is None else weights, strict=False):
        line["weight"] = weight
    write_predictions(folder, "digits", lines)
    return make_row("digits", 100 * float(np.average(scores, weights=weights)), seed, folder=folder, **facts)


def text_row(folder: Path, texts: list[str], references: list[str], metric: str = "bleu", **facts: Any) -> Row:
    """Write predicted texts, and return the row of their run with sacreBLEU's score and signature."""
    clusters = facts.pop("clusters", [""] * len(texts))
    lines = [
        {"index": k, "target": target, "prediction": text, "score": "", "cluster": cluster}
        for k, (text, target, cluster) in enumerate(zip(texts, references, clusters, strict=True))
    ]
    write_predictions(folder, "en-fr", lines)
    result = text_scores(texts, references, "fr")[metric]
    row = make_row("en-fr", result.score, folder=folder, **facts)
    row["result"]["metrics"] = {f"test/en-fr/{metric}": result.score}
    row["result"]["signatures"] = {f"test/en-fr/{metric}": result.signature}
    return row


def joint_minus_solo(rows: list[Row]) -> Contrast:
    (pair,) = contrasts(group_conditions(rows))
    return pair


def compare(rows: list[Row]) -> ExampleComparison:
    return compare_examples(joint_minus_solo(rows))


def example_test(rows: list[Row]) -> ExampleTest:
    test, _ = compare(rows)
    assert test is not None
    return test


def corrupt(references: list[str], rate: float, seed: int) -> list[str]:
    """Replace words by random ones."""
    generator = np.random.default_rng(seed)
    return [
        " ".join(str(generator.choice(WORDS)) if generator.random() < rate else word for word in text.split())
        for text in references
    ]


@pytest.fixture(scope="module")
def references() -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, int(generator.integers(6, 14)))) for _ in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize(("wins", "losses"), [(9, 1), (3, 4), (0, 5), (60, 30), (200, 180)])
def test_sign_flips_of_01_scores_are_mcnemars(wins: int, losses: int) -> None:
    exact = stats.binomtest(wins, wins + losses, 0.5).pvalue
    assert sign_flip_p_value([1.0] * wins + [-1.0] * losses + [0.0] * 50) == pytest.approx(exact, abs=0.015)
    if wins + losses <= 10:  # All sign patterns are enumerated.
        assert sign_flip_p_value([1.0] * wins + [-1.0] * losses) == pytest.approx(exact)


def test_sign_flips_of_real_scores_are_enumerated() -> None:
    differences = np.random.default_rng(1).normal(0.5, 1, 8)
    signs = np.array(np.meshgrid(*[[-1, 1]] * 8)).reshape(8, -1).T
    exact = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12)
    assert sign_flip_p_value(list(differences)) == pytest.approx(exact)


@pytest.mark.parametrize(("gain", "is_significant"), [(0.15, True), (0.0, False)])
def test_planted_difference_of_accuracy_is_found(gain: float, is_significant: bool, tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    difficulty = generator.random(400)
    rows: list[Row] = []
    for seed in range(3):
        for name, accuracy, facts in (("solo", 0.6, {}), ("joint", 0.6 + gain, JOINT)):
            scores = (difficulty + generator.normal(0, 0.1, 400) < accuracy).astype(float)
            rows.append(scored_row(tmp_path / f"{name}{seed}", scores, seed, **facts))
    pair = joint_minus_solo(rows)
    test, problems = compare_examples(pair)
    assert test is not None
    assert not problems
    assert test.difference.mean == pytest.approx(pair.gain.mean), "in percent, as the metric is"
    assert (test.difference.num_values, test.difference.unit, test.num_runs) == (400, "test example", 3)
    assert (test.p_value < 0.01) == is_significant
    assert (test.difference.sign == 1) == is_significant


def test_interval_of_mean_scores_is_students(tmp_path: Path) -> None:
    solo, joint = np.random.default_rng(3).random((2, 50))
    test = example_test([scored_row(tmp_path / "solo", solo), scored_row(tmp_path / "joint", joint, **JOINT)])
    low, high = stats.ttest_rel(100 * joint, 100 * solo).confidence_interval(0.95)
    assert (test.difference.low, test.difference.high) == (pytest.approx(low), pytest.approx(high))


def test_examples_of_a_cluster_count_as_one(tmp_path: Path, references: list[str]) -> None:
    """Three equal copies of each example make no interval narrower."""
    solo, joint = np.random.default_rng(3).random((2, 50))
    alone = example_test([scored_row(tmp_path / "solo", solo), scored_row(tmp_path / "joint", joint, **JOINT)])
    clusters = [f"c{k % 50}" for k in range(150)]
    rows = [
        scored_row(tmp_path / "solos", np.tile(solo, 3), clusters=clusters),
        scored_row(tmp_path / "joints", np.tile(joint, 3), clusters=clusters, **JOINT),
    ]
    found = example_test(rows)
    assert (found.difference.num_values, found.difference.unit) == (50, "independent test example")
    assert found.difference[:2] == pytest.approx(alone.difference[:2])
    assert found.p_value == pytest.approx(alone.p_value)

    texts = {name: corrupt(references, rate, 1) for name, rate in (("solo", 0.3), ("joint", 0.2))}
    tests: list[ExampleTest] = []
    for copies in (1, 2):
        clusters = [f"c{k % len(references)}" for k in range(copies * len(references))]
        given = {"references": references * copies, "clusters": clusters}
        rows = [
            text_row(tmp_path / f"{name}{copies}", texts[name] * copies, **given, **facts)
            for name, facts in (("solo", {}), ("joint", JOINT))
        ]
        tests.append(example_test(rows))
    assert tests[0].difference.low == pytest.approx(tests[1].difference.low)
    assert (tests[0].difference.unit, tests[1].difference.unit) == ("test example", "independent test example")


def test_mean_over_unequal_clusters_is_the_mean_over_examples(tmp_path: Path) -> None:
    solo, joint = np.random.default_rng(3).random((2, 50))
    clusters = ["a"] * 20 + ["b"] * 5 + [""] * 25
    rows = [
        scored_row(tmp_path / "solo", solo, clusters=clusters),
        scored_row(tmp_path / "joint", joint, clusters=clusters, **JOINT),
    ]
    difference = example_test(rows).difference
    assert difference.mean == pytest.approx(100 * float((joint - solo).mean()))
    assert difference.num_values == 27
    rows = [
        scored_row(tmp_path / "even", np.full(50, 0.25), clusters=clusters),
        scored_row(tmp_path / "higher", np.full(50, 0.5), clusters=clusters, **JOINT),
    ]
    assert (example_test(rows).difference.half_width or 0) < 1e-9, "equal differences have no spread"


def test_clusters_of_folds_are_pooled(tmp_path: Path) -> None:
    """Each fold counts by its examples, and not by its clusters."""
    rows: list[Row] = []
    for fold, (size, gain, clusters) in enumerate([(10, 0.5, [""] * 10), (90, 0.0, [f"c{k % 10}" for k in range(90)])]):
        for name, given, facts in (("solo", 0.0, {}), ("joint", gain, JOINT)):
            scores = np.full(size, 0.25 + given)
            rows.append(scored_row(tmp_path / f"{name}{fold}", scores, clusters=clusters, fold=fold, **facts))
    assert example_test(rows).difference.mean == pytest.approx(5)


def test_runs_with_and_without_clusters_are_not_compared(tmp_path: Path) -> None:
    scores, clusters = np.random.default_rng(3).random(50), [f"c{k % 10}" for k in range(50)]
    rows = [scored_row(tmp_path / "solo", scores), scored_row(tmp_path / "joint", scores, clusters=clusters, **JOINT)]
    test, problems = compare(rows)
    assert (test, len(problems)) == (None, 2)


@pytest.mark.parametrize("has_scores", [True, False])
def test_clusters_of_seeds_must_agree(has_scores: bool, tmp_path: Path, references: list[str]) -> None:
    rows: list[Row] = []
    for seed in (0, 1):
        clusters = [f"c{k % (10 + seed)}" for k in range(len(references))]
        for name, rate, facts in (("solo", 0.5, {}), ("joint", 0.25, JOINT)):
            folder = tmp_path / f"{name}{seed}"
            given: dict[str, Any] = {"clusters": clusters, "seed": seed, **facts}
            if has_scores:
                rows.append(scored_row(folder, np.full(len(clusters), rate), **given))
            else:
                rows.append(text_row(folder, corrupt(references, rate, seed), references, **given))
    test, problems = compare(rows)
    assert test is None
    assert problems


def test_weighted_scores_are_compared_by_their_weights(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    (solo, joint), weights = generator.random((2, 50)), generator.integers(1, 9, 50)
    rows = [
        scored_row(tmp_path / mode, scores, weights=weights, mode=mode)
        for mode, scores in (("solo", solo), ("joint", joint))
    ]
    expected = 100 * np.average(joint - solo, weights=weights)
    assert example_test(rows).difference.mean == pytest.approx(expected)


def test_folds_pool_their_examples(tmp_path: Path) -> None:
    rows = [
        scored_row(tmp_path / f"{name}{fold}", np.random.default_rng(10 * fold + k).random(20), fold=fold, **facts)
        for fold in range(2)
        for k, (name, facts) in enumerate((("solo", {}), ("joint", JOINT)))
    ]
    pair, test = joint_minus_solo(rows), example_test(rows)
    assert test.difference.num_values == 40, "index 0 of two folds is two examples"
    assert test.difference.mean == pytest.approx(pair.gain.mean)
    test = compare_examples(pair, units=[1]).test
    assert test is not None
    assert (test.difference.num_values, test.num_runs) == (20, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "scorer"), [("bleu", BLEU()), ("chrf", CHRF())], ids=["BLEU", "chrF"])
def test_corpus_p_value_is_sacrebleus(
    metric: str, scorer: BLEU | CHRF, references: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", str(SEED))
    first, second = corrupt(references, 0.25, seed=1), corrupt(references, 0.3, seed=2)
    paired_test = PairedTest([("solo", second), ("joint", first)], {metric: scorer}, [references], "bs", NUM_RESAMPLES)
    solo, joint = (cast(Any, result) for result in list(paired_test()[1].values())[1])
    rows = [text_row(tmp_path / "solo", second, references, metric)]
    test = example_test([*rows, text_row(tmp_path / "joint", first, references, metric, **JOINT)])
    assert test.p_value == joint.p_value
    assert test.difference.mean == pytest.approx(joint.score - solo.score, abs=1e-4)


@pytest.mark.slow
def test_bootstrap_over_seeds_is_that_of_counts(references: list[str], tmp_path: Path) -> None:
    """Compare with resampled sums of the n-gram counts of sentences, drawn by another generator."""
    texts = {(side, seed): corrupt(references, 0.3, 2 * seed + side) for side in (0, 1) for seed in (0, 1)}
    rows = [
        text_row(tmp_path / f"{side}{seed}", texts[side, seed], references, seed=seed, **(JOINT if side else {}))
        for side, seed in texts
    ]
    test = example_test(rows)
    assert test.difference.mean == pytest.approx(joint_minus_solo(rows).gain.mean, abs=1e-3)
    assert test.num_runs == 2
    scorer = BLEU(force=True)
    counts: dict[tuple[int, int], np.ndarray] = {}
    for key, each in texts.items():
        bleus = [scorer.sentence_score(text, [target]) for text, target in zip(each, references, strict=True)]
        counts[key] = np.array([(*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len) for bleu in bleus])
    generator, differences = np.random.default_rng(5), list[float]()
    for _ in range(1000):
        drawn = generator.integers(0, len(references), len(references))
        sums = {key: each[drawn].sum(0).tolist() for key, each in counts.items()}
        scores = {key: BLEU.compute_bleu(each[:4], each[4:8], *each[8:]).score for key, each in sums.items()}
        differences.append(fmean(scores[1, seed] - scores[0, seed] for seed in (0, 1)))
    low, high = np.percentile(differences, [2.5, 97.5])
    assert test.difference.half_width == pytest.approx((high - low) / 2, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "is_significant"), [(0.1, True), (0.4, False)])
def test_planted_difference_of_bleu_is_found(
    rate: float, is_significant: bool, references: list[str], tmp_path: Path
) -> None:
    rows = [text_row(tmp_path / "solo", corrupt(references, 0.4, seed=7), references, "bleu_moses_lower")]
    rows.append(text_row(tmp_path / "joint", corrupt(references, rate, 8), references, "bleu_moses_lower", **JOINT))
    test = example_test(rows)
    assert (test.p_value < 0.01) == is_significant
    assert (test.difference.sign == 1) == is_significant


def test_equal_systems_have_no_interval() -> None:
    statistics = np.random.default_rng(0).random((30, 1)).astype(np.float32)
    difference, p_value = paired_bootstrap([[(statistics, statistics)]], lambda total: float(total[0]))
    assert (difference.mean, difference.half_width) == (0, None)
    assert p_value > 1 / (NUM_RESAMPLES + 1) - 1e-9


def test_one_independent_example_is_no_evidence() -> None:
    first, second = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    difference, p_value = paired_bootstrap([[(first, second)]], lambda total: float(total[0]))
    assert (*difference[:2], p_value) == (1, None, 1)


def test_runs_without_predictions_are_named(tmp_path: Path) -> None:
    scores = np.random.default_rng(4).random((4, 30))
    rows = [scored_row(tmp_path / f"run{k}", scores[k], k // 2, **(JOINT if k % 2 else {})) for k in range(4)]
    (tmp_path / "run3" / "predictions.csv").unlink()
    test, problems = compare(rows)
    assert test is not None
    assert test.num_runs == 1
    assert problems == {"run3": "no predictions.csv"}
    (tmp_path / "run0" / "predictions.csv").unlink()
    test, problems = compare(rows)
    assert (test, set(problems)) == (None, {"run0", "run3"})
    (problem,) = summarize(group_conditions(rows)).problems
    assert "run0 and run3 (no predictions.csv)" in problem
    assert compare([row | {"folder": ""} for row in rows]) == (None, {}), "runs without a folder are named elsewhere"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("score", "points", "score"),
        ("digits,", "music,", "digits"),
        (",1,cat", ",0,cat", "twice"),
        ("0.", "zero.", "number"),
        (",1,cat", ",31,cat", "test examples"),
        (",1,cat", ",1,bird", "test examples"),
        ("0.", "0.0", "accuracy"),
    ],
    ids=["column", "task", "copy", "number", "index", "target", "mean"],
)
def test_unusable_predictions_are_named(old: str, new: str, reason: str, tmp_path: Path) -> None:
    scores = np.random.default_rng(4).uniform(0.2, 0.9, (2, 30))
    rows = [scored_row(tmp_path / "solo", scores[0]), scored_row(tmp_path / "joint", scores[1], **JOINT)]
    path = tmp_path / "joint" / "predictions.csv"
    path.write_text(path.read_text().replace(old, new))
    test, problems = compare(rows)
    assert test is None
    assert reason in problems["joint"]


def test_predictions_of_another_score_are_named(references: list[str], tmp_path: Path) -> None:
    rows = [text_row(tmp_path / name, references, references, **facts) for name, facts in (("a", {}), ("b", JOINT))]
    rows[1]["result"]["metrics"]["test/en-fr/bleu"] = 50.0
    test, problems = compare(rows)
    assert test is None
    assert "100.00, not 50.00" in problems["b"]


def test_metric_without_example_scores_is_named(tmp_path: Path) -> None:
    rows = [scored_row(tmp_path / "solo", np.ones(9)), scored_row(tmp_path / "joint", np.ones(9), **JOINT)]
    for row in rows:
        write_predictions(row["folder"], "digits", [{"index": 0, "target": "a", "prediction": "a", "score": ""}])
    test, problems = compare([with_metric(row, "macro_auc", 1.0) for row in rows])
    assert test is None
    assert "macro_auc" in problems["joint"]


@pytest.mark.parametrize(("rates", "is_sure_over_seeds"), [((0.3, 0.3), True), ((0.1, 0.6), False)])
def test_summary_has_both_uncertainties(rates: tuple[float, float], is_sure_over_seeds: bool, tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    rows: list[Row] = []
    for seed, rate in enumerate(rates):
        solo = generator.random(200) < 0.5
        joint = solo | (generator.random(200) < rate)
        for name, scores, facts in (("solo", solo, {}), ("joint", joint, JOINT)):
            rows.append(scored_row(tmp_path / f"{name}{seed}", 100.0 * scores, seed, **facts))
    for row in rows:
        row["result"]["metrics"] = {name: score / 100 for name, score in row["result"]["metrics"].items()}
    test, pair = example_test(rows), joint_minus_solo(rows)
    assert bool(pair.gain.sign) == is_sure_over_seeds
    (sentence,) = summarize(group_conditions(rows)).sentences
    assert f"gains {test.difference.mean:.{0 if is_sure_over_seeds else 1}f} points of accuracy" in sentence
    assert f"over 200 test examples: {format_ends(test.difference)}, p < 0.001" in sentence
    over_seeds = sentence.partition("over 2 seeds")[2]
    assert (format_ends(pair.gain) if is_sure_over_seeds else f"at most {format_bound(pair.gain)}") in over_seeds


def test_chosen_pair_is_adjusted_for_the_choice(tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    moved: dict[str, Any] = FROZEN | {"start": "genres"}
    rows = [
        scored_row(tmp_path / name, generator.random(40) / 5 + score, **facts)
        for name, score, facts in (("solo", 0.7, {}), ("trained", 0.6, moved), ("random", 0.5, FROZEN))
    ]
    rows += [make_row("music", 80.0), make_row("music", 30.0, start="pictures", **FROZEN)]
    (control,) = [pair for pair in contrasts(group_conditions(rows)) if pair.baseline.label == "random, frozen"]
    test, _ = compare_examples(control)
    assert test is not None
    adjusted = test.difference.bonferroni(2)
    _, sentence, note = summarize(group_conditions(rows)).sentences
    assert f"over 40 test examples: {format_ends(adjusted)}" in sentence
    assert "Bonferroni-adjusted for the choice among 2 pairs" in note


@pytest.mark.parametrize("differences", [[], [0.0] * 10, [0.0, 1.0], [-2.0]])
def test_sign_flips_need_two_differences(differences: list[float]) -> None:
    assert sign_flip_p_value(differences) == 1.0
