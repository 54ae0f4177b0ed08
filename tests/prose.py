"""Check the English of docstrings and comments: `python tests/prose.py` is part of `make lint`.

ruff's D401 and D404 check that a function's docstring begins with an imperative verb. This file adds the first words
and the phrases that CONTRIBUTING.md rules out.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

FIRST_WORDS = {
    "what", "which", "whether", "how", "of", "as", "where", "within", "that", "those", "when", "whatever", "for",
}  # fmt: skip
PHRASES = re.compile(
    r"\b((?i:so many|so much as|held against|told apart|by which (it|they) (is|are)"
    r"|but for|anew|mended|of its own accord|goes on from|says so)|(is|are) none)\b",
)


def is_property(node: ast.AST) -> bool:
    """Return True for a property or cached property."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(decorator).endswith("property") for decorator in decorators)


def docstring_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each function docstring that begins with a wrong word."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            first = doc.split()[0].strip("`\"'(,.:")
            if first.lower() in FIRST_WORDS or (first == "The" and not is_property(node)):
                yield node.lineno, f"the docstring of {node.name} begins with {first}: begin with a verb"


def phrase_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the phrase of each comment or string that contains a phrase to avoid."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and (match := PHRASES.search(token.string)):
            line = token.start[0] + token.string[: match.start()].count("\n")
            yield line, f'"{match[0]}": say it plainly'


def main() -> int:
    """Print each fault with its place; return 1 if there are any."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    count = 0
    for path in map(Path, names):
        if path.exists() and path.stem not in ("prose", "test_prose"):
            text = path.read_text(encoding="utf-8")
            for line, fault in [*docstring_faults(text), *phrase_faults(text)]:
                print(f"{path}:{line}: {fault}")
                count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
