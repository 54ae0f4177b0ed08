"""Plain texts: documents of one split each, cut into pieces of a number of words."""

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from unifier.data.source import SPLITS, Source
from unifier.datasets.plain_text import MovieReviews, TextFile, WikiArticles
from unifier_tokenizers import InputError


def movie_reviews(folder: Path) -> MovieReviews:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "movie_reviews.zip", "w") as archive:
        archive.writestr("movie_reviews/README", "not a review")
        for number in (0, 7, 899, 900, 949, 950, 999):
            for label in ("neg", "pos"):
                text = f"{label} {number} caf\xe9 \n" + "a film , \n" * 50
                archive.writestr(f"movie_reviews/{label}/cv{number:03}_123.txt", text.encode("latin-1"))
    return MovieReviews(data=folder)


def wiki_articles(folder: Path) -> WikiArticles:
    folder.mkdir(parents=True)
    lines = [line for k in range(13) for line in (f"= Article {k} =", f"Article {k} is é.", "words " * 70)]
    (folder / "wiki_articles.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return WikiArticles(data=folder)


def text_file(folder: Path) -> TextFile:
    folder.mkdir(parents=True)
    lines = "\n".join(f"w{k} w{k + 1}" for k in range(0, 2000, 2))
    (folder / "My notes.txt.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    return TextFile(folder / "My notes.txt.gz")


@pytest.mark.parametrize("make", [movie_reviews, wiki_articles, text_file])
def test_plain_texts_keep_contract(make: Callable[[Path], Source], check_source: Callable[..., None]) -> None:
    check_source(make, named=make is not text_file)


def test_pieces_rebuild_the_documents_of_their_split(tmp_path: Path) -> None:
    source = MovieReviews(words=7, data=movie_reviews(tmp_path / "reviews")._data)  # pyright: ignore[reportPrivateUsage]
    numbers = {"train": (0, 7, 899), "val": (900, 949), "test": (950, 999)}
    for name in SPLITS:
        examples = list(source.split(name))
        assert all(example.input == example.target for example in examples)
        assert {len(example.input.split()) for example in examples} == {7, 153 % 7}
        expected = [
            f"{label} {k} café {' '.join(['a film ,'] * 50)}" for label in ("neg", "pos") for k in numbers[name]
        ]
        assert " ".join(example.input for example in examples) == " ".join(expected)
    assert source.split("val").example_id(1).endswith("neg/cv900_123.txt, word 8")


def test_last_ten_articles_are_val_and_test(tmp_path: Path) -> None:
    source = wiki_articles(tmp_path / "wiki")
    starts = {name: [text for text, _ in source.split(name) if text.startswith("Article")] for name in SPLITS}
    found = {name: [int(text.split()[1]) for text in texts] for name, texts in starts.items()}
    assert found == {"train": [0, 1, 2], "val": [3, 4, 5, 6, 7], "test": [8, 9, 10, 11, 12]}


def test_end_of_ones_own_file_is_val_and_test(tmp_path: Path) -> None:
    source = text_file(tmp_path / "own")
    assert source.name == "My_notes"
    texts = {name: " ".join(text for text, _ in source.split(name)).split() for name in SPLITS}
    assert texts["train"] + texts["val"] + texts["test"] == [f"w{k}" for k in range(2000)]
    assert [len(texts[name]) for name in SPLITS] == [1800, 100, 100]
    (tmp_path / "short.txt").write_text("three short words")
    with pytest.raises(InputError, match=r"short\.txt has no text for val"):
        TextFile(tmp_path / "short.txt").split("train")
    with pytest.raises(InputError, match="words=0"):
        TextFile(tmp_path / "short.txt", words=0)
