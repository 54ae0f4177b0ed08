"""The command list: recipes, plug-ins, and the experiments of a file."""

import argparse
import ast
from collections.abc import Mapping
from pathlib import Path

from unifier.commands.common import AddCommand

PLUGIN_KINDS = ("tokenizers", "heads", "sources")


def add_list(add: AddCommand) -> None:
    """Add the command list."""
    listing = add("list", help="list recipes, tokenizers, heads and data sources")
    listing.add_argument("what", nargs="?", metavar="FILE | tokenizers | heads | sources", help="default: everything")
    listing.set_defaults(act=act_list)


def act_list(options: argparse.Namespace) -> None:
    """Print the names of plug-ins, recipes or a file's experiments, one per line."""
    from unifier.plugins import list_recipes, load_plugins, plugin_names

    if options.what in PLUGIN_KINDS:
        _print_aligned({name: _first_line(plugin.__doc__) for name, plugin in load_plugins(options.what).items()})
        return
    recipes = list_recipes()
    if options.what:
        from unifier.config import list_experiments
        from unifier_tokenizers import InputError

        if not Path(options.what).exists() and options.what not in recipes:
            raise InputError(
                f"{options.what}: no such file or installed recipe; give a file with experiments, or one of "
                f"{', '.join(recipes)}, {', '.join(PLUGIN_KINDS)}"
            )
        functions = list_experiments(options.what).items()
        _print_aligned({f"{options.what}:{name}": _first_line(function.__doc__) for name, function in functions})
        return
    for kind in PLUGIN_KINDS:
        print(f"{kind}: {', '.join(plugin_names(kind))}")
    local = [path for path in sorted(Path("experiments").glob("*.py")) if path.resolve() not in recipes.values()]
    if recipes or local:
        print("experiments:")
        files = recipes | {str(path): path for path in local}
        _print_aligned({f"  {name}": _describe_file(path) for name, path in files.items()})


def _print_aligned(descriptions: Mapping[str, str]) -> None:
    """Print a line per name, with the descriptions in one column."""
    width = max(map(len, descriptions), default=0)
    for name, description in descriptions.items():
        print(f"{name:{width}}  {description}")


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def _describe_file(path: Path) -> str:
    """Return the first line of a file's docstring without executing the file."""
    try:
        return _first_line(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    except (SyntaxError, UnicodeDecodeError):
        return "(not a Python file)"
