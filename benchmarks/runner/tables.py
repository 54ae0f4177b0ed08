"""Write results as Markdown tables into README.md."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchmarks.runner.case import OURS
from benchmarks.runner.device import Device
from benchmarks.runner.report import PEERS, Results
from unifier.files import write_text

RATIO_COLUMNS = {
    "vs_default": ("peers, default", "{:.2f} x"),
    "vs_tuned": ("peers, tuned", "{:.2f} x"),
    "vs_compiled": ("peers, compiled", "{:.2f} x"),
    "vs_our_allocator": ("peers, our allocator", "{:.2f} x"),
    "vs_float32": ("peers, float32", "{:.2f} x"),
    "memory": ("memory", "{:.2f} x"),
    "work_memory": ("without imports", "{:.2f} x"),
    "mfu": ("MFU", "{:.0%}"),
}
"""The heading and the number format of each ratio, keyed by the last part of the ratio's key."""

SECTIONS: dict[Device, str] = {"cpu": "results", "cuda": "results on an accelerator"}
"""The section of README.md that contains the results of a device."""

README = Path(__file__).parents[1] / "README.md"


def insert_section(page: str, name: str, text: str) -> str:
    """Return a copy of the page in which `text` replaces the content of a section."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def publish_section(name: str, text: str) -> None:
    """Print a text and write the text into a section of README.md."""
    print(text)
    write_text(README, insert_section(README.read_text(encoding="utf-8"), name, text))


def table_row(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table_header(names: Sequence[str], text_columns: Collection[int] = (0,)) -> str:
    """Return the first two lines of a table. Text columns are left-aligned; number columns are right-aligned."""
    return f"{table_row(names)}\n{table_row(['---' if i in text_columns else '---:' for i in range(len(names))])}"


def format_results(results: Results) -> str:
    """Format results as text: the machine, a table of ratios, and one table per case."""
    parts = [_machine_lines(results["machine"]), _ratio_lines(results), *map(_case_lines, results["cases"].values())]
    return "\n\n".join("\n".join(part) for part in parts)


def _machine_lines(machine: Mapping[str, Any]) -> Iterator[str]:
    libraries = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", *PEERS))
    accelerator = f"{machine['accelerator']} beside " if "accelerator" in machine else ""
    line = f"On {accelerator}{machine['processor']}, {machine['cores']} cores; {libraries}."
    yield from wrap(line, 120, break_on_hyphens=False)


def _ratio_lines(results: Results) -> Iterator[str]:
    """Yield the table of ratios, with one row per case and one column per measured ratio."""
    measured = {key.rpartition("/")[2] for key in results["ratios"]}
    columns = {key: column for key, column in RATIO_COLUMNS.items() if key in measured}
    yield table_header(["unifier against", *(heading for heading, _ in columns.values())])
    for name in results["cases"]:
        ratios = {
            key.rpartition("/")[2]: ratio for key, ratio in results["ratios"].items() if key.startswith(f"{name}/")
        }
        cells = [form.format(ratios[key]) if key in ratios else "" for key, (_, form) in columns.items()]
        yield table_row([name, *cells])


def _case_lines(case: Results) -> Iterator[str]:
    """Yield the table of a case's variants, sorted from fast to slow, and the speed of a matrix product."""
    variants = sorted(case["variants"], key=lambda variant: -variant["per_second"])
    yield f"### {case['title']}"
    yield ""
    numbers = [f"{case['unit']} a second", "from", "to", "memory, MB", "imports, MB", "start, s"]
    yield table_header(["", "", *numbers], (0, 1))
    yield from (table_row(_variant_cells(variant)) for variant in variants if variant["role"] != "peak")
    peaks = [
        f"{variant['per_second'] / 1e9:,.0f} in {variant['precision']}"
        for variant in variants
        if variant["role"] == "peak"
    ]
    if peaks:
        yield ""
        yield f"Speed of a bare matrix product, in billions of operations per second: {' and '.join(peaks)}."


def _variant_cells(variant: dict[str, Any]) -> list[str]:
    speeds = [variant["units"] / variant["seconds"][statistic] for statistic in ("median", "max", "min")]
    name = f"**{variant['name']}**" if variant["role"] in OURS else variant["name"]
    return [
        name if variant["compared"] else f"{name} (*)",
        variant["precision"],
        *(f"{speed:,.0f}" for speed in speeds),
        f"{variant['memory_bytes'] / 1e6:,.0f}",
        f"{variant['imported_bytes'] / 1e6:,.0f}",
        f"{variant['start_seconds']:.0f}",
    ]
