"""Accuracy over distance: the fitted decay is that of the data, and runs are averaged."""

import numpy as np
import pytest

from unifier.report.plot_distances import fit_decay


@pytest.mark.parametrize(("a", "r"), [(50.0, 0.03), (20.0, 0.5), (40.0, 0.0)])
def test_decay_of_exact_scores_is_recovered(a: float, r: float) -> None:
    n = [2, 5, 10, 30, 100]
    fit = fit_decay(n, (50 + a * np.exp(-r * np.array(n))).tolist(), 50.0)
    assert fit is not None
    assert (fit.a, fit.r) == pytest.approx((a, r), rel=1e-3, abs=1e-4)
    assert fit.predict(np.array([fit.half_distance]))[0] - 50 == pytest.approx(fit.a / 2) or r == 0


def test_two_distances_have_no_fit() -> None:
    assert fit_decay([2, 5], [90.0, 80.0], 50.0) is None
