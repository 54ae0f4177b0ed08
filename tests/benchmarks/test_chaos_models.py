"""The campaign that changes the folders of models notices a wrong prediction."""

from pathlib import Path

import pytest

from benchmarks.chaos import models
from benchmarks.chaos.models import check, write_models

pytestmark = pytest.mark.slow


def test_another_prediction_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = write_models(tmp_path)[0]
    assert [check(subject, 0, number, tmp_path / "changed") for number in range(6)] == [""] * 6
    monkeypatch.setattr(models, "KINDS", {"add": models.KINDS["add"]})
    assert "another prediction" in check(subject._replace(expected=[1.0, 0.0]), 0, 0, tmp_path / "changed")
