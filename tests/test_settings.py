"""Settings are checked against a function's signature, and texts become what its types say."""

import inspect
import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest

from unifier.cli import parse_settings
from unifier.config import build_described, check_settings, parse_setting
from unifier.experiment import Experiment
from unifier.files import write_json
from unifier_tokenizers import InputError

Color = Literal["red", "blue"]


def open_ended(*, dim: int = 8, **more: int) -> None:
    """Settings without names."""


def by_place(dim: int = 8, /) -> None:
    """A setting that cannot be named."""


def test_every_setting_has_a_name_to_be_given_by() -> None:
    for function, said in ((open_ended, r"open_ended has \*\*more"), (by_place, "by_place has dim")):
        with pytest.raises(InputError, match=f"{said}: int.*, and no setting can be given by that"):
            check_settings(function, {})


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
    """Every type a setting has."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dim=64", 64),
        ("dim=1e3", 1000),
        ("learning_rate=2e-3", 0.002),
        ("learning_rate=1", 1.0),
        ("stem=true", True),
        ("stem=False", False),
        ("stem=1", True),
        ("color=blue", "blue"),
        ("seeds=0,1,2", (0, 1, 2)),
        ("seeds=[0, 1]", (0, 1)),
        ("seeds=7", (7,)),
        ("seeds=", ()),
        ("names=en,de", ("en", "de")),
        ("names=en", ("en",)),
        ("patch=4", 4),
        ("patch=None", None),
        ("patch=none", None),
        ("patch=null", None),
        ("note=None", None),
        ("note=a=b", "a=b"),
        ("title=None", "None"),
        ("title=4", "4"),
    ],
)
def test_texts_become_what_their_types_say(text: str, value: Any) -> None:
    name = text.partition("=")[0]
    found = check_settings(study, parse_settings([text]))[name]
    assert found == value
    assert type(found) is type(value)


def no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@pytest.mark.parametrize("learning_rate", [0.1, math.inf, -math.inf, math.nan])
def test_a_setting_survives_the_json_that_a_run_leaves(learning_rate: float, tmp_path: Path) -> None:
    settings = check_settings(study, {"seeds": (1, 2), "names": ["a"], "learning_rate": learning_rate})
    write_json(tmp_path / "settings.json", settings)
    kept = json.loads((tmp_path / "settings.json").read_text(), parse_constant=no_json)
    assert str(check_settings(study, kept)) == str(settings)  # NaN is not itself


def test_a_setting_survives_the_command_that_a_report_shows() -> None:
    settings = check_settings(study, {"seeds": (1, 2), "stem": True})
    shown = [
        f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in settings.items()
        if value != ()
    ]
    assert check_settings(study, parse_settings(shown)) == settings


def test_what_is_not_given_keeps_its_default() -> None:
    defaults = {name: one.default for name, one in inspect.signature(study).parameters.items()}
    assert check_settings(study, {}) == defaults
    assert check_settings(study, {"dim": 1}) == {**defaults, "dim": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dmi=64", r"^no setting 'dmi'; did you mean 'dim'\? \(of study\)$"),
        ("learningrate=1", r"did you mean 'learning_rate'\?"),
        ("xyz=64", "^no setting 'xyz'; study has dim, learning_rate"),
        ("dim=many", "the setting dim='many' does not fit: input should be a valid integer"),
        ("dim=1.5", "dim='1.5' does not fit"),
        ("dim=", "dim='' does not fit"),
        ("dim=None", "dim='None' does not fit"),
        ("dim=1,2", "dim='1,2' does not fit"),
        ("learning_rate=fast", "learning_rate='fast' does not fit: .*number"),
        ("stem=perhaps", "stem='perhaps' does not fit"),
        ("color=green", "color='green' does not fit: input should be 'red' or 'blue'"),
        ("frame=green", "input should be 'red' or 'blue', or 'auto'$"),
        ("seeds=0,one", "seeds='0,one' does not fit: 'one': input should be a valid integer"),
        ("patch=big", "patch='big' does not fit"),
        ("dim", "'dim' is no setting: write key=value"),
        ("=3", "'=3' is no setting"),
        ("a-b=3", "'a-b=3' is no setting"),
    ],
)
def test_mistakes_are_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        check_settings(study, parse_settings([text]))
    assert "\n" not in str(error.value)


def test_a_setting_given_twice() -> None:
    with pytest.raises(InputError, match="given twice"):
        parse_settings(["dim=1", "dim=2"])


def test_a_setting_without_a_default_must_be_given() -> None:
    def needs(*, folder: str, dim: int = 1) -> None: ...

    with pytest.raises(InputError, match="'folder' of needs has no default: give folder=VALUE"):
        check_settings(needs, {"dim": 2})
    assert check_settings(needs, {"folder": "here"}) == {"folder": "here", "dim": 1}


def test_a_setting_without_a_type_is_read_as_its_default_s() -> None:
    def untyped(*, dim=64, rate=0.5, flip=False, files=None) -> None: ...  # pyright: ignore

    found = check_settings(untyped, {"dim": "32", "rate": "1", "flip": "true", "files": "a,b"})
    assert found == {"dim": 32, "rate": 1.0, "flip": True, "files": "a,b"}
    with pytest.raises(InputError, match="dim='big' does not fit"):
        check_settings(untyped, {"dim": "big"})


def test_values_from_python_are_checked_as_well() -> None:
    assert parse_setting("dim", 3, int) == 3
    assert parse_setting("seeds", [1, 2], tuple[int, ...]) == (1, 2)
    with pytest.raises(InputError, match=r"dim=\[1\] does not fit"):
        parse_setting("dim", [1], int)


def even(dim: int) -> int:
    if dim % 2:
        raise ValueError(f"dim={dim} is odd:\n  take an even one")
    return dim


def describes(*, dim: int = 8, note: str = "{}") -> tuple[int, Any]:
    """Refuses an odd dim by itself; a note is read by a library."""
    return even(dim), json.loads(note)


def test_what_a_study_refuses_by_itself_is_a_user_s_mistake_in_one_line() -> None:
    assert build_described(describes, {"dim": 4}, tuple) == (4, {})
    with pytest.raises(InputError, match=r"^test_settings\.py, line \d+: dim=3 is odd: take an even one$") as error:
        build_described(describes, {"dim": 3}, tuple)
    assert type(error.value.__cause__) is ValueError


def test_what_is_described_is_what_is_expected() -> None:
    with pytest.raises(InputError, match=r"^describes returns tuple, where Experiment is expected"):
        build_described(describes, {}, Experiment)


def test_what_breaks_below_a_study_keeps_its_own_error() -> None:
    with pytest.raises(ValueError, match="Expecting") as error:
        build_described(describes, {"note": "{"}, tuple)
    assert not isinstance(error.value, InputError)
