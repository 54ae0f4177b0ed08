"""MovieLens: films in order of time, and the recipe that hides them."""

import json
from pathlib import Path

import pytest

import unifier as uf
from unifier.cli import main
from unifier.datasets.movielens import MovieLensSmall
from unifier_tokenizers import InputError

HEADER = "userId,movieId,rating,timestamp\n"


def write(folder: Path, rows: str) -> MovieLensSmall:
    folder.mkdir(exist_ok=True)
    (folder / "ratings.csv").write_text(HEADER + rows)
    return MovieLensSmall(data=folder)


def test_films_are_numbered_and_sorted_by_time(tmp_path: Path) -> None:
    source = write(tmp_path, "1,50,4,9\n1,7,5,3\n2,7,1,1\n2,50,1,1\n1,900,4,5\n2,900,3,0\n")
    assert [source.split("test")[k].input for k in range(2)] == [[1, 3, 2], [3, 1, 2]]
    assert [source.split("train")[k].input for k in range(2)] == [[1], [3]]
    assert (source.num_items, source.longest) == (3, 3)


@pytest.mark.parametrize("rows", ["1,x,4,9\n", "1,nan,4,9\n", "1,50,4\n", "1,50,4,9\n1,51,4,9\n"])
def test_broken_row_is_named(tmp_path: Path, rows: str) -> None:
    with pytest.raises(InputError, match="line 2"):
        write(tmp_path, rows).split("train")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_hidden_films_train_and_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "movielens_small", "".join(f"{u},{(9 * u + t) % 31},4,{t}\n" for u in range(20) for t in range(6)))
    settings = ["data=movielens_small", "objective=hidden", "dim=16", "depth=1", "steps=3", "num_validations=1"]
    options = ["--data", str(tmp_path), "--out", str(tmp_path), "--track", "off"]
    assert main(["run", "next_item", *settings, *options]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= json.loads((run / "result.json").read_text())["metrics"]["test/movielens_small/hit_rate_10"] <= 1
    (best,) = uf.load(run).predict([[1, 2, 3]])
    assert not {"1", "2", "3", "32"} & {*best.split(", ")}
    with pytest.raises(InputError, match="item 32 is outside the catalog"):
        uf.load(run).predict([[32]])
    for message, *wrong in (
        ("share=1.0", "data=movielens_small", "objective=hidden", "hidden_share=1.0"),
        ("'films'", "data=films"),
        ("hides no items", "data=movielens_small", "hidden_share=0.5"),
    ):
        assert main(["run", "next_item", *wrong, *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
