"""An HTML page of the attention between the tokens of a translation and of its source."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from types import TracebackType
from typing import final

from unifier_tokenizers import InputError

HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Alignments</title>
<style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 2rem; }
div { overflow-x: auto; margin: 0 0 2.5rem; }
table { border-collapse: collapse; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; padding: .3rem 0; }
tbody th { text-align: right; padding-right: .5rem; }
th { font-weight: 400; white-space: nowrap; }
td { width: 1.6rem; height: 1.6rem; border: 1px solid color-mix(in srgb, CanvasText 15%, Canvas);
     print-color-adjust: exact; -webkit-print-color-adjust: exact; }
</style>
<h1>Alignments</h1>
<p>A row for each token of a translation, a column for each of its source; the stronger a cell's colour, the more the
one looked at the other. Each row sums to 1; point at a cell to read its share.</p>
"""


@final
class AlignmentPage:
    """An HTML file of alignment matrices, written one by one, that is whole when it is closed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it, such as {self.path / 'alignments.html'}")
        self._part = self.path.with_name(f".{self.path.name}.part")

    def add(
        self, number: int, source: Sequence[str], target: Sequence[str], weights: Sequence[Sequence[float]]
    ) -> None:
        """A matrix: a row of weights for each token of the target, one weight in it for each of the source."""
        columns = "".join(f"<th scope=col>{escape(token)}</th>" for token in source)
        self._file.write(
            f"<div><table><caption>line {number}</caption><thead><tr><td></td>{columns}</tr></thead><tbody>\n"
        )
        for token, row in zip(target, weights, strict=True):
            cells = "".join(
                f'<td title="{escape(f"{token} → {seen}: {share:.2f}")}" style="background:'
                f'color-mix(in srgb, #1f6f8b {100 * share:.0f}%, Canvas)"></td>'
                for seen, share in zip(source, row, strict=True)
            )
            self._file.write(f"<tr><th scope=row>{escape(token)}</th>{cells}</tr>\n")
        self._file.write("</tbody></table></div>\n")

    def __enter__(self) -> "AlignmentPage":
        """Raises InputError where it cannot be written."""
        try:
            self._file = self._part.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error
        self._file.write(HEAD)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was added is kept, whatever ended it."""
        self._file.write("</html>\n")
        self._file.close()
        self._part.replace(self.path)
