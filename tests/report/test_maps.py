"""Maps of a page: colors of labels, names that do not touch, faults by name, and a script that the policy allows."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.report.conftest import encode_picture, make_comparison, make_row
from unifier.report.maps import LETTER_SIZES, NUM_COLORS, PageMap, read_maps
from unifier.report.page import report_on


def points(count: int, labels: int, **facts: Any) -> list[dict[str, Any]]:
    x, y = np.random.default_rng(0).uniform(0, 1, (2, count)).round(4).tolist()
    return [{"x": x[k], "y": y[k], "label": f"label {k % labels}", **facts} for k in range(count)]


def maps_of(folder: Path, **content: Any) -> list[PageMap]:
    (folder / "maps.json").write_text(json.dumps({"digits": content}))
    return read_maps(folder, "digits", lambda data: data)


def test_frequent_labels_have_colors(tmp_path: Path) -> None:
    (few,) = maps_of(tmp_path, examples={"method": "PCA", "points": points(30, 3)})
    assert few.legend == [(0, "label 0", 10), (1, "label 1", 10), (2, "label 2", 10)]
    assert all(mark.label == f"label {mark.color}" for mark in few.marks)
    (many,) = maps_of(tmp_path, examples={"method": "PCA", "points": points(100, 20)})
    assert many.legend[-1] == (NUM_COLORS, "other", 50)
    assert sum(count for *_, count in many.legend) == 100
    (single,) = maps_of(tmp_path, examples={"method": "PCA", "points": points(100, 90)})
    assert (single.legend, {mark.color for mark in single.marks}) == ([], {0})


def test_names_of_subwords_do_not_touch(tmp_path: Path) -> None:
    (tokens,) = maps_of(tmp_path, tokens={"method": "t-SNE", "points": points(200, 200, input="word")})
    for sizes in ({"major"}, {"major", "minor"}):
        named = [mark for mark in tokens.marks if mark.size in sizes]
        height = LETTER_SIZES["major" if len(sizes) == 1 else "minor"]
        for k, mark in enumerate(named):
            for other in named[:k]:
                assert abs(mark.x - other.x) > 4 * 0.6 * height or abs(mark.y - other.y) > height
    assert 20 < len([mark for mark in tokens.marks if mark.name]) < 200


@pytest.mark.parametrize(
    "content", ['{"digits": {"examples": {"method": "PCA", "points": [{"x": 2, "y": 0}]}}}', "{", '{"digits": 3}']
)
def test_page_names_a_broken_map_and_has_no_script(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda _, file, **_options: file.write("<svg/>"))
    folder = make_comparison(tmp_path / "runs", [make_row()])
    (run,) = (path.parent for path in folder.rglob("result.json"))
    (run / "maps.json").write_text(content)
    page, problems = report_on(folder)
    assert any("maps.json" in problem for problem in problems)
    assert "script-src 'none'" in page.read_text()


def test_policy_allows_the_script_and_escapes_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda _, file, **_options: file.write("<svg/>"))
    folder = make_comparison(tmp_path / "runs", [make_row()])
    (run,) = (path.parent for path in folder.rglob("result.json"))
    drawn = {"method": "PCA", "points": points(4, 2, input='"><script>alert(1)</script>', image=encode_picture())}
    (run / "maps.json").write_text(json.dumps({"digits": {"examples": drawn}}))
    page = report_on(folder)[0].read_text()
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in page
    assert page.count(f'data-image="{encode_picture()}"') == 4
