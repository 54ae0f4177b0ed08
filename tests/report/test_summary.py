"""The answer of a report: its claims, and its limits. The test split chooses nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.report.conftest import FROZEN, JOINT, Row, make_gains, make_row, make_seeds, with_metric, without_ranges
from unifier.report.conditions import group_conditions
from unifier.report.estimates import estimate, format_number, num_decimals
from unifier.report.read_results import collect_results
from unifier.report.summary import JointEffect, joint_effect, summarize, summarize_results


def answer(rows: list[Row]) -> list[str]:
    return summarize(group_conditions(rows)).sentences


def only_effect(rows: list[Row]) -> JointEffect:
    (effect,) = joint_effect(group_conditions(rows))
    return effect


def sentences_with(words: str, rows: list[Row]) -> list[str]:
    return [sentence for sentence in answer(rows) if words in sentence]


@pytest.fixture
def two_tasks() -> list[Row]:
    """Return solo and joint rows of three seeds; joint is 1 better on digits and 2 worse on music, give or take."""
    return [*make_gains("digits", 0.9, 1.0, 1.1), *make_gains("music", -2.1, -2.0, -1.9)]


def widths(tested: dict[int, float], validated: dict[int, float]) -> list[Row]:
    """Return three seeds of each width with these test and validation scores."""
    rows = [make_row("digits", tested[dim] + seed, seed, varied={"dim": dim}) for dim in tested for seed in range(3)]
    for row in rows:
        row["result"]["metrics"]["val/digits/accuracy"] = validated[row["varied"]["dim"]] + row["seed"]
    return rows


# Joint and solo


def test_joint_gain_is_the_mean_paired_difference(two_tasks: list[Row]) -> None:
    jitter = np.array([-0.1, 0.0, 0.1])
    expected = estimate(100 * ((1 + jitter) / 88 + (jitter - 2) / 70) / 2)
    assert only_effect(two_tasks).mean_gain == pytest.approx(expected)
    main, ranking, digits, music = answer(two_tasks)
    assert f"costs {format_number(-expected.mean, num_decimals(expected))} points of normalized score" in main
    assert "digits fares best" in ranking
    assert "music fares worst" in ranking
    assert digits.startswith("digits gains 1.00 points of accuracy")
    assert music.startswith("music loses 2.00 points of accuracy")
    assert all("over 3 seeds" in sentence for sentence in (main, digits, music))


def test_undetermined_gain_has_a_bound() -> None:
    rows = [*make_gains("digits", -1.0, 0.0, 1.3), *make_gains("music", 4.0, -3.0, -1.0)]
    effect = only_effect(rows)
    assert effect.mean_gain is not None
    main, digits, music = answer(rows)
    gains = effect.mean_gain, effect.pairs["digits"].gain, effect.pairs["music"].gain
    for sentence, gain in zip((main, digits, music), gains, strict=True):
        bound = float(sentence.partition("at most ")[2].split()[0])
        assert bound == pytest.approx(gain.bound, abs=10 ** -num_decimals(gain))
        assert bound >= gain.bound
        assert "gains" not in sentence


def test_one_seed_has_no_interval(two_tasks: list[Row]) -> None:
    text = " ".join(answer([row for row in two_tasks if row["seed"] == 0]))
    assert "one seed: no interval" in text
    assert not any(claim in text for claim in ("±", "gains", "loses", "fares best"))


@pytest.mark.parametrize(("gain", "words"), [(2.0, "2.00 points of accuracy above"), (0.0, "equal scores")])
def test_equal_gains_are_stated_but_not_claimed(gain: float, words: str) -> None:
    (sentence,) = answer(make_gains("digits", gain, gain))
    assert words in sentence
    assert "(the same in 2 seeds: no interval)" in sentence
    assert "gains" not in sentence
    assert sentences_with("music scores as solo does", [*make_gains("digits", 1.0, 2.0), *make_gains("music", 0, 0)])


def test_single_seed_of_a_fold_is_paired() -> None:
    runs = [(fold, seed) for fold in range(3) for seed in range(2)]
    solo = [make_row("digits", 60.0 + 10 * seed, seed, fold=fold) for fold, seed in runs]
    joint = [make_row("digits", 60.0 + 10 * seed, seed, fold=fold, mode="joint") for fold, seed in runs[:-1]]
    mean_gain = only_effect([*joint, *solo]).mean_gain
    assert mean_gain is not None
    assert (mean_gain.mean, mean_gain.half_width, mean_gain.unit) == (0, None, "fold")


def test_tasks_are_ranked_by_paired_difference() -> None:
    # A shift of both tasks in one seed widens the interval of each task, but not that of their difference.
    digits = make_gains("digits", 1.0, 8.0, 15.0)
    (sentence,) = sentences_with("fares best", [*digits, *make_gains("music", -3.0, 2.0, 8.0)])
    assert "digits fares best and music fares worst" in sentence
    same = without_ranges([*make_gains("digits", 1.0, 8.0), *make_gains("music", 1.0, 8.0)])
    one_seed = [*make_gains("digits", 9.0), *make_gains("music", 2.0)]
    for rows in ([*digits, *make_gains("music", 8.0, 2.0, -3.0)], same, one_seed):
        assert not sentences_with("fares best", rows)


def test_ranking_is_adjusted_for_the_choice() -> None:
    # The difference of the same two tasks is significant among two tasks, but not among three.
    gains = {"digits": (6.0, 8.0, 9.0), "music": (1.0, 5.0, 5.0), "en-fr": (4.0, 6.0, 7.0)}
    rows = {task: without_ranges(make_gains(task, *values)) for task, values in gains.items()}
    for row in rows["en-fr"]:
        scores = row["result"]["metrics"]
        row["result"]["metrics"] = {name.replace("bleu", "accuracy"): score for name, score in scores.items()}
    gaps = [best - worst for best, worst in zip(gains["digits"], gains["music"], strict=True)]
    lows = [stats.ttest_1samp(gaps, 0).confidence_interval(1 - 0.05 / choices)[0] for choices in (1, 3)]
    assert lows[1] < 0 < lows[0]
    assert sentences_with("fares best", [*rows["digits"], *rows["music"]])
    assert not sentences_with("fares best", [*rows["digits"], *rows["music"], *rows["en-fr"]])


def test_tasks_without_common_scale_have_no_mean() -> None:
    rows = make_gains("digits", 2.0, 2.5)
    rows += [with_metric(make_row("music", 0.5, seed), "macro_auc", 1.0) for seed in range(2)]
    rows += [with_metric(make_row("music", 0.75, seed, **JOINT), "macro_auc", 1.0) for seed in range(2)]
    effect = only_effect(rows)
    assert effect.mean_gain is None
    assert {task: gain.mean for task, gain in effect.task_gains.items()} == {"digits": 2.25, "music": 0.25}
    main, digits, music = answer(rows)
    assert "no mean over tasks" in main
    assert "accuracy" in digits
    assert "0.250 macro auc above" in music


def test_seeds_that_a_run_lacks_are_left_out() -> None:
    gains = {"digits": [1.0, 1.1, 0.9, 9.0, 9.1], "music": [2.0, 2.2, 1.8]}
    rows = [row for task, values in gains.items() for row in make_gains(task, *values)]
    for row in rows:
        row["result"]["data"][row["task"]]["score_range"] = {"metric": "accuracy", "chance": 0.0, "reference": 100.0}
    task_gains = only_effect(rows).task_gains
    assert {task: gain.mean for task, gain in task_gains.items()} == pytest.approx({"digits": 1.0, "music": 2.0})
    assert sentences_with("music fares best", rows)
    assert "seeds 3 and 4" in answer(rows)[-1]


def test_task_without_solo_run_is_named() -> None:
    rows = [make_row("digits", 90.0), make_row("digits", 91.0, **JOINT), make_row("music", 60.0, **JOINT)]
    assert answer(rows)[-1].startswith("Left out: music")
    assert not sentences_with("Left out", [*rows, make_row("music", 61.0)])


def test_each_setting_has_its_own_joint_gain() -> None:
    rows: list[Row] = []
    for dim, gain in ((8, 1.0), (16, 2.0)):
        for task in ("digits", "music"):
            rows += make_seeds(task, 60.0, 61.0, varied={"dim": dim})
            rows += make_seeds(task, 60.0 + gain, 61.0 + gain, varied={"dim": dim}, **JOINT)
    for row in rows:
        row["result"]["data"].clear()
    narrow, wide = joint_effect(group_conditions(rows))
    for effect, dim, gain in ((narrow, 8, 1), (wide, 16, 2)):
        assert effect.mean_gain is not None
        assert (effect.settings, effect.mean_gain.mean) == (f"dim={dim}", pytest.approx(gain))
        assert sentences_with(f"With dim={dim}: one trunk for both tasks", rows)


# Transfer


def moved(task: str, start: str, scores: tuple[float, ...], trainable: str = "none") -> list[Row]:
    """Return one seed for each score of a trunk that another experiment trained."""
    rows = make_seeds(task, *scores, mode="transfer", start=start, trainable=trainable)
    return [with_metric(row, "f1", 100.0) for row in rows]


def solo_rows(task: str, *scores: float) -> list[Row]:
    return [with_metric(row, "f1", 100.0) for row in make_seeds(task, *scores)]


def test_share_of_the_best_pair_is_adjusted() -> None:
    solo = [*solo_rows("digits", 80.0, 80.0, 80.0), *solo_rows("music", 80.0, 80.0, 80.0)]
    frozen, other = moved("digits", "genres", (60.0, 64.0, 68.0)), moved("music", "pictures", (10.0, 20.0, 30.0))

    def ends(choices: int) -> str:
        low, high = stats.ttest_1samp([75, 80, 85], 0).confidence_interval(1 - 0.05 / choices)
        return f"{low:.0f} to {high:.0f}"

    sentence, note = answer([*solo, *frozen, *other])
    assert sentence.startswith("On the best of 2 pairs, genres to digits, a frozen trunk keeps 80 % of solo's score")
    assert sentence.endswith(f"3 seeds: {ends(2)}).")
    assert "Bonferroni-adjusted for the choice among 2 pairs" in note
    tuned = moved("digits", "genres", (80.0, 80.0, 80.0), "all")
    assert "80 % of the tuned score" in answer([*solo, *frozen, *other, *tuned])[0]
    (sentence,) = answer([*solo, *frozen])
    assert sentence.startswith("From genres to digits, a frozen trunk keeps 80 % of solo's score")
    assert sentence.endswith(f": {ends(1)}).")


@pytest.mark.parametrize("scores", [(80.0, 0.0, 80.0), (0.0, 0.0, 0.0), (-80.0, -81.0, -82.0)])
def test_insignificant_reference_has_no_share(scores: tuple[float, ...]) -> None:
    rows = [*moved("digits", "genres", (60.0, 64.0, 68.0)), *moved("digits", "genres", scores, "all")]
    (sentence,) = answer(rows)
    assert sentence.startswith("No share")
    assert "genres to digits, seed 0, 1 and 2" in sentence
    rows = [*moved("digits", "genres", (60.0, *19 * (64.0,))), *moved("digits", "genres", (-1.0, *19 * (80.0,)), "all")]
    assert answer(rows)[-1].endswith("genres to digits, seed 0.")


def test_pair_without_a_share_is_not_the_best() -> None:
    solo = [*solo_rows("digits", 0.05, 0.2, 0.0), *solo_rows("music", 80.0, 81.0, 79.0)]
    nothing, most = moved("digits", "genres", (0.3, 0.1, 0.2)), moved("music", "pictures", (76.0, 77.0, 75.0))
    first, *_, last = answer([*solo, *nothing, *most])
    assert first.startswith("From pictures to music, a frozen trunk keeps 95 % of solo's score")
    assert last.endswith("genres to digits, seed 0, 1 and 2.")
    # A frozen trunk below chance keeps nothing.
    rows = make_seeds("music", 76.0, 77.0, 78.0) + make_seeds("music", 10.0, 11.0, 12.0, start="pictures", **FROZEN)
    assert sentences_with("keeps nothing of solo's score", rows)


def test_best_pair_is_compared_with_both_controls() -> None:
    trained, shuffled = (make_row(score=score, start="genres", shuffled=score > 60, **FROZEN) for score in (60.0, 70.0))
    text = " ".join(answer([make_row("digits", 80.0), trained, shuffled, make_row("digits", 55.0, **FROZEN)]))
    assert "above a random frozen trunk" in text
    assert "below the same trunk with shuffled weights" in text


def test_each_setting_has_its_own_best_pair() -> None:
    rows: list[Row] = []
    for dim in (8, 16):
        for task, start in (("digits", "genres"), ("music", "pictures")):
            facts: dict[str, Any] = {"varied": {"dim": dim}}
            rows += make_seeds(task, 60.0, 61.0, **facts)
            rows += make_seeds(task, 40.0, 42.0, start=start, **FROZEN, **facts)
    for dim in (8, 16):
        assert len(sentences_with(f"With dim={dim}: on the best of 2 pairs", rows)) == 1


# Settings and single runs


def test_setting_is_chosen_on_validation() -> None:
    choice, difference = answer(widths({16: 90.0, 32: 85.0, 64: 93.0}, {16: 88.0, 32: 91.0, 64: 90.0}))
    assert choice.startswith("For digits, dim=32 is chosen on validation")
    assert "86.0 % accuracy" in choice
    assert "8.00 points of accuracy below dim=64" in difference
    rows = [make_row("digits", 90.0 + seed * p, seed, varied={"patch": p}) for p in (1, 2) for seed in (0, 1)]
    assert "patch=2 is not distinguishable from patch=1" in answer(rows)[1]


def test_setting_without_validation_or_seeds_is_not_chosen() -> None:
    rows = widths({16: 90.0, 32: 85.0}, {16: 88.0, 32: 91.0})
    for row in rows:
        del row["result"]["metrics"]["val/digits/accuracy"]
    (sentence,) = answer(rows)
    assert "chosen" not in sentence
    rows = [make_row("digits", 80.0 + seed + rate, seed, varied={"rate": rate}) for rate in (0, 1) for seed in range(3)]
    rows.append(make_row("digits", 99.0, varied={"rate": 2}))
    first, *_, last = answer(rows)
    assert first.startswith("For digits, rate=1 is chosen on validation")
    assert "rate=2" in last


def test_other_test_data_or_metrics_are_no_rivals() -> None:
    rows = [make_row("digits", 90.0 - k, varied={"data": f"folder{k}"}) for k in range(2)]
    rows.append(with_metric(make_row("digits", 0.5, varied={"data": "folder0", "task": "tags"}), "map", 1.0))
    (sentence,) = answer(rows)
    assert "digits (data=folder0) reaches 90.0 % accuracy, digits (data=folder1) reaches 89.0 % accuracy" in sentence
    assert "reaches 0.500 map" in sentence


def test_scores_have_the_unit_of_their_mean() -> None:
    folds = [make_row("en-fr", 40.0 + k, fold=k) for k in range(2)]
    (sentence,) = answer([*make_seeds("digits", 90.0, 91.0, 92.0), make_row("music", 61.0), *folds])
    digits, rest = sentence.split(", ")
    music, translation = rest.split(" and ")
    assert digits.endswith("over 3 seeds")
    assert music.endswith("with one seed")
    assert translation.endswith("BLEU over 2 folds.")
    (sentence,) = answer([*make_seeds("digits", 90.0, 91.0), *make_seeds("music", 60.0, 61.0)])
    assert sentence.count("over") == 1
    assert answer([make_row("digits", 91.25)]) == ["digits reaches 91.2 % accuracy, with one seed."]
    assert summarize([]).sentences[0].startswith("No run ended")


def test_showcase_opens_the_answer(tmp_path: Path, two_tasks: list[Row]) -> None:
    shown = [make_row("digits", 97.5, mode="showcase"), make_row("music", 93.0, mode="showcase")]
    for row in two_tasks:
        row["result"]["task_budgets"][row["task"]]["tokens"] = 40_012
    content = {"name": "demo", "status": "finished", "rows": [*shown, *two_tasks]}
    results = collect_results(tmp_path, content)
    assert (len(results.showcase), len(results.rows)) == (2, len(two_tasks))
    first, budget, *rest, last = summarize_results(results).sentences
    assert "97.5 % accuracy on digits" in first
    assert "93.0 % accuracy on music" in first
    assert "64,000 tokens" in first
    assert "40,000 tokens" in budget
    assert rest == answer(two_tasks)
    assert "open" in last
    unshown = collect_results(tmp_path, content | {"rows": two_tasks})
    assert summarize_results(unshown).sentences == answer(two_tasks)
