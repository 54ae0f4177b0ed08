"""Result files to one HTML page that needs no network."""

import base64
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from unifier.study.files import read_json, write_text
from unifier_tokenizers import InputError

TEMPLATES = Environment(loader=PackageLoader("unifier", "report"), autoescape=True, undefined=StrictUndefined)


def write_report(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write report.html beside the result.json or comparison.json whose content is given; returns its path."""
    if "rows" in content:
        rows = [row["result"] for row in content["rows"]]
        folders = [Path(row["folder"]) for row in content["rows"]]
        pairs = {str(at): (at, result) for at, result in zip(folders, rows, strict=True)}
    else:
        pairs = {str(folder): (folder, content)}
    page = TEMPLATES.get_template("page.html").render(
        title=content["name"].replace("_", " "),
        status=content["status"],
        runs=[_run(at, result) for at, result in pairs.values()],
        command=_command(content),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def report_on(folder: Path) -> Path:
    """Write the report of a run's or a comparison's folder anew; returns its path."""
    for name in ("comparison.json", "result.json"):
        if (folder / name).exists():
            return write_report(folder, read_json(folder / name))
    raise InputError(f"{folder}: holds neither comparison.json nor result.json; give the folder of a run")


def _run(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    samples, curves = folder / "samples.json", folder / "figures" / "curves.svg"
    metrics = {arm: _metrics(result, arm) for arm in result["arms"]}
    return {
        **result,
        "scores": metrics,
        "samples": read_json(samples) if samples.exists() else {},
        "curves": _inline(curves) if curves.exists() else "",
    }


def _metrics(result: Mapping[str, Any], arm: str) -> dict[str, float]:
    prefix = f"test/{arm}/"
    return {name.removeprefix(prefix): score for name, score in result["metrics"].items() if name.startswith(prefix)}


def _inline(svg: Path) -> str:
    # As an image and not as elements of the page: two figures' clip paths may bear the same name.
    return "data:image/svg+xml;base64," + base64.b64encode(svg.read_bytes()).decode()


def _command(content: Mapping[str, Any]) -> str:
    settings = dict(content["settings"]) | ({"seed": content["seed"]} if "seed" in content else {})
    given = " ".join(shlex.quote(f"{name}={_text(value)}") for name, value in settings.items())
    return f"unifier run experiments/{content['name']}.py {given}"


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
