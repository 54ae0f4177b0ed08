"""The page in chromium: every picture and sound loads, and nothing overflows on a phone, a screen or paper."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.report.conftest import make_full
from unifier.report.content_policy import add_policy
from unifier.report.page import report_on

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
    overflow: document.documentElement.scrollWidth - innerWidth,
    right: Math.max(...[...document.querySelectorAll("td")].map(one => one.getBoundingClientRect().right)),
    background: getComputedStyle(document.body).backgroundColor,
  }, "*");
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a comparison of every kind with its figures."""
    return report_on(make_full(tmp_path_factory.mktemp("page") / "runs"))[0]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (1440, "light"), (390, "dark"), (1440, "dark"), (718, "print")]
)
def test_browser_shows_the_page(page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    chromium = shutil.which("chromium")
    assert chromium, "no chromium on the PATH: run `make test-extras`"
    text = re.sub("<meta http-equiv=.*>\n", "", page.read_text()).replace("</body>", PROBE + "</body>")
    if scheme == "print":
        text = text.replace("@media print", "@media all")
    # The policy allows the probe, and a blocked part of the page is an error on the console.
    (tmp_path / "page.html").write_text(add_policy(text))
    # A frame can be as narrow as a phone, unlike a window.
    (tmp_path / "frame.html").write_text(
        f'<iframe src="page.html" style="width: {width}px; height: 700px; border: 0"></iframe><pre></pre>'
        '<script>onmessage = event => document.querySelector("pre").textContent = JSON.stringify(event.data)</script>'
    )
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    command += ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    address = (tmp_path / "frame.html").as_uri()
    browser = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, check=True)
    assert "CONSOLE" not in browser.stderr, browser.stderr
    measured = re.search(r"<pre>(.+)</pre>", browser.stdout)
    assert measured, browser.stdout[-500:]
    shown = json.loads(html.unescape(measured[1]))
    assert len(shown["images"]) > 20
    assert min(shown["images"]) > 0
    assert shown["sounds"] == pytest.approx([0.2] * 4, abs=0.01)
    assert shown["overflow"] <= 0
    assert scheme != "print" or shown["cut"] == 0, "paper does not scroll"
    assert (shown["background"] == "rgb(255, 255, 255)") == (scheme != "dark")
    assert width != 1440 or shown["right"] > 1300, "the tables use the width of the screen"
