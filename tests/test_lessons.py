"""The lessons: each has its parts and its place, one lesson runs, and the built site has no broken or foreign link."""

import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "docs" / "lessons").glob("[0-9]*.md"))
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "audio": "src", "video": "src"}
"""The attribute with the address of a file that a browser loads with a page."""


def test_lessons_are_numbered_in_the_order_of_the_index() -> None:
    index = (ROOT / "docs" / "lessons" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^\d\d-[\w-]+$", index, flags=re.MULTILINE) == [path.stem for path in LESSONS]
    for number, path in enumerate(LESSONS, start=1):
        assert path.stem.startswith(f"{number:02}-")
        assert f"\n# {number}. " in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_lesson_has_its_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8").partition("---\n\n")[2]
    cells = re.findall(r"^```\{code-cell\}.*?^```$", text, flags=re.DOTALL | re.MULTILINE)
    own = [line for line in re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines() if line]
    answer = text.partition("````{admonition} Answer\n:collapsible: closed\n")[2].partition("\n````")[0]
    prose = re.sub(r"^```.*?^```$", "", answer, flags=re.DOTALL | re.MULTILINE)
    assert 30 <= len([*own, *filter(None, prose.splitlines())]) <= 80
    assert any("plt.show()" in cell for cell in cells), "a cell draws a picture"
    assert "\n## Exercise\n" in text
    assert prose.strip(), "the exercise has an answer"
    claim = text.partition("\n## The claim\n")[2].partition("\n## ")[0]
    assert "```sh\nunifier " in claim, "the claim names its command"
    assert "](../log.md#" in claim, "the claim names its section of the log"


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_figures_of_a_claim_are_in_the_log(path: Path) -> None:
    claim = path.read_text(encoding="utf-8").partition("\n## The claim\n")[2].partition("\n## ")[0]
    figures = [number for bold in re.findall(r"\*\*(.+?)\*\*", claim) for number in re.findall(r"\d+(?:\.\d+)?", bold)]
    log = set(re.findall(r"\d+(?:\.\d+)?", (ROOT / "experiments" / "LOG.md").read_text(encoding="utf-8")))
    assert figures
    assert set(figures) <= log


def test_every_public_name_has_a_page() -> None:
    stub = (ROOT / "unifier" / "__init__.pyi").read_text(encoding="utf-8")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    listed = {name for page in pages for line in re.findall(r"\{public-names\} (.*)", page) for name in line.split()}
    assert set(re.findall(r"^from \.(\w+)", stub, flags=re.MULTILINE)) == listed


class Links(HTMLParser):
    """The anchors of a page, its links, and the files that a browser loads with the page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set[str](), list[str](), list[str]()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loaded.append(given.get("href", ""))
        if given.get(LOADED.get(tag, "")):
            self.loaded.append(given[LOADED[tag]])


@pytest.mark.extras
def test_site_runs_a_lesson_and_has_no_broken_link(tmp_path: Path) -> None:
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "0"
    lesson, site = LESSONS[int(commit, 16) % len(LESSONS)].stem, tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "docs", str(site)]
    environment = {**os.environ, "UNIFIER_LESSONS": lesson}
    process = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, f"{lesson}\n{process.stderr}"
    text = (site / "lessons" / f"{lesson}.html").read_text(encoding="utf-8")
    assert "_images" in text, lesson
    assert "Warning" not in text, "a cell prints a warning"
    read = cache(Links)
    for page in site.rglob("*.html"):
        for address in [*read(page).links, *read(page).loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                assert address not in read(page).loaded or parts.scheme == "data", f"{page.name} loads {address}"
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), f"{page.name}: {address}"
            is_page = target.suffix == ".html" and parts.fragment
            assert not is_page or unquote(parts.fragment) in read(target).anchors, f"{page.name}: {address}"
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)
