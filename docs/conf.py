"""Settings of the documentation site, which `make docs` builds with Sphinx."""

import os
import re
from pathlib import Path
from typing import final

from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import unifier

HERE = Path(__file__).parent
LOG = HERE.parent / "experiments" / "LOG.md"
EXECUTED = os.environ.get("UNIFIER_LESSONS", "all")
"""The lessons whose cells are executed: "all", "none", or the name of one lesson."""

# The kernel that executes the lessons inherits these variables.
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")
os.environ["UNIFIER_CACHE"] = "off"
os.environ["WANDB_MODE"] = "disabled"

project = "unifier"
author = "the authors of unifier"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]

myst_heading_anchors = 4
nb_execution_mode = "off" if EXECUTED == "none" else "force"
nb_execution_excludepatterns = [
    path.name for path in (HERE / "lessons").glob("*.md") if EXECUTED not in ("all", path.stem)
]
# Without execution, the language of a cell is not known.
suppress_warnings = [] if EXECUTED == "all" else ["myst-nb.lexer"]
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

default_role = "code"
"""Docstrings write code in single backticks."""
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "unifier"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


@final
class PublicNames(SphinxDirective):
    """Directive that documents the public names of `unifier` from the given folders and modules."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[Node]:
        """Return the descriptions of the names, in the order of `unifier/__init__.pyi`."""
        stub = Path(unifier.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        names = re.findall(r"^from \.(\w+)\S* import \w+ as (\w+)$", stub, flags=re.MULTILINE)
        folders = self.arguments[0].split()
        lines = [directive_of(name) for folder, name in names if folder in folders]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def directive_of(name: str) -> str:
    """Return the directive of autodoc that documents a public name of `unifier`."""
    value = getattr(unifier, name)
    kind = "class" if isinstance(value, type) else "function" if callable(value) else "data"
    return f".. auto{kind}:: unifier.{name}"


def read_log(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the source of the page `log` by the log of experiments.

    A link to a file outside the site, or to a heading that the log no longer has, becomes plain text.
    """
    if page == "log":
        app.env.note_dependency(LOG)
        text = LOG.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
        anchors = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        source[0] = re.sub(
            r"\[([^\]]+)\]\((#[^)]+|\.\./[^)]+)\)", lambda link: link[0 if link[2] in anchors else 1], text
        )


def setup(app: Sphinx) -> None:
    """Register the directive `public-names` and the page of the log."""
    app.add_directive("public-names", PublicNames)
    app.connect("source-read", read_log)
