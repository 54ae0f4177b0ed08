"""Nearest words: cosines against a plain loop, analogies, unknown words, models without a table, and the command."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.inference.test_generate import make_stored
from unifier.cli import main
from unifier.inference.model import Model
from unifier.inference.neighbors import VectorTable, parse_queries
from unifier.models.card import write_card
from unifier.models.folder import write_model
from unifier_tokenizers import InputError, Mixture, PatchTokenizer, SubwordTokenizer, Vocabulary, WordTokenizer

WORDS = ["king", "queen", "man", "woman", "apple", "kings"]
VOCABULARY = Vocabulary.fit([" ".join(WORDS)] * 3, level="word", extra=("<mask>",))


def make_table(tokenizer: Any) -> VectorTable:
    return VectorTable(cast(Model, SimpleNamespace(tasks={"t": SimpleNamespace(tokenizer=tokenizer)})), "t")


def test_cosines_equal_a_plain_loop() -> None:
    tokenizer = SubwordTokenizer(VOCABULARY, 8)
    vectors = {word: tokenizer.embedding.weight[VOCABULARY.encode(word)[0]].detach() for word in WORDS}
    king, man, woman = (vectors[word] / vectors[word].norm() for word in ("king", "man", "woman"))
    for text, vector in (
        ("king", king),
        ("king - man + woman", king - man + woman),
        ("king + king - man", 2 * king - man),
    ):
        [query] = parse_queries(text.split())
        others = {w: torch.cosine_similarity(vector, vectors[w], 0).item() for w in WORDS if w not in text.split()}
        found = make_table(tokenizer).nearest(query)
        assert [word for word, _ in found] == sorted(others, key=lambda word: -others[word])
        assert dict(found) == pytest.approx(others, abs=1e-5)


@pytest.mark.parametrize("level", ["bpe", "wordpiece", "unigram", "character"])
def test_table_has_only_entries_that_a_word_can_name(level: Any) -> None:
    vocabulary = Vocabulary.fit([" ".join(WORDS)] * 30, size=600, level=level)
    table = make_table(SubwordTokenizer(vocabulary, 8))
    assert ("a" if level == "character" else "king") in table.words
    assert all(table.find(word) == i for word, i in table.words.items())
    assert not {"<pad>", "<eos>"} & table.words.keys()


def test_mixture_has_the_table_of_its_text() -> None:
    words = WordTokenizer(VOCABULARY, 8)
    mixture = Mixture({"picture": PatchTokenizer(8, channels=1), "text": words})
    query = parse_queries(["king"])[0]
    assert make_table(mixture).nearest(query) == make_table(words).nearest(query)


def test_bad_queries_are_refused() -> None:
    table = make_table(WordTokenizer(VOCABULARY, 8))
    assert table.find("King") == table.find("king")
    for word, hint in (("quen", "did you mean queen"), ("<mask>", "not in the table"), ("xyzzy", "of 6 words")):
        with pytest.raises(InputError, match=hint):
            table.nearest(parse_queries([word])[0])
    with pytest.raises(InputError, match="no words beside"):
        table.nearest(parse_queries([" + ".join(WORDS)])[0])
    with pytest.raises(InputError, match="count=0"):
        table.nearest(parse_queries(["king"])[0], 0)
    for text in ("king -", "- king", "king - + man", "+"):
        with pytest.raises(InputError, match="both sides"):
            parse_queries(text.split())
    with pytest.raises(InputError, match="query is empty"):
        parse_queries([""])
    assert [query.text for query in parse_queries(["king - man", "queen"])] == ["king - man", "queen"]
    with pytest.raises(InputError, match="PatchTokenizer"):
        make_table(PatchTokenizer(8, channels=1))


def test_command_prints_csv_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = make_stored(level="word")
    write_model(tmp_path, stored, write_card(stored))
    assert main(["neighbors", str(tmp_path), "to", "be", "-", "or", "--count", "2"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [row["query"] for row in rows] == ["to", "to", "be - or", "be - or"]
    assert main(["neighbors", str(tmp_path), "to", "--count", "2", "--format", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["word"] for line in lines] == [row["word"] for row in rows[:2]]
    assert main(["neighbors", str(tmp_path), "zebra"]) == 2
    assert "zebra" in capsys.readouterr().err
