"""The wheel holds everything that a recipe needs, and runs away from the checkout."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

import unifier as uf

ROOT = Path(__file__).parents[1]


def test_every_package_is_listed() -> None:
    """An unlisted folder works in a checkout and is missing in the wheel."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(configuration["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "unifier").rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} | {"unifier.experiments", "unifier_tokenizers"} == listed


def test_every_head_has_an_entry_point() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["unifier.heads"].values()
    exported = [getattr(uf, name) for name in dir(uf)]
    heads = [each for each in exported if isinstance(each, type) and issubclass(each, uf.Head) and each is not uf.Head]
    assert sorted(listed) == sorted(f"{head.__module__}:{head.__name__}" for head in heads)


@pytest.mark.slow
def test_wheel_runs_a_recipe_elsewhere(tmp_path: Path) -> None:
    def run(*command: str | Path, folder: Path = tmp_path) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"WANDB_MODE": "disabled", "UNIFIER_CACHE": "off"}
        process = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    source = tmp_path / "source"
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT).splitlines()
    for name in tracked:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "--python", sys.executable]
    run(*build, "--out-dir", tmp_path, source)
    (wheel,) = tmp_path.glob("unifier_torch-*.whl")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel)
    # The new environment sees the installed dependencies, and by -P and the removed finder nothing of the checkout.
    packages = tmp_path / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import unifier, unifier.config; print(unifier.__file__)")
    assert Path(where.strip()).is_relative_to(packages)
    settings = ["steps=1", "dim=8", "depth=1", "heads=1", "num_validations=1"]
    last = run(python, "-m", "unifier", "run", "pictures", *settings, "--track", "off").splitlines()[-1]
    assert (tmp_path / last / "result.json").exists()


def test_user_id_without_a_name_or_home() -> None:
    program = "import os, pwd; os.getuid = lambda: 54321; import unifier, getpass, pathlib; getpass.getuser()"
    environment = {name: os.environ[name] for name in os.environ if name not in ("HOME", "LOGNAME", "USER", "USERNAME")}
    command = [sys.executable, "-c", f"{program}; pathlib.Path.home()"]
    subprocess.run(command, env=environment, check=True)
