"""The shape of the repository: imports run one way, names collide with nobody's, and the program starts at once."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import unifier

ROOT = Path(__file__).parents[1]
FOLDERS = ("trunks", "heads", "data", "study", "network", "model", "report", "running", "cli")
FLOORS = ("unifier_tokenizers", *(f"unifier.{folder}" for folder in FOLDERS))
"""From the lowest to the highest: a module imports from its own floor and from those before it."""
SOURCES = sorted([*ROOT.glob("unifier/**/*.py"), *ROOT.glob("tokenizers/**/*.py")])
OURS = [
    *SOURCES,
    *(path for folder in ("experiments", "benchmarks", "tests") for path in sorted((ROOT / folder).glob("**/*.py"))),
]
PAGES = [path for folder in (".", "experiments", "benchmarks") for path in sorted((ROOT / folder).glob("*.md"))]


def floor(module: str) -> int | None:
    return next((k for k, name in enumerate(FLOORS) if module == name or module.startswith(name + ".")), None)


def imported(tree: ast.AST) -> set[str]:
    """Every module that is imported, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module from the root"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def upward(module: str, text: str) -> list[str]:
    """What is wrong with a module's imports, a sentence each."""
    own = floor(module)
    assert own is not None, f"{module} stands on no floor: add it to FLOORS"
    wrong: list[str] = []
    for name in sorted(imported(ast.parse(text))):
        other = floor(name)
        if name.split(".")[0] in ("unifier", "unifier_tokenizers") and other is None:
            wrong.append(f"{module} imports {name}: name the module it lives in")
        elif other is not None and other > own:
            wrong.append(f"{module} imports {name}: {FLOORS[own]} is below {FLOORS[other]}, and knows nothing of it")
        elif (
            FLOORS[own] == "unifier.report"
            and other not in (None, own)
            and not name.startswith(("unifier.study.files", "unifier_tokenizers"))
        ):
            wrong.append(f"{module} imports {name}: a report reads what a run left, by study.files alone")
    return wrong


def named(path: Path) -> str:
    root = ROOT / "tokenizers" if "unifier_tokenizers" in path.parts else ROOT
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_run_one_way(path: Path) -> None:
    if named(path) != "unifier":  # the list of public names, each read from its module when it is asked for
        assert not upward(named(path), path.read_text()), "\n".join(upward(named(path), path.read_text()))


def test_an_upward_import_is_found_wherever_it_hides() -> None:
    planted = "def f():\n    if f:\n        from unifier.running.fit import fit\n    return fit\n"
    assert upward("unifier.data.loading", planted) == [
        "unifier.data.loading imports unifier.running.fit.fit: unifier.data is below unifier.running, "
        "and knows nothing of it"
    ]
    assert upward("unifier_tokenizers.text", "import unifier.heads.head")
    assert upward("unifier.heads.head", "from unifier import cli")
    assert upward("unifier.report.page", "from unifier.model import Unifier")
    assert upward("unifier.study.ledger", "from unifier import Transformer")
    assert not upward("unifier.report.page", "from unifier.study.files import read_json")
    assert not upward("unifier.running.fit", "import torch\nfrom unifier.model import Unifier")


def test_no_file_is_long() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in OURS}
    assert {name: lines for name, lines in long.items() if lines > 350} == {}


def test_no_folder_is_crowded() -> None:
    modules = Counter(path.parent for path in OURS if path.name != "__init__.py" and path.parent.name != "tests")
    assert {str(folder.relative_to(ROOT)): count for folder, count in modules.items() if count > 10} == {}


def wide(text: str) -> list[str]:
    """The lines of a Markdown page above 120 columns, but for tables and code."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_as_wide_as_code(page: Path) -> None:
    assert not wide(page.read_text(encoding="utf-8"))


def test_a_wide_line_is_found_but_in_tables_and_code() -> None:
    line = 61 * "a "
    assert wide(f"{line}\n| {line} |\n```sh\n{line}\n```\nshort\n{line}") == [line, line]


def test_the_folder_tokenizers_shadows_nothing() -> None:
    assert list((ROOT / "tokenizers").glob("*.py")) == []
    assert not (ROOT / "tests" / "tokenizers").exists()
    script = "import sys; sys.path.insert(0, ''); from tokenizers import Tokenizer; print(Tokenizer.__module__)"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "tokenizers"


def test_torch_and_its_two_companions_are_pinned_together() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in ("torch", "torchvision", "torchaudio"):
        version = importlib.metadata.version(name).partition("+")[0]
        assert f"{name}=={version}" in wanted
        assert importlib.import_module(name).__version__.partition("+")[0] == version


@pytest.mark.parametrize("name", unifier.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(unifier, name).__name__ == name


def test_public_names_are_listed_in_order() -> None:
    assert unifier.__all__ == sorted(unifier.__all__, key=lambda name: (name.islower(), name))
    with pytest.raises(AttributeError, match="has no attribute 'Unify'"):
        _ = unifier.Unify


@pytest.mark.parametrize(
    ("seconds", "arguments"),
    [(2, ["-c", "import unifier"]), (1, ["-m", "unifier.cli", "--help"]), (1, ["-m", "unifier.cli", "list"])],
    ids=["import", "help", "list"],
)
def test_it_starts_at_once(seconds: float, arguments: list[str]) -> None:
    took: list[float] = []
    told: list[str] = []
    for _ in range(3):
        began = time.perf_counter()
        command = [sys.executable, "-X", "importtime", *arguments]
        told += subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr.splitlines()
        took.append(time.perf_counter() - began)
    assert "torch" not in {line.rpartition("|")[2].strip() for line in told}
    assert min(took) < seconds


def test_what_nobody_asked_for_takes_no_memory() -> None:
    modules = [
        "unifier.heads.tagging",
        "unifier.heads.translation",
        "unifier.data.embedded",
        "unifier.data.splitting",
        "unifier.running.run",
        "unifier.running.show",
        "unifier.running.using.translate",
    ]
    heavy = {"lightning", "torchmetrics", "sklearn", "sacrebleu", "sacremoses"}
    asked = f"import importlib, sys\nfor name in {modules}:\n"
    asked += f"    importlib.import_module(name); print(name, *sorted({heavy} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == modules
