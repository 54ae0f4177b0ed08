"""Configuration: plug-ins, the experiments of a file, and checks of settings."""

import inspect
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, Literal

import pytest

from unifier import Comparison, Experiment, config, datasets, plugins
from unifier.commands.common import parse_settings
from unifier.files import write_json
from unifier.options import TrunkConfig
from unifier.plugins import PluginKind, list_recipes, load_plugins, plugin_names
from unifier_tokenizers import InputError

Color = Literal["red", "blue"]


def study(
    *,
    dim: int = 128,
    learning_rate: float = 1e-3,
    stem: bool = False,
    color: Color = "red",
    seeds: tuple[int, ...] = (0,),
    names: tuple[str, ...] = (),
    patch: int | None = None,
    frame: Color | Literal["auto"] | None = None,
    note: str | None = None,
    title: str = "",
) -> None:
    """Have a setting of every type."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("dim=64", 64), ("dim=1e3", 1000), ("learning_rate=2e-3", 0.002), ("learning_rate=1", 1.0)],
        *[("stem=true", True), ("stem=False", False), ("stem=1", True), ("color=blue", "blue")],
        *[("seeds=0,1,2", (0, 1, 2)), ("seeds=[0, 1]", (0, 1)), ("seeds=7", (7,)), ("seeds=", ())],
        *[("names=en,de", ("en", "de")), ("names=en", ("en",)), ("patch=4", 4), ("patch=None", None)],
        *[("patch=none", None), ("patch=null", None), ("note=None", None), ("note=a=b", "a=b")],
        *[("title=None", "None"), ("title=4", "4")],
    ],
)
def test_text_is_converted_to_type(text: str, value: Any) -> None:
    converted = config.check_settings(study, parse_settings([text]))[text.partition("=")[0]]
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize("learning_rate", [0.1, math.inf, -math.inf, math.nan])
def test_settings_survive_json(learning_rate: float, tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    settings = config.check_settings(study, {"seeds": (1, 2), "names": ["a"], "learning_rate": learning_rate})
    write_json(tmp_path / "settings.json", settings)
    stored = json.loads((tmp_path / "settings.json").read_text(), parse_constant=refuse)
    assert str(config.check_settings(study, stored)) == str(settings)  # NaN is unequal to itself.


def test_defaults_are_filled_in() -> None:
    defaults = config.check_settings(study, {})
    assert (defaults, config.check_settings(study, {"dim": 1})) == (study.__kwdefaults__, {**defaults, "dim": 1})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[("dmi=64", "'dmi'.*'dim'.*study"), ("learningrate=1", "'learning_rate'")],
        *[("xyz=64", "'xyz'.*dim, learning_rate"), ("dim=many", "dim='many'"), ("dim=1.5", "dim='1.5'")],
        *[("dim=", "dim=''"), ("dim=None", "dim='None'"), ("dim=1,2", "dim='1,2'")],
        *[("learning_rate=fast", "learning_rate='fast'"), ("stem=perhaps", "stem='perhaps'")],
        *[("color=green", "color='green'.*'red'.*'blue'"), ("frame=green", "'red'.*'blue'.*'auto'")],
        *[("seeds=0,one", "seeds='0,one'.*'one'"), ("patch=big", "patch='big'"), ("dim", "'dim'.*key=value")],
        *[("=3", "'=3'"), ("a-b=3", "'a-b=3'")],
    ],
)
def test_wrong_setting_is_named_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        config.check_settings(study, parse_settings([text]))
    assert "\n" not in str(error.value)


def test_setting_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="dim=2"):
        parse_settings(["dim=1", "dim=2"])


def test_setting_without_default_is_required() -> None:
    def needs(*, folder: str, dim: int = 1) -> None: ...

    with pytest.raises(InputError, match="'folder' of needs"):
        config.check_settings(needs, {"dim": 2})
    assert config.check_settings(needs, {"folder": "here"}) == {"folder": "here", "dim": 1}


def test_untyped_setting_has_its_defaults_type() -> None:
    def untyped(*, dim=64, rate=0.5, flip=False, files=None) -> None: ...  # pyright: ignore

    values = config.check_settings(untyped, {"dim": "32", "rate": "1", "flip": "true", "files": "a,b"})
    assert values == {"dim": 32, "rate": 1.0, "flip": True, "files": "a,b"}
    with pytest.raises(InputError, match="dim='big'"):
        config.check_settings(untyped, {"dim": "big"})


def test_python_values_are_checked() -> None:
    assert (config.parse_setting("dim", 3, int), config.parse_setting("seeds", [1, 2], tuple[int, ...])) == (3, (1, 2))
    with pytest.raises(InputError, match=r"dim=\[1\]"):
        config.parse_setting("dim", [1], int)
    with pytest.raises(InputError, match=r"frozen='trunk'.*'norms'.*'head'"):  # The choices of a list of one item.
        config.parse_setting("frozen", "trunk", tuple[Literal["norms", "head"], ...])
    for value in (10**30, f"{2**53 + 1}", -(2**63), "[" * 20_000):
        with pytest.raises(InputError, match="dim="):
            config.parse_setting("dim", value, int)


def even(dim: int) -> int:
    if dim % 2:
        raise ValueError(f"dim={dim} is odd:\n  take an even one")
    return dim


def describes(*, dim: int = 8, note: str = "{}") -> tuple[int, Any]:
    return even(dim), json.loads(note)


def test_build_described_wraps_own_value_error() -> None:
    assert config.build_described(describes, {"dim": 4, "note": "{}"}, tuple) == (4, {})
    with pytest.raises(InputError, match=r"test_config\.py, line \d+: dim=3") as error:
        config.build_described(describes, {"dim": 3, "note": "{}"}, tuple)
    assert "\n" not in str(error.value)
    assert type(error.value.__cause__) is ValueError


def test_build_described_checks_returned_type() -> None:
    with pytest.raises(InputError, match=r"describes returns tuple.*Experiment"):
        config.build_described(describes, {"dim": 8, "note": "{}"}, Experiment)


def test_build_described_keeps_deeper_errors() -> None:
    with pytest.raises(ValueError, match="Expecting") as error:
        config.build_described(describes, {"dim": 8, "note": "{"}, tuple)
    assert not isinstance(error.value, InputError)


def small(*, trunk: TrunkConfig = TrunkConfig(dim=8), patch: int = 2) -> Experiment:  # noqa: B008
    raise NotImplementedError(trunk, patch)


def other(*, trunk: TrunkConfig = TrunkConfig(dim=8)) -> Experiment:  # noqa: B008
    raise NotImplementedError(trunk)


def compared(*, dim: int = 8, seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison("compared", [small, other], {"dim": dim}, seeds)


def test_comparison_passes_settings_on() -> None:
    comparison, settings = config.build_comparison(compared, {"depth": "3", "patch": "4", "seeds": "1,2", "dim": "4"})
    assert (comparison.settings, comparison.seeds) == ({"dim": 4, "depth": 3, "patch": 4}, [1, 2])
    assert settings == {"dim": 4, "seeds": (1, 2), "depth": 3, "patch": 4}


@pytest.mark.parametrize(("name", "close"), [("deepth", "depth"), ("sedes", "seeds")])
def test_comparison_names_close_setting(name: str, close: str) -> None:
    with pytest.raises(InputError, match=f"'{name}'.*'{close}'"):
        config.build_comparison(compared, {name: 3})


ONE = '''
from unifier import Experiment

def {name}(*, dim: int = 4) -> Experiment:
    """Describe nothing."""
    raise NotImplementedError

def helper() -> int:
    return 1
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder whose modules are forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in set(sys.modules) - before:
        if not hasattr(sys.modules[name], "__path__") and "." not in name:
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("place", ["plain", "12:30"])
def test_experiment_is_found_by_return_annotation(place: str, folder: Path) -> None:
    path = write(folder / place, "study_alone.py", ONE.format(name="alone"))
    assert (list(config.list_experiments(path)), config.load_experiment(str(path)).__name__) == (["alone"], "alone")
    assert config.load_experiment(f"{path}:alone").__name__ == "alone"
    with pytest.raises(InputError, match=r"'helper'.*study_alone\.py:alone"):
        config.load_experiment(f"{path}:helper")


def test_unreadable_annotation_of_helper_is_ignored(folder: Path) -> None:
    helper = "def helper(x: 'Nowhere') -> 'Nowhere': ...\n"
    assert list(config.list_experiments(write(folder, "study_typed.py", ONE.format(name="typed") + helper))) == [
        "typed"
    ]
    later = "from __future__ import annotations\ndef unread(*, x: Nowhere = None) -> Experiment: ...\n"
    quoted = "from unifier import Experiment\ndef unread(*, x: 'Nowhere' = None) -> Experiment: ...\n"
    for name, text in (("study_unread.py", later), ("study_quoted.py", quoted)):
        with pytest.raises(InputError, match=r"unread.*'Nowhere'"):
            config.list_experiments(write(folder, name, text))


def test_file_name_chooses_among_several(folder: Path) -> None:
    text = ONE.format(name="first") + ONE.format(name="study_several")
    path = write(folder, "study_several.py", text)
    assert sorted(config.list_experiments(path)) == ["first", "study_several"]
    assert config.load_experiment(str(path)).__name__ == "study_several"
    assert config.load_experiment(f"{path}:first").__name__ == "first"
    with pytest.raises(InputError, match=r"'study_others'.*:first.*:study_several"):
        config.load_experiment(str(write(folder, "study_others.py", text)))


def test_files_import_each_other(folder: Path) -> None:
    write(folder, "study_below.py", ONE.format(name="below"))
    above = "from study_below import below\nfrom unifier import Comparison\n"
    above += "def above() -> Comparison:\n    return Comparison('above', [below])\n"
    path = write(folder, "study_above.py", above)
    experiments = config.list_experiments(path)
    assert list(experiments) == ["above"]
    assert experiments == config.list_experiments(path)


def test_two_files_of_one_name_stay_apart(folder: Path) -> None:
    for name in ("a", "b"):
        path = write(folder / name, "study_twin.py", ONE.format(name=f"in_{name}"))
        assert list(config.list_experiments(path)) == [f"in_{name}"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("notes.txt", "hello", r"notes\.txt"),
        ("study_empty.py", "", r"study_empty\.py"),
        ("study_syntax.py", "x = 1\ndef f(:\n", r"study_syntax\.py, line 2"),
        ("study_bytes.py", b"x = '\xff\xfe'\n", r"study_bytes\.py"),
        ("random.py", ONE.format(name="alone"), r"random\.py"),
        ("torch.py", ONE.format(name="alone"), r"torch\.py"),
    ],
)
def test_unusable_file_is_named_every_time(folder: Path, name: str, text: str | bytes, words: str) -> None:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for _ in range(2):
        with pytest.raises(InputError, match=words) as error:
            config.list_experiments(path)
        assert "\n" not in str(error.value)


def test_missing_file_names_recipes(folder: Path) -> None:
    with pytest.raises(InputError, match=r"none\.py.*pictures"):
        config.list_experiments(folder / "none.py")
    with pytest.raises(InputError, match=str(folder)):
        config.list_experiments(folder)


def test_syntax_error_names_imported_file(folder: Path) -> None:
    write(folder, "study_broken.py", "\n\ndef f(:\n")
    with pytest.raises(InputError, match=r"study_broken\.py, line 3"):
        config.list_experiments(write(folder, "study_whole.py", "import study_broken\n"))


def test_exception_of_a_file_passes_every_time(folder: Path) -> None:
    path = write(folder, "study_wrong.py", "1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            config.list_experiments(path)


def test_bare_name_is_an_installed_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert config.load_experiment("pictures").__name__ == "pictures"
    assert config.load_experiment("three_modalities:music").__name__ == "music"
    write(folder, "genres", "")
    with pytest.raises(InputError, match="genres"):
        config.load_experiment("genres")


def test_recipe_is_found_beside_equal_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "pictures").mkdir()
    assert config.load_experiment("pictures").__name__ == "pictures"


def test_every_recipe_bears_its_files_name() -> None:
    assert len(list_recipes()) >= 8
    for name, path in list_recipes().items():
        function = config.load_experiment(str(path))
        assert function.__name__ == name
        assert function.__doc__


def entry_points(*values: tuple[str, str]) -> EntryPoints:
    return EntryPoints(EntryPoint(name, value, "unifier.heads") for name, value in values)


def test_broken_plugin_is_left_out_with_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entry_points(
        ("gone", "no_such_package.heads:Head"),
        ("lacking", "unifier.heads.head:NoSuchHead"),
        ("whole", "unifier.heads.head:Head"),
    )
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries.select(group=group))
    with pytest.warns(UserWarning, match="broken") as warned:
        assert list(load_plugins("heads")) == ["whole"]
    messages = [str(warning.message) for warning in warned]
    assert ["gone" in messages[0], "lacking" in messages[1], len(messages)] == [True, True, 2]
    assert load_plugins("sources") == {}


def test_plugin_with_taken_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "unifier.heads.classification:TaggingHead", "unifier.heads.head:Head"
    entries = entry_points(("tagging", first), ("tagging", second))
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries.select(group=group))
    with pytest.warns(UserWarning, match=f"{second}.*{first}"):
        assert load_plugins("heads")["tagging"].__name__ == "TaggingHead"


def test_every_data_set_is_a_plugin() -> None:
    """A class that is created from another source, or from texts, is no data set."""
    registered = {plugin.__name__ for plugin in load_plugins("sources").values()}
    classes = [value for name in dir(datasets) if isinstance(value := getattr(datasets, name), type)]
    sources = [each for each in classes if callable(getattr(each, "split", None)) and not issubclass(each, str)]
    first = {each.__name__: next(iter(inspect.signature(each).parameters), "") for each in sources}
    assert {name for name in first if first[name] not in ("source", "pairs", "texts")} <= registered


@pytest.mark.parametrize("kind", ["tokenizers", "heads", "sources"])
def test_plugin_names_load_nothing_of_ours(kind: PluginKind, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(load_plugins(kind))
    assert names

    def load(entry: EntryPoint) -> None:
        raise AssertionError(f"{entry.name} is loaded")

    monkeypatch.setattr(EntryPoint, "load", load)
    assert plugin_names(kind) == names


@pytest.mark.slow
def test_list_command_names_broken_plugin(tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text("class Fine: ...\n")
    metadata = tmp_path / "stranger-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[unifier.heads]\nfine = stranger:Fine\ntorn = stranger:Torn\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    script = "import sys, unifier.cli; unifier.cli.main(['list']); print('torch' in sys.modules)"
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "'torn' (stranger:Torn)" in process.stderr
    assert process.stderr.count("\n") == 1
    *_, torch = process.stdout.splitlines()
    (heads,) = (line for line in process.stdout.splitlines() if line.startswith("heads"))
    assert (heads, torch) == (f"heads: {', '.join(sorted([*load_plugins('heads'), 'fine']))}", "False")
