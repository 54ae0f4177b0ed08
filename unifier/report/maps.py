"""Maps of a page: marks of examples or subwords, with the picture, the sound or the text of each mark."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from rich.cells import cell_len

from unifier.report.schema import MapsEntry, read_entry

WIDTH, MARGIN = 600, 14
"""Width of a map and margin around its marks, in units of the SVG."""

NUM_COLORS = 10
"""Number of labels with a color of their own. All other labels share one more color."""

LETTER_SIZES = {"major": 21.0, "minor": 13.0}
"""Font size of the names of subwords. A phone shows only the names of the class "major", which are larger there."""


@final
class Mark(NamedTuple):
    """A mark of a map."""

    x: float
    y: float
    color: int
    label: str
    input: str
    image: str
    audio: str
    name: str
    """The text beside the mark, or ""."""
    size: str
    """The key of the name in `LETTER_SIZES`."""


@final
class PageMap(NamedTuple):
    """A map on the page."""

    title: str
    note: str
    height: float
    marks: list[Mark]
    is_named: bool
    """True if names are written beside the marks."""
    legend: list[tuple[int, str, int]]
    """The color, the label and the number of marks of each color, or no entries if a label is rare."""


def read_maps(folder: Path, task: str, take: Callable[[str], str]) -> list[PageMap]:
    """Return the maps of a task in a run's maps.json. A fault of the file is added to the problems.

    Args:
        folder: The run's folder.
        task: The name of the task.
        take: A function that returns a picture or a sound, or "" if the page has no space left.
    """
    entry = read_entry(folder / "maps.json", task, MapsEntry) or {}
    maps: list[PageMap] = []
    if content := entry.get("examples"):
        note = f"{content['method']} of the mean output of the trunk's last layer, for validation examples"
        maps.append(_build_map(f"Map of examples: {task}", note, content["points"], take))
    if content := entry.get("tokens"):
        note = f"{content['method']} of the learned vectors of the most frequent subwords of the validation examples"
        maps.append(_build_map(f"Map of subwords: {task}", note, content["points"], take, named=True))
    return maps


def _build_map(
    title: str, note: str, points: Sequence[Mapping[str, Any]], take: Callable[[str], str], *, named: bool = False
) -> PageMap:
    scale = WIDTH - 2 * MARGIN
    places = [(MARGIN + scale * point["x"], MARGIN + scale * point["y"]) for point in points]
    colors, legend = _color_labels([point.get("label", "") for point in points])
    sizes = _place_names([point.get("input", "") for point in points], places) if named else {}
    marks = [
        Mark(
            round(x, 1),
            round(y, 1),
            color,
            point.get("label", ""),
            point.get("input", ""),
            take(point.get("image", "")),
            take(point.get("audio", "")),
            point.get("input", "") if k in sizes else "",
            sizes.get(k, ""),
        )
        for k, (point, (x, y), color) in enumerate(zip(points, places, colors, strict=True))
    ]
    return PageMap(title, note, max(y for _, y in places) + MARGIN, marks, named, legend)


def _color_labels(labels: Sequence[str]) -> tuple[list[int], list[tuple[int, str, int]]]:
    """Return the color of each label, and the legend. Labels that hardly repeat have one color and no legend."""
    counts = Counter(labels)
    if len(counts) < 2 or 2 * len(counts) > len(labels):
        return [0] * len(labels), []
    frequent = sorted(label for label, _ in counts.most_common(NUM_COLORS))
    color = {label: k for k, label in enumerate(frequent)}
    legend = [(k, label, counts[label]) for label, k in color.items()]
    if rest := len(labels) - sum(count for _, _, count in legend):
        legend.append((NUM_COLORS, "other", rest))
    return [color.get(label, NUM_COLORS) for label in labels], legend


def _place_names(names: Sequence[str], places: Sequence[tuple[float, float]]) -> dict[int, str]:
    """Return the size of each name that touches neither another name nor another mark. The first names come first."""
    sizes: dict[int, str] = {}
    boxes: list[tuple[float, float, float, float]] = []
    for size, height in LETTER_SIZES.items():
        for k, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
            width = 0.62 * height * cell_len(name)
            box = x + 6, y - height / 2, x + 6 + width, y + height / 2
            marks = ((u - 4, v - 4, u + 4, v + 4) for u, v in places if (u, v) != (x, y))
            free = not any(_touch(box, other) for other in (*boxes, *marks))
            if k not in sizes and free and box[2] < WIDTH:
                boxes.append(box)
                sizes[k] = size
    return sizes


def _touch(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return True if two boxes (left, top, right, bottom) overlap."""
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]
