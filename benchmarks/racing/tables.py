"""Results as the tables of README.md."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchmarks.racing.contest import OURS
from benchmarks.racing.device import Device
from benchmarks.racing.report import PEERS, Results
from unifier.files import write_text

RATIOS = {
    "vs_as_it_comes": ("peers as they come", "{:.2f} x"),
    "vs_best": ("peers at their best", "{:.2f} x"),
    "vs_compiled": ("peers compiled", "{:.2f} x"),
    "vs_memory_kept": ("the same, memory kept", "{:.2f} x"),
    "vs_float32": ("peers in float32", "{:.2f} x"),
    "memory": ("memory", "{:.2f} x"),
    "work_memory": ("imports left out", "{:.2f} x"),
    "mfu": ("share of the peak", "{:.0%}"),
}
"""By the last part of a ratio's key: a column's head, and how its numbers are written."""

MARKS: dict[Device, str] = {"cpu": "results", "cuda": "results on an accelerator"}
"""Where the page has them."""

README = Path(__file__).parents[1] / "README.md"


def insert(page: str, name: str, text: str) -> str:
    """A page with a text between the two marks of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def keep(name: str, text: str) -> None:
    """Print a text, and put it into README.md."""
    print(text)
    write_text(README, insert(README.read_text(encoding="utf-8"), name, text))


def write(results: Results) -> str:
    """The machine, a table of ratios, then one for each contest."""
    parts = [machine(results["machine"]), ratios(results), *(contest(one) for one in results["contests"].values())]
    return "\n\n".join("\n".join(part) for part in parts)


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def head(names: Sequence[str], words: Collection[int] = (0,)) -> str:
    """A table's first two lines; columns of words stand to the left, those of numbers to the right."""
    return f"{row(names)}\n{row(['---' if i in words else '---:' for i in range(len(names))])}"


def machine(found: Mapping[str, Any]) -> Iterator[str]:
    """What the figures hold for."""
    libraries = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", *PEERS))
    accelerator = f"{found['accelerator']} beside " if "accelerator" in found else ""
    line = f"On {accelerator}{found['processor']}, {found['cores']} cores; {libraries}."
    yield from wrap(line, 120, break_on_hyphens=False)


def ratios(results: Results) -> Iterator[str]:
    """A line for each contest, a column for each ratio that one of them has."""
    known = {key.rpartition("/")[2] for key in results["ratios"]}
    columns = {key: shown for key, shown in RATIOS.items() if key in known}
    yield head(["ours against", *(name for name, _ in columns.values())])
    for name in results["contests"]:
        own = {key.rpartition("/")[2]: ratio for key, ratio in results["ratios"].items() if key.startswith(f"{name}/")}
        yield row([name, *(form.format(own[key]) if key in own else "" for key, (_, form) in columns.items())])


def contest(found: Results) -> Iterator[str]:
    """Its contestants, the fastest first."""
    lines = sorted(found["contestants"], key=lambda line: -line["per_second"])
    yield f"### {found['title']}"
    yield ""
    yield head(["", "", f"{found['unit']} a second", "from", "to", "memory, MB", "imports, MB", "start, s"], (0, 1))
    yield from (row(cells(line)) for line in lines if line["role"] != "peak")
    peaks = [f"{line['per_second'] / 1e9:,.0f} in {line['precision']}" for line in lines if line["role"] == "peak"]
    if peaks:
        yield ""
        yield f"A bare matrix product reaches, in billions of operations a second, {' and '.join(peaks)}."


def cells(line: dict[str, Any]) -> list[str]:
    """One contestant."""
    speeds = [line["units"] / line["seconds"][which] for which in ("median", "most", "least")]
    name = f"**{line['name']}**" if line["role"] in OURS else line["name"]
    return [
        name if line["compared"] else f"{name} (*)",
        line["precision"],
        *(f"{speed:,.0f}" for speed in speeds),
        f"{line['memory_bytes'] / 1e6:,.0f}",
        f"{line['imported_bytes'] / 1e6:,.0f}",
        f"{line['start_seconds']:.0f}",
    ]
