"""Functions that find the plug-ins of installed packages and unifier's recipes, without importing torch."""

import re
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, get_args

from unifier_tokenizers.errors import InputError

PluginKind = Literal["tokenizers", "heads", "sources"]


def load_plugins(kind: PluginKind) -> dict[str, Any]:
    """Load the objects that installed packages register under `unifier.<kind>`. Return a mapping from names to objects.

    A plug-in is left out with a warning if it is broken or if an earlier plug-in has the same name.
    """
    loaded = {entry.name: _load_entry(entry) for entry in _entries(kind)}
    return {name: plugin for name, plugin in loaded.items() if plugin is not None}


def plugin_names(kind: PluginKind) -> list[str]:
    """Return the sorted names of the plug-ins that `load_plugins` returns.

    unifier's own plug-ins are not loaded here, because loading these plug-ins takes seconds.
    """
    return sorted(entry.name for entry in _entries(kind) if _is_own(entry) or _load_entry(entry) is not None)


def plugin_package(cls: type) -> str | None:
    """Return the name of the package that registers a class as a plug-in, or None."""
    top = cls.__module__.partition(".")[0]
    for kind in get_args(PluginKind):
        for entry in _entries(kind):
            is_candidate = re.split("[.:]", entry.value)[0] == top
            if is_candidate and entry.dist is not None and _load_entry(entry) is cls:
                return entry.dist.name
    return None


def plugins_of(package: str) -> list[type]:
    """Return the classes that a package registers as plug-ins of any kind."""
    entries = [entry for kind in get_args(PluginKind) for entry in _entries(kind)]
    loaded = [_load_entry(entry) for entry in entries if entry.dist is not None and entry.dist.name == package]
    return [plugin for plugin in loaded if isinstance(plugin, type)]


def _entries(kind: PluginKind) -> Iterator[EntryPoint]:
    values: dict[str, str] = {}
    for entry in entry_points(group=f"unifier.{kind}"):
        if entry.name in values:
            message = f"the plug-in '{entry.name}' ({entry.value}) is left out"
            warnings.warn(
                f"{message}, because {values[entry.name]} has the same name: rename one of them", stacklevel=3
            )
            continue
        values[entry.name] = entry.value
        yield entry


def _load_entry(entry: EntryPoint) -> Any:
    """Load an entry point, or return None with a warning if the entry point is broken."""
    try:
        return entry.load()
    except Exception as error:  # Another package's module may raise any exception when it is imported.
        warnings.warn(f"the plug-in '{entry.name}' ({entry.value}) is broken: {error!r}", stacklevel=3)
        return None


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "unifier-torch"


def list_recipes() -> dict[str, Path]:
    """Return a mapping from the names of the installed recipes to the recipes' files."""
    here = Path(__file__).parent
    # The recipes are beside the package in a checkout, and inside the package in an installation.
    folder = next((path for path in (here / "experiments", here.parent / "experiments") if path.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.py"))}


def find_recipe(file: str | Path) -> Path:
    """Return the absolute path of an experiment's file.

    Args:
        file: A path, or the name of an installed recipe. A file in the current folder takes precedence over a recipe
            with an equal name, but a folder does not.

    Raises:
        InputError: There is no path or recipe with the name `file`.
    """
    path, installed = Path(file).resolve(), list_recipes()
    if not path.is_file() and str(file) in installed:
        return installed[str(file)]
    if not path.exists():
        raise InputError(f"{file}: no such file or installed recipe; the recipes are {', '.join(installed)}")
    return path
