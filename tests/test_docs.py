"""The README and the guide: their snippets run, and pages stay short."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import unifier as uf
from unifier.cli import main
from unifier.config import load_experiment

pytestmark = [pytest.mark.usefixtures("undrawn", "few_examples"), pytest.mark.slow]

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"


def snippets(page: Path) -> str:
    """Return a page's Python code, one block after the other."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))


def test_pages_are_short_and_their_links_resolve() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in (*ROOT.glob("*.md"), *GUIDE.glob("*.md"))}
    for page, text in texts.items():
        assert page.parent != GUIDE or len(text.splitlines()) < 150, page.name
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    readme = texts[ROOT / "README.md"]
    assert len(readme.splitlines()) <= 200
    first = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10, "the first experiment has ten lines"


def test_readme_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (tmp_path / "readme_snippets.py").write_text(
        snippets(ROOT / "README.md")
        .replace("uf.run(digits, dim=32)", "uf.run(digits, dim=16, tokens=2000)")
        .replace("print(", "outputs.append(")
        .replace("import unifier as uf\n", "import unifier as uf\n\noutputs: list[object] = []\n", 1)
    )
    sharing = load_experiment(str(tmp_path / "readme_snippets.py") + ":sharing")
    metrics, (answer,) = sharing.__globals__["outputs"]
    assert 0 <= metrics["test/digits/accuracy"] <= 100
    assert answer.split()[0] in uf.datasets.Digits.labels
    results = uf.run(sharing, tokens=600, seeds=(0,), dim=8)
    assert [result.status for result in results] == ["finished"] * (2 + 1 + 2 * (1 + 2))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("experiments", "digits"),
        ("comparisons", "sharing"),
        ("language-models", "lines"),
        ("tracking", "digits"),
        ("resuming", "digits"),
    ],
)
def test_guide_snippets_run(name: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    path = tmp_path / f"{name.replace('-', '_')}_snippets.py"
    path.write_text(snippets(GUIDE / f"{name}.md"))
    load_experiment(f"{path}:{function}")
    assert list((tmp_path / "runs").iterdir())


def test_pretraining_snippets_run(tmp_path: Path) -> None:
    path = tmp_path / "pretraining_snippets.py"
    path.write_text(snippets(GUIDE / "pretraining.md"))
    (tmp_path / "notes.txt").write_text("\n".join(f"note {k} of {k % 7} dogs and {k % 5} cats" for k in range(300)))
    given: dict[str, Any] = {"steps": 3, "num_validations": 1, "out": tmp_path, "track": "off"}
    (result,) = uf.run(load_experiment(f"{path}:hidden_words"), file=str(tmp_path / "notes.txt"), **given)
    assert result.metrics["test/notes/perplexity"] > 1


def test_large_data_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    page = (GUIDE / "large-data.md").read_text(encoding="utf-8").replace("s3://bucket", f"file://{tmp_path}/bucket")
    pack, run = (line.split("#")[0].split()[1:] for line in page.partition("```sh\n")[2].splitlines()[:2])
    picture = Image.new("L", (8, 8))
    for name in (f"{split}/{label}/{k}.png" for split in ("train", "val", "test") for label in "ab" for k in range(3)):
        path = tmp_path / "photos" / "birds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    assert main(pack) == 0
    assert main([*run, "steps=2", "--track", "off"]) == 0
    assert list((tmp_path / "cache" / "shards").iterdir())


def test_labels_snippet_trains(tmp_path: Path) -> None:
    path = tmp_path / "labels_snippets.py"
    path.write_text(snippets(GUIDE / "labels.md"))
    (result,) = uf.run(load_experiment(f"{path}:entities"), out=tmp_path, track="off")
    assert result.metrics["test/sentences/f1"] > 90


def test_own_modality_task_and_data_train(tmp_path: Path) -> None:
    path = tmp_path / "own_series.py"
    path.write_text("\n\n".join(snippets(GUIDE / f"{name}.md") for name in ("modality", "task", "data")))
    (result,) = uf.run(load_experiment(f"{path}:series"), steps=60, out=tmp_path, track="off")
    assert result.metrics["test/ramps/r2"] > 50  # Half the error of always answering the mean.


def test_architecture_tree_lists_every_file() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tree = text.partition("## The tree")[2].split("```")[1]
    listed = listed_paths(tree)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.html"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    code = {name for name in tracked if not name.startswith("tests/") and not name.endswith("__init__.py")}
    existing = {name for name in code if (ROOT / name).exists()}
    assert {name for name in listed if name.endswith((".py", ".html"))} == existing
    assert [name for name in listed if not (ROOT / name).exists()] == []
    assert len(listed) == len(set(listed))
    tree = "a/       one\n  b/\n    c.py   two\n  d/e.py   three\nf/\n  c.py     four, c.py\nMakefile   five\n"
    assert listed_paths(tree) == ["a/b/c.py", "a/d/e.py", "f/c.py", "Makefile"]


def listed_paths(tree: str) -> list[str]:
    """Return the paths of a tree, in which each folder's entries are indented by two more spaces."""
    folders, paths = dict[int, str](), list[str]()
    for indent, name in re.findall(r"^( *)([\w./-]+/|[\w./-]+\.\w+|Makefile|\.ci/run)(?=\s)", tree, flags=re.MULTILINE):
        depth = len(indent) // 2
        path = (folders[depth - 1] if depth else "") + name
        if name.endswith("/"):
            folders[depth] = path
        else:
            paths.append(path)
    return paths
