"""Plug-ins are found in packages; one that is broken is named, and ends nothing."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from unifier import config as found_by
from unifier.config import PluginKind, plugin_names, plugins


def test_a_broken_plug_in_is_named_and_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints(
        EntryPoint(name, value, "unifier.heads")
        for name, value in (
            ("gone", "no_such_package.heads:Head"),
            ("lacking", "unifier.heads.head:NoSuchHead"),
            ("whole", "unifier.heads.head:Head"),
        )
    )
    monkeypatch.setattr(found_by, "entry_points", lambda group: entries.select(group=group))
    with pytest.warns(UserWarning, match="is broken") as warned:
        found = plugins("heads")
    assert list(found) == ["whole"]
    said = [str(warning.message) for warning in warned]
    assert len(said) == 2
    assert "'gone' (no_such_package.heads:Head) is broken: ModuleNotFoundError" in said[0]
    assert "'lacking' (unifier.heads.head:NoSuchHead) is broken: AttributeError" in said[1]
    assert plugins("sources") == {}


def test_a_plug_in_with_the_name_of_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ("unifier.heads.classification:TaggingHead", "unifier.heads.head:Head")
    entries = EntryPoints(EntryPoint("tagging", value, "unifier.heads") for value in values)
    monkeypatch.setattr(found_by, "entry_points", lambda group: entries.select(group=group))
    said = r"'tagging' \(unifier\.heads\.head:Head\) has the name of another \(unifier\.heads\.tagging:TaggingHead\)"
    with pytest.warns(UserWarning, match=said):
        assert plugins("heads")["tagging"].__name__ == "TaggingHead"


@pytest.mark.parametrize("kind", ["tokenizers", "heads", "sources"])
def test_our_own_plug_ins_load_and_are_named_without(kind: PluginKind, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(plugins(kind))
    assert names

    def load(entry: EntryPoint) -> None:
        raise AssertionError(f"{entry.name} is loaded")

    monkeypatch.setattr(EntryPoint, "load", load)
    assert plugin_names(kind) == names


def test_a_list_of_everything_names_what_is_broken_and_loads_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text("class Fine: ...\n")
    about = tmp_path / "stranger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[unifier.heads]\nfine = stranger:Fine\ntorn = stranger:Torn\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    asked = "import sys, unifier.cli; unifier.cli.main(['list']); print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr.startswith("warning: the plug-in 'torn' (stranger:Torn) is broken: AttributeError")
    assert found.stderr.count("\n") == 1
    heads, *_, torch = (line for line in found.stdout.splitlines() if not line.startswith(("tokenizers", "sources")))
    assert heads == f"heads: {', '.join(sorted([*plugins('heads'), 'fine']))}"
    assert torch == "False"
