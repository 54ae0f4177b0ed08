"""The page of the server in chromium: real clicks, keys, files and recordings, without other addresses."""

import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serving.conftest import picture, running, sound
from tests.small_models import LABELS, D, small_model
from unifier import Model, PatchTokenizer, QueryDetectionHead
from unifier.data.inputs import ImageReader

pytestmark = pytest.mark.browser

FLAGS = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
PAINTED = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value)"
DROP = """([element, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(bytes)], "dropped.png", {type: "image/png"}));
  element.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def model() -> Model:
    stored = small_model("picture", "sound", "text", "translation", "mixture", "caption", longest=32)
    # Another task would change the random weights of the trunk.
    others = small_model("segmentation", "speech", longest=32)
    head = QueryDetectionHead(LABELS, D, patch=4, queries=5)
    with torch.no_grad():
        head.score.bias[1] += 50  # Each query finds an object.
    boxes = small_model(boxes=(PatchTokenizer(D, patch=4), head), longest=32)
    return Model(replace(stored, tasks={**stored.tasks, **others.tasks, **boxes.tasks}), Path("model"))


@pytest.fixture(scope="module")
def address(model: Model) -> Generator[str]:
    with running(model) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "no chromium on the PATH: run `make test-extras`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, 800), (390, 844)], ids=["desktop", "phone"])
def page(browser: Browser, address: str, request: pytest.FixtureRequest) -> Generator[Page]:
    """Open the page, and check at the end that it is not wider than the screen and used no other address."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    addresses, faults = list[str](), list[Any]()
    page.on("request", lambda asked: addresses.append(asked.url))
    page.on("pageerror", lambda error: faults.append(error))
    page.on(
        "console", lambda line: faults.extend([line.text] if line.type == "error" and "422" not in line.text else [])
    )
    page.goto(address)
    yield page
    assert faults == []
    assert [url for url in addresses if not url.startswith((address, "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.close()


def best_label(model: Model, task: str, value: Any) -> str:
    (probabilities,) = model.predictions([value], task)
    return LABELS[int(probabilities.argmax())]


def test_picture_is_chosen_or_dropped_and_its_attention_is_drawn(page: Page, model: Model, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(picture(1))
    page.set_input_files("input[type=file]", tmp_path / "one.png")
    expect(page.locator("#best")).to_contain_text(best_label(model, "picture", tmp_path / "one.png"))
    expect(page.locator(".bars li")).to_have_count(3)
    canvas = page.locator(".picture canvas")
    assert canvas.evaluate(PAINTED)
    page.focus("#attention")
    page.keyboard.press("Space")
    assert not canvas.evaluate(PAINTED)
    seed = next(
        seed
        for seed in range(2, 50)
        if best_label(model, "picture", ImageReader()(Path("p"), {Path("p"): picture(seed)}))
        != best_label(model, "picture", tmp_path / "one.png")
    )
    page.evaluate(DROP, [page.query_selector(".drop"), list(picture(seed))])
    other = best_label(model, "picture", ImageReader()(Path("p"), {Path("p"): picture(seed)}))
    expect(page.locator("#best")).to_contain_text(other)


def test_mask_is_drawn_on_the_picture(page: Page, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(picture(1))
    page.select_option("#task", "segmentation")
    page.set_input_files("input[type=file]", tmp_path / "one.png")
    expect(page.locator("#best li")).to_have_count(2)
    canvas = page.locator(".picture canvas")
    mask = canvas.evaluate("canvas => canvas.toDataURL()")
    assert canvas.evaluate(PAINTED)
    page.get_by_label("Mask").focus()
    page.keyboard.press("ArrowDown")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != mask
    assert canvas.evaluate(PAINTED)
    page.keyboard.press("ArrowDown")
    assert not canvas.evaluate(PAINTED)


def test_boxes_are_drawn_on_the_picture(page: Page, model: Model, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(picture(1))
    page.select_option("#task", "boxes")
    page.set_input_files("input[type=file]", tmp_path / "one.png")
    expect(page.locator("#best")).to_have_text(model.predict([tmp_path / "one.png"], "boxes")[0])
    canvas = page.locator(".picture canvas")
    assert canvas.evaluate(PAINTED)
    page.get_by_label("Nothing").check()
    assert not canvas.evaluate(PAINTED)


def test_speech_is_played_with_its_alignment(page: Page, model: Model) -> None:
    page.select_option("#task", "speech")
    page.get_by_placeholder("Type or paste a text").fill("one two")
    page.get_by_role("button", name="Predict").click()
    expect(page.locator("#best + p")).to_have_text(model.predict(["one two"], "speech")[0])
    page.wait_for_function("document.getElementById('best').duration > 0")  # The browser could read the sound.
    assert page.locator("#alignment").evaluate("image => image.naturalWidth") > 100


def test_translation_is_stepped_through_by_keyboard(page: Page, model: Model) -> None:
    page.select_option("#task", "translation")
    page.focus("textarea")
    page.keyboard.type("one two")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".texts button")).to_have_count(5)
    page.click(".texts button >> nth=1")
    expect(page.locator(".texts button >> nth=1")).to_have_attribute("aria-pressed", "true")
    page.focus("#steps [aria-pressed=true]")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step")).to_contain_text("step 2")
    expect(page.locator("#step .bars li")).to_have_count(5)
    units = model.tasks["translation"].tokenizer.encode("one two")
    expect(page.locator("#step .tokens > *")).to_have_count(units.values.shape[-1])
    page.get_by_label("Layer").select_option(label="trunk 1")
    page.get_by_label("Head", exact=True).select_option(label="head 2")
    expect(page.locator(".lines svg")).to_have_attribute("aria-label", "Attention of trunk 1, head 2")
    assert page.locator(".lines line").count() > 0


def test_steps_of_a_caption_are_drawn_on_the_picture(page: Page, tmp_path: Path) -> None:
    page.select_option("#task", "caption")
    (tmp_path / "one.png").write_bytes(picture(1))
    page.set_input_files("input[type=file]", tmp_path / "one.png")
    expect(page.locator(".texts button")).to_have_count(5)
    canvas = page.locator(".picture canvas")
    assert canvas.evaluate(PAINTED)
    first = canvas.evaluate("canvas => canvas.toDataURL()")
    page.focus("#steps [aria-pressed=true]")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step")).to_contain_text("step 2")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != first


def test_sound_is_recorded_or_chosen(page: Page, tmp_path: Path) -> None:
    page.select_option("#task", "sound")
    page.click("text=Record")
    page.wait_for_timeout(700)
    page.click("text=Stop")
    expect(page.locator(".bars li")).to_have_count(3)
    expect(page.locator("audio")).to_have_js_property("error", None)
    assert page.locator(".wave").evaluate(PAINTED)
    (tmp_path / "one.wav").write_bytes(sound(1))
    page.set_input_files("input[type=file]", tmp_path / "one.wav")
    expect(page.locator(".drop")).to_contain_text("one.wav")
    expect(page.locator(".bars li")).to_have_count(3)


def test_text_and_picture_of_a_mixture(page: Page, model: Model, tmp_path: Path) -> None:
    page.select_option("#task", "mixture")
    page.click("#send")
    expect(page.get_by_role("alert")).to_contain_text("caption")
    page.fill("textarea", "one two")
    (tmp_path / "one.png").write_bytes(picture(1))
    page.set_input_files("input[type=file]", tmp_path / "one.png")
    expect(page.locator(".picture")).to_be_visible()
    page.click("#send")
    value = {"caption": "one two", "image": tmp_path / "one.png"}
    expect(page.locator("#best")).to_contain_text(best_label(model, "mixture", value))


def test_fault_is_one_sentence_and_the_next_input_works(page: Page, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(picture(1)[:60])
    page.set_input_files("input[type=file]", tmp_path / "broken.png")
    expect(page.get_by_role("alert")).to_contain_text("broken.png")
    page.select_option("#task", "text")
    page.fill("textarea", "one")
    page.click("#send")
    expect(page.locator("#best")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
