"""The repository's layout: imports run downward, names are defined once, and starting is fast."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unifier
import unifier.augmentation
import unifier.datasets
import unifier_tokenizers

ROOT = Path(__file__).parents[1]
RANKS = (
    "unifier_tokenizers",
    "tokenization",
    "nn",
    "trunks",
    "heads",
    "distributed",
    "files folders settings plugins",
    "data",
    "datasets augmentation objectives",
    "experiment",
    "network comparison",
    "models",
    "options analysis",
    "report",
    "config",
    "figures",
    "training",
    "trials",
    "inference",
    "serving",
    "launch console limits",
    "commands",
    "cli",
    "__main__",
)
"""The folders and modules of unifier from the lowest to the highest; none imports from a higher one or its equal."""
PUBLIC_ROOTS = ("unifier", "unifier.datasets", "unifier.augmentation", "unifier.options", "unifier_tokenizers")
SOURCES = sorted(
    path
    for folder in ("unifier", "tokenizers/unifier_tokenizers")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "__init__.py"
)


def module_name(path: Path) -> str:
    """Return the import name of a library file."""
    root = ROOT / "tokenizers" if "unifier_tokenizers" in path.parts else ROOT
    return ".".join(path.relative_to(root).with_suffix("").parts)


def folder_of(module: str) -> str:
    """Return the part of a module's name that is ranked."""
    return module.split(".")[0] if module.startswith("unifier_tokenizers") else module.split(".")[1]


def rank(module: str) -> int:
    """Return a module's place in `RANKS`."""
    return next(k for k, names in enumerate(RANKS) if folder_of(module) in names.split())


def imports(text: str, modules: Collection[str]) -> set[str]:
    """Return those of the modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names & set(modules)


def import_faults(texts: Mapping[str, str]) -> list[str]:
    """List the imports from a higher or equal rank, and an import circle if there is one."""
    graph = {module: imports(text, texts) for module, text in texts.items()}
    faults = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in sorted(others)
        if rank(other) > rank(module) or (rank(other) == rank(module) and folder_of(other) != folder_of(module))
    ]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        faults.append(f"circle: {' -> '.join(error.args[1])}")
    return faults


@pytest.mark.slow
def test_imports_run_downward_in_no_circle() -> None:
    assert import_faults({module_name(path): path.read_text() for path in SOURCES}) == []
    assert {len(module_name(path).split(".")) for path in SOURCES} <= {2, 3}, "the library is two levels deep"


@pytest.mark.parametrize(
    "texts",
    [
        {"unifier.data.source": "def f():\n    from unifier.training.fit import fit", "unifier.training.fit": ""},
        {"unifier.datasets.digits": "import unifier.augmentation.image", "unifier.augmentation.image": ""},
        {"unifier_tokenizers.text": "from unifier.heads import head", "unifier.heads.head": ""},
        {
            "unifier.trunks.trunk": "def f():\n    from unifier.trunks.factory import g",
            "unifier.trunks.factory": "from unifier.trunks.trunk import Trunk",
        },
    ],
    ids=["upward inside a function", "sideways", "from the tokenizers", "circle inside a folder"],
)
def test_upward_import_and_circle_are_found(texts: dict[str, str]) -> None:
    assert len(import_faults(texts)) == 1


@pytest.mark.slow
def test_report_reads_results_through_files() -> None:
    modules = [module_name(path) for path in SOURCES]
    scores = ("unifier.heads.text_metrics", "unifier.heads.grouped_text")
    allowed = ("unifier.report", "unifier.files", "unifier.folders", "unifier_tokenizers", *scores)
    for path in SOURCES:
        if path.parent.name == "report":
            others = imports(path.read_text(), modules)
            assert [name for name in others if not name.startswith(allowed)] == [], path


def top_level_names(text: str) -> set[str]:
    """Return the public names that a module defines itself."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.slow
def test_no_public_name_is_defined_twice() -> None:
    homes = defaultdict[str, list[str]](list)
    for path in SOURCES:
        for name in top_level_names(path.read_text()):
            homes[name].append(module_name(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
    # No module has the name of a public function.
    modules = {module_name(path).rpartition(".")[2] for path in SOURCES}
    functions = {name for name in vars(unifier)["__all__"] if callable(getattr(unifier, name))}
    assert modules & functions == set()


def test_experiments_import_public_roots_only() -> None:
    for path in sorted((ROOT / "experiments").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = [alias.name for alias in node.names if alias.name.startswith("unifier")]
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("unifier"):
                roots = [str(node.module)]
            else:
                continue
            assert set(roots) <= set(PUBLIC_ROOTS), path


@pytest.mark.parametrize("package", [unifier, unifier.datasets, unifier.augmentation, unifier_tokenizers])
def test_every_public_name_resolves(package: object) -> None:
    names: list[str] = vars(package)["__all__"]
    assert [name for name in names if not hasattr(package, name)] == []
    assert not hasattr(package, "no_such_name")


def test_folder_tokenizers_shadows_nothing() -> None:
    assert list((ROOT / "tokenizers").glob("*.py")) == []
    assert not (ROOT / "tests" / "tokenizers").exists()
    script = "import sys; sys.path.insert(0, ''); from tokenizers import Tokenizer; print(Tokenizer.__module__)"
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "tokenizers"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["-c", "import unifier"], ["-m", "unifier", "--help"], ["-m", "unifier", "list"]],
    ids=["import", "help", "list"],
)
def test_starting_imports_no_torch(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    assert "torch" not in {line.rpartition("|")[2].strip() for line in log.splitlines()}


@pytest.mark.slow
def test_light_modules_import_nothing_heavy() -> None:
    modules = ["unifier.heads.classification", "unifier.heads.transformer_decoder", "unifier.datasets.synthetic_music"]
    modules += [
        "unifier.data.splits",
        "unifier.launch",
        "unifier.inference.inspect",
        "unifier.inference.translate",
    ]
    modules += [module_name(path) for path in SOURCES if path.parent.name == "options"]
    heavy = {"lightning", "torchmetrics", "sklearn", "sacrebleu", "sacremoses", "timm", "wandb"}
    script = f"import importlib, sys\nfor name in {modules}:\n"
    script += f"    importlib.import_module(name); print(name, *sorted({heavy} & sys.modules.keys()))"
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == modules
