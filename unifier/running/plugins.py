"""The plug-ins of other people's packages, and our own among them, by name."""

import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

Kind = Literal["tokenizers", "heads", "sources"]


def plugins(kind: Kind) -> dict[str, Any]:
    """What installed packages register under `unifier.<kind>`, by name.

    One that is broken is named in a warning, and so is one with the name of another, which is left out.
    """
    loaded = {entry.name: _load(entry) for entry in _entries(kind)}
    return {name: plugin for name, plugin in loaded.items() if plugin is not None}


def plugin_names(kind: Kind) -> list[str]:
    """The names of `plugins`, in order; this package's own are not loaded for that, which would take seconds."""
    return sorted(entry.name for entry in _entries(kind) if _is_own(entry) or _load(entry) is not None)


def _entries(kind: Kind) -> Iterator[EntryPoint]:
    known: dict[str, str] = {}
    for entry in entry_points(group=f"unifier.{kind}"):
        if entry.name in known:
            said = f"the plug-in '{entry.name}' ({entry.value}) has the name of another ({known[entry.name]})"
            warnings.warn(f"{said}: it is left out until it has its own", stacklevel=3)
            continue
        known[entry.name] = entry.value
        yield entry


def _load(entry: EntryPoint) -> Any:
    """What an entry point stands for; None where it is broken, which is said."""
    try:
        return entry.load()
    except Exception as error:  # whatever a stranger's module raises as it is imported
        warnings.warn(f"the plug-in '{entry.name}' ({entry.value}) is broken: {error!r}", stacklevel=3)
        return None


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "unifier"
