"""Plug-ins of installed packages, and the recipes that are installed with unifier, without importing torch."""

import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from unifier_tokenizers.errors import InputError

PluginKind = Literal["tokenizers", "heads", "sources"]


def load_plugins(kind: PluginKind) -> dict[str, Any]:
    """Load what installed packages register under `unifier.<kind>`, by name.

    A broken plug-in, and one whose name is taken already, is left out with a warning.
    """
    loaded = {entry.name: _load_entry(entry) for entry in _entries(kind)}
    return {name: plugin for name, plugin in loaded.items() if plugin is not None}


def plugin_names(kind: PluginKind) -> list[str]:
    """Return the sorted names of `load_plugins`, without loading our own, because that takes seconds."""
    return sorted(entry.name for entry in _entries(kind) if _is_own(entry) or _load_entry(entry) is not None)


def _entries(kind: PluginKind) -> Iterator[EntryPoint]:
    values: dict[str, str] = {}
    for entry in entry_points(group=f"unifier.{kind}"):
        if entry.name in values:
            message = f"the plug-in '{entry.name}' ({entry.value}) has the name of {values[entry.name]}"
            warnings.warn(f"{message}: it is left out; rename it", stacklevel=3)
            continue
        values[entry.name] = entry.value
        yield entry


def _load_entry(entry: EntryPoint) -> Any:
    """Load an entry point; warn and return None if it is broken."""
    try:
        return entry.load()
    except Exception as error:  # Another package's module may raise anything when it is imported.
        warnings.warn(f"the plug-in '{entry.name}' ({entry.value}) is broken: {error!r}", stacklevel=3)
        return None


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "unifier-torch"


def list_recipes() -> dict[str, Path]:
    """Return the files of the recipes that are installed with the package, by name."""
    here = Path(__file__).parent
    # In a checkout the recipes lie beside the package, in an installation inside it.
    folder = next((path for path in (here / "experiments", here.parent / "experiments") if path.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.py"))}


def find_recipe(file: str | Path) -> Path:
    """Return the absolute path of an experiment's file; a bare name may be that of an installed recipe.

    Raises:
        InputError: There is neither such a file nor such a recipe.
    """
    path = Path(file).resolve()
    if path.exists():
        return path
    installed = list_recipes()
    if str(file) in installed:
        return installed[str(file)]
    raise InputError(f"{file}: no such file, and no installed recipe ({', '.join(installed)})")
