"""The maps and the attention heads of a report in chromium, with real pointers and keys."""

import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.report.conftest import encode_picture, encode_tone, make_comparison, make_row
from unifier.report.page import report_on

pytestmark = pytest.mark.browser

PLACES = np.linspace(0, 1, 12).tolist()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report with a map of pictures, of sounds, and of subwords."""
    folder = make_comparison(
        tmp_path_factory.mktemp("maps") / "runs", [make_row(task) for task in ("digits", "en-fr", "music")]
    )
    media = {"digits": {"image": encode_picture()}, "music": {"audio": encode_tone()}, "en-fr": {}}
    for run in (path.parent for path in folder.rglob("result.json")):
        (task,) = json.loads((run / "result.json").read_text())["tasks"]
        points: list[dict[str, Any]] = [
            {"x": x, "y": 1 - x if k % 2 else x, "label": f"label {k % 3}", "input": f"text {k}", **media[task]}
            for k, x in enumerate(PLACES)
        ]
        if task == "en-fr":
            weights = np.eye(2).tolist()
            cross = {"name": "cross 1", "queries": ["un", "chien"], "keys": ["a", "dog"], "heads": [weights, weights]}
            heads = [{**cross, "name": "trunk 1", "heads": [weights], "key_of_another_version": 1}, cross]
            (run / "attention.json").write_text(json.dumps({task: {"unit": "words", "layers": [], "heads": heads}}))
        kind = "tokens" if task == "en-fr" else "examples"
        (run / "maps.json").write_text(json.dumps({task: {kind: {"method": "PCA", "points": points}}}))
    return report_on(folder)[0]


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "no chromium on the PATH: run `make test-extras`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, 800), (390, 844)], ids=["desktop", "phone"])
def page(browser: Browser, report: Path, request: pytest.FixtureRequest) -> Generator[Page]:
    """Open the report, and check at the end that nothing failed and that the page is not wider than the screen."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height}, has_touch=width < 400)
    expect.set_options(timeout=30_000)
    faults = list[str]()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.goto(report.as_uri())
    yield page
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.close()


def map_of(page: Page, task: str) -> Locator:
    found = page.locator(".map", has_text=task)
    found.locator("xpath=ancestor::details").evaluate("part => part.open = true")
    found.scroll_into_view_if_needed()
    return found


def center(mark: Locator) -> tuple[float, float]:
    box = mark.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_pointer_shows_the_picture_of_the_nearest_mark(page: Page) -> None:
    found = map_of(page, "Map of examples: digits")
    for k in (3, 8):
        x, y = center(found.locator("circle[data-label]").nth(k))
        page.mouse.move(x + 3, y - 2)
        expect(found.locator(".detail")).to_contain_text(f"text {k}")
        expect(found.locator(".detail")).to_contain_text(f"label {k % 3}")
        expect(found.locator(".detail img")).to_have_js_property("naturalWidth", 8)


def test_tap_or_click_plays_the_sound(page: Page) -> None:
    found = map_of(page, "Map of examples: music")
    x, y = center(found.locator("circle[data-label]").nth(5))
    started = "document.addEventListener('play', event => window.played = event.target.src, true)"
    page.evaluate(started)
    page.mouse.click(x, y)
    expect(found.locator(".detail audio")).to_have_js_property("error", None)
    page.wait_for_function("window.played && window.played.startsWith('data:audio/')")


def test_arrows_move_between_marks(page: Page) -> None:
    found = map_of(page, "Map of subwords: en-fr")
    page.keyboard.press("Tab")
    found.locator("svg").focus()
    expect(found.locator(".detail")).to_contain_text("text 0")
    seen = set[str]()
    for _ in range(11):
        page.keyboard.press("ArrowRight")
        seen.add(found.locator(".detail").inner_text())
    assert len(seen) == 11, "the arrows reach every mark"
    page.keyboard.press("ArrowLeft")
    expect(found.locator(".detail")).to_contain_text("text 10")


def test_legend_shows_one_label(page: Page) -> None:
    found = map_of(page, "Map of examples: digits")
    button = found.locator(".legend button", has_text="label 1")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert found.locator("circle[data-label].off").count() == 8
    x, y = center(found.locator("circle[data-label]").nth(3))
    page.mouse.move(x, y)
    expect(found.locator(".detail")).not_to_contain_text("label 0")
    button.click()
    assert found.locator("circle.off").count() == 0


def test_layer_and_head_are_chosen(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    page.get_by_label("Layer").select_option(label="cross 1")
    page.get_by_label("Head", exact=True).select_option(label="head 2")
    drawing = page.locator(".lines svg")
    expect(drawing).to_have_attribute("aria-label", "Attention of cross 1, head 2")
    expect(drawing.locator("line")).to_have_count(2)
    assert drawing.locator("text").all_text_contents() == ["un", "chien", "a", "dog"]
