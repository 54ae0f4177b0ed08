"""The shape of the repository: imports run one way, names collide with nobody's, and the program starts at once."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unifier

ROOT = Path(__file__).parents[1]
RANKS = (
    "unifier_tokenizers",
    "nn",
    "trunks",
    "heads",
    "files",
    "data",
    "datasets augmentation",
    "experiment",
    "options network comparison",
    "analysis",
    "report",
    "config",
    "training",
    "trials",
    "inference",
    "launch console",
    "cli",
)
"""Folders and modules of unifier from the lowest to the highest; none imports from a higher one or its equal."""
SOURCES = sorted(
    path
    for folder in ("unifier", "tokenizers/unifier_tokenizers")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "__init__.py"
)
PAGES = [path for folder in (".", "experiments", "benchmarks") for path in sorted((ROOT / folder).glob("*.md"))]


def module_name(path: Path) -> str:
    """Return the import name of a library file."""
    root = ROOT / "tokenizers" if "unifier_tokenizers" in path.parts else ROOT
    return ".".join(path.relative_to(root).with_suffix("").parts)


def rank(module: str) -> int:
    """Return the rank of a module's folder, or of the module itself directly under unifier."""
    first, _, rest = module.partition(".")
    folder = first if first == "unifier_tokenizers" else rest.split(".")[0]
    return next(k for k, names in enumerate(RANKS) if folder in names.split())


def imports(text: str, modules: Collection[str]) -> set[str]:
    """Return the modules of ours that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found & set(modules)


def faults(texts: Mapping[str, str]) -> list[str]:
    """List the upward imports, and one import circle if there are any, among these modules."""
    graph = {module: imports(text, texts) for module, text in texts.items()}
    upward = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in sorted(others)
        if rank(other) > rank(module) or (rank(other) == rank(module) and folder_of(other) != folder_of(module))
    ]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        upward.append(f"circle: {' -> '.join(error.args[1])}")
    return upward


def folder_of(module: str) -> str:
    """Return the part of a module's name that is ranked."""
    return module.split(".")[0] if module.startswith("unifier_tokenizers") else module.split(".")[1]


def test_imports_run_downward_and_in_no_circle() -> None:
    assert faults({module_name(path): path.read_text() for path in SOURCES}) == []


@pytest.mark.parametrize(
    "texts",
    [
        {
            "unifier.data.source": "def f():\n    from unifier.training.fit import fit\n    return fit",
            "unifier.training.fit": "",
        },
        {"unifier.datasets.digits": "import unifier.augmentation.image", "unifier.augmentation.image": ""},
        {"unifier_tokenizers.text": "from unifier.heads import head", "unifier.heads.head": ""},
        {
            "unifier.trunks.trunk": "def f():\n    from unifier.trunks.factory import g\n    return g",
            "unifier.trunks.factory": "from unifier.trunks.trunk import Trunk",
        },
    ],
    ids=["upward inside a function", "sideways", "upward from the tokenizers", "a circle inside a folder"],
)
def test_imports_upward_or_in_a_circle_are_found(texts: dict[str, str]) -> None:
    assert len(faults(texts)) == 1


def test_report_reads_results_through_files_alone() -> None:
    for path in SOURCES:
        if path.parent.name == "report":
            allowed = ("unifier.report", "unifier.files", "unifier_tokenizers")
            others = imports(path.read_text(), {module_name(other) for other in SOURCES})
            assert [name for name in others if not name.startswith(allowed)] == [], path


def test_library_is_two_levels_deep() -> None:
    assert {len(module_name(path).split(".")) for path in SOURCES} <= {2, 3}


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
        "unifier.heads.classification",
        "unifier.heads.transformer_decoder",
        "unifier.datasets.synthetic_music",
        "unifier.data.splits",
        "unifier.launch",
        "unifier.inference.inspect",
        "unifier.inference.translate",
    ]
    heavy = {"lightning", "torchmetrics", "sklearn", "sacrebleu", "sacremoses"}
    asked = f"import importlib, sys\nfor name in {modules}:\n"
    asked += f"    importlib.import_module(name); print(name, *sorted({heavy} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == modules
